"""A tape of how a loss came from data: the calls outside modules, each outermost module call counting as one.

Only calls whose result needs a gradient are on the tape, so whatever prepared the data is not: the prepared tensors
are the tape's leaves, and a large batch is the same tape over the leaves of several micro-batches, concatenated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode, resolve_name

from gradcheck_accum.engine.checkpoints import Checkpointed
from gradcheck_accum.engine.determinism import loses_digits
from gradcheck_accum.engine.randomness import State, random_state, same_state

KEPT_SEGMENTS = 3
"""How many backwards a recorded call stays usable for: a tensor may be made before one backward and used by another."""


_BY_ROW_NUMBER = {
    "index_add",
    "index_copy",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "segment_reduce",
}
"""Calls whose index is mostly of rows of the batch itself (the nodes of graphs)."""


Place = tuple[tuple[int, int], ...]
"""A stack of calls: for each frame its code and the instruction that it is at."""


@dataclass(slots=True)
class Call:
    """One recorded call, with its arguments and the tensors that it gave.

    ``place`` is where in the code a module was called from, the same for every turn of a loop.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor]
    rng_state: State | None = None
    autocast: tuple[str, torch.dtype] | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Produced:
    """The place of an argument that an earlier call of the tape gave: which call, which of its tensors."""

    call: int
    output: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of an argument that the tape did not make."""

    index: int


@dataclass(frozen=True, slots=True)
class Packed:
    """The places of the tensors of a packed sequence, in order."""

    fields: tuple[Any, ...]


@dataclass(slots=True)
class Program:
    """How one micro-batch's loss is computed from its leaves, free of the tensors in between.

    ``results`` are the losses that one backward was called on.

    ``kept`` are, for each step, the tensors that its module leaves in attributes and that the loss is made of too: the
    submodule that has one, and the attribute. ``rng_states`` are the states of the generators before each step that
    drew from them, ``constants`` the words that its calls were given, and the plain numbers that its tensors (scalars
    apart: their factors are known) were computed with. ``by_position``
    says that the loop itself takes a batch apart by the places of its samples, so that micro-batches put together may
    not be the batch that it would have made. ``places`` are those that the steps which are modules were called from,
    ``coarsest`` is the dtype with the most rounding that any of it was computed in, modules included.
    """

    steps: list[tuple[Callable[..., Any], Any, Any, tuple[str, torch.dtype] | None]]
    kept: list[list[tuple[str, str]]]
    leaves: list[torch.Tensor]
    versions: list[int]
    results: list[Any]
    rng_states: list[State | None]
    constants: list[object]
    by_position: bool
    places: list[Place | None]
    coarsest: torch.dtype | None

    @property
    def random(self) -> bool:
        """Whether any of it draws random numbers."""
        return any(state is not None for state in self.rng_states)

    @property
    def holds_packed(self) -> bool:
        """Whether a call was given packed sequences, whose rows are those of one time step after those of another."""
        return any(isinstance(value, Packed) for _, *given, _ in self.steps for value in leaves_of(given))

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that it calls."""
        return [function for function, *_ in self.steps if isinstance(function, nn.Module)]

    def is_intact(self) -> bool:
        """Whether no leaf has been changed in place since it was recorded."""
        return all(leaf._version == version for leaf, version in zip(self.leaves, self.versions, strict=True))

    def same_shape(self, other: Program) -> bool:
        """Whether two programs make the same calls."""
        return len(self.leaves) == len(other.leaves) and [_name(s[0]) for s in self.steps] == [
            _name(s[0]) for s in other.steps
        ]

    def run(
        self, leaves: list[torch.Tensor], around: Callable[[int], AbstractContextManager[None]] | None = None
    ) -> torch.Tensor:
        """The loss over ``leaves``, the sum of several; every step runs inside ``around`` its position.

        Raises whatever a call raises that does not fit the leaves.
        """
        made: list[list[torch.Tensor]] = []
        for position, (function, args, kwargs, autocast) in enumerate(self.steps):
            args = _fill(args, leaves, made)
            kwargs = _fill(kwargs, leaves, made)
            cast = nullcontext() if autocast is None else torch.autocast(autocast[0], dtype=autocast[1])
            with cast, nullcontext() if around is None else around(position):
                result = function(*args, **kwargs)
            made.append(list(tensors_in(result)))
            if isinstance(function, nn.Module):
                made[-1] += [getattr(function.get_submodule(owner), name) for owner, name in self.kept[position]]
        losses = _fill(self.results, leaves, made)
        if not all(isinstance(loss, torch.Tensor) for loss in losses):
            raise TypeError("the recorded calls give no tensor")
        total: torch.Tensor = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total


def _name(function: Callable[..., Any]) -> object:
    if isinstance(function, Checkpointed):
        return getattr(function.function, "__code__", function.function)
    return function if isinstance(function, nn.Module) else (resolve_name(function) or function)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in nested containers and plain output objects, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 6:
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif not isinstance(value, nn.Module) and hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_in(item, depth + 1)


def _copied(value: Any) -> Any:
    """The same tensors in lists, tuples and dictionaries of their own."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return tuple(_copied(item) for item in value) if type(value) is tuple else value


def _fill(value: Any, leaves: list[torch.Tensor], made: list[list[torch.Tensor]]) -> Any:
    match value:
        case Produced():
            return made[value.call][value.output]
        case Leaf():
            return leaves[value.index]
        case dict():
            return {key: _fill(item, leaves, made) for key, item in value.items()}
        case list():
            return [_fill(item, leaves, made) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(_fill(item, leaves, made) for item in value)
        case Packed():
            return PackedSequence(*(_fill(item, leaves, made) for item in value.fields))
    return value


@dataclass(eq=False)
class Tape(TorchFunctionMode):
    """Records while it is entered; ask it for the program of a loss right before its backward.

    ``on_scalar`` is told each number that a call outside modules gives, where it needs a gradient.
    """

    on_scalar: Callable[[torch.Tensor], object] | None = None
    segments: list[list[Call]] = field(default_factory=lambda: [[]])
    _paused: int = 0
    _depth: int = 0
    _inside: nn.ModuleList | None = None
    """The modules that the checkpointed function which is running has called."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if self._depth or self._paused or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        # To read an attribute of a tensor draws nothing.
        state = None if getattr(func, "__name__", "") == "__get__" else random_state()
        result = func(*args, **kwargs)
        self._record(func, args, kwargs, result, state)
        return result

    def _record(
        self, function: Any, args: Any, kwargs: Any, result: Any, state: State | None, place: Place | None = None
    ) -> None:
        if isinstance(result, torch.Tensor):
            outputs = [result] if result.requires_grad and not result.is_leaf else []
            if outputs and result.dim() == 0 and self.on_scalar is not None:
                self.on_scalar(result)
        elif result is None or isinstance(result, (bool, int, float, str, torch.Size, torch.dtype, torch.device)):
            return
        else:
            outputs = [t for t in tensors_in(result) if t.requires_grad]
        if outputs:
            kept = [result] if isinstance(result, torch.Tensor) else list(tensors_in(result))
            if state is not None and same_state(state, random_state()):
                state = None
            self.segments[-1].append(Call(function, args, kwargs, kept, state, _autocast(), place))

    def call_checkpointed(self, function: Callable[..., Any], call: Callable[..., Any], args: Any) -> Any:
        """Run a function that is checkpointed by ``call``, and record it as one call of a module."""
        if isinstance(function, nn.Module):
            return self.call_module(function, call, args, {})
        module, before = Checkpointed(function), self._inside
        self._inside = module.called
        try:
            return self.call_module(module, call, args, {})
        finally:
            self._inside = before

    def call_module(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an outermost module call, and record it as one."""
        if self._inside is not None and not isinstance(module, Checkpointed):
            self._inside.append(module)
        if self._depth or self._paused or not torch.is_grad_enabled():
            self._depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
        state = random_state()
        # A module may write what it computes into the dictionary that it was given.
        given = _copied(args), _copied(kwargs)
        self._depth += 1
        try:
            result = call(*args, **kwargs)
        finally:
            self._depth -= 1
        self._record(module, *given, result, state, _place())
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it is entered, nothing is recorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def next_segment(self) -> None:
        """A backward has run: what was recorded long before it can be forgotten."""
        self.segments.append([])
        del self.segments[:-KEPT_SEGMENTS]

    def program(self, losses: Sequence[torch.Tensor]) -> Program | None:
        """How the losses of one backward were computed, or None where some of it was not recorded."""
        calls = [call for segment in self.segments for call in segment]
        found = self._program(calls, losses, [[] for _ in calls])
        # Few modules leave in an attribute what a loss is made of, and to look at all of them takes time.
        return found or self._program(calls, losses, _attributes(calls))

    def _program(
        self,
        calls: list[Call],
        losses: Sequence[torch.Tensor],
        attributes: list[list[tuple[str, str, torch.Tensor]]],
    ) -> Program | None:
        outputs = [[*c.outputs, *(tensor for _, _, tensor in kept)] for c, kept in zip(calls, attributes, strict=True)]
        needed = self._needed(calls, outputs, losses)
        if needed is None:
            return None
        leaves: list[torch.Tensor] = []
        places: dict[int, Leaf] = {}
        renumbered = {old: new for new, old in enumerate(sorted(needed))}
        produced: dict[int, Produced] = {}

        def encode(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) in produced:
                    return produced[id(value)]
                if id(value) not in places:
                    places[id(value)] = Leaf(len(leaves))
                    leaves.append(value if value.requires_grad else value.detach())
                return places[id(value)]
            if isinstance(value, dict):
                return {key: encode(item) for key, item in value.items()}
            if isinstance(value, list):
                return [encode(item) for item in value]
            if type(value) is tuple:
                return tuple(encode(item) for item in value)
            if isinstance(value, PackedSequence):
                return Packed(tuple(encode(item) for item in value))
            return value

        steps = []
        for old in sorted(needed):
            call = calls[old]
            steps.append((call.function, encode(call.args), encode(call.kwargs), call.autocast))
            for position, output in enumerate(outputs[old]):
                produced[id(output)] = Produced(renumbered[old], position)
        if any(leaf.requires_grad and not leaf.is_leaf for leaf in leaves):
            return None
        chosen = [calls[old] for old in sorted(needed)]
        return Program(
            steps,
            [[(owner, name) for owner, name, _ in attributes[old]] for old in sorted(needed)],
            leaves,
            [leaf._version for leaf in leaves],
            [produced[id(loss)] for loss in losses],
            [call.rng_state for call in chosen],
            [constant for call in chosen for constant in _constants_of(call)],
            any(_parts_rows(call) for call in chosen),
            [call.place for call in chosen],
            _coarsest(losses),
        )

    @staticmethod
    def _needed(
        calls: list[Call], outputs: list[list[torch.Tensor]], losses: Sequence[torch.Tensor]
    ) -> set[int] | None:
        makers: dict[int, list[int]] = {}
        for index, own in enumerate(outputs):
            for output in own:
                makers.setdefault(id(output), []).append(index)
        if any(id(loss) not in makers for loss in losses):
            return None
        needed: set[int] = set()
        pending = [maker for loss in losses for maker in makers[id(loss)]]
        while pending:
            index = pending.pop()
            if index in needed:
                continue
            needed.add(index)
            for tensor in tensors_in((calls[index].args, calls[index].kwargs)):
                # A tensor changed in place was made by several calls: all that came before this one.
                pending.extend(maker for maker in makers.get(id(tensor), []) if maker < index)
        return needed


def _attributes(calls: list[Call]) -> list[list[tuple[str, str, torch.Tensor]]]:
    """For each call the tensors with a graph that its module keeps: the submodule's name, the attribute's, the tensor.

    What a module keeps is its last call's.
    """
    found: list[list[tuple[str, str, torch.Tensor]]] = [[] for _ in calls]
    last = {id(call.function): index for index, call in enumerate(calls) if isinstance(call.function, nn.Module)}
    for index in last.values():
        for owner, module in calls[index].function.named_modules():  # type: ignore[attr-defined]
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                    found[index].append((owner, name, value))
    return found


def _place() -> Place:
    """Where the code is, but for this room's own part of the stack."""
    frame: FrameType | None = sys._getframe(2)
    place = []
    while frame is not None:
        place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(place)


def _coarsest(losses: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The dtype with the most rounding between losses and their leaves, wherever autocast was entered."""
    nodes = [loss.grad_fn for loss in losses]
    known, found = set(nodes), set[torch.dtype]()
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        for given in node._input_metadata:
            rounded = given.dtype is torch.float32 and given.device.type == "cuda" and loses_digits(node.name())
            if given.dtype.is_floating_point:
                # TF32 keeps as many digits as float16.
                found.add(torch.float16 if rounded else given.dtype)
        following = {next_node for next_node, _ in node.next_functions} - known
        known |= following
        nodes += following
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def _autocast() -> tuple[str, torch.dtype] | None:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None


def _parts_rows(call: Call) -> bool:
    """Whether a call takes its tensor apart along the first dimension, at places that are fixed."""
    name = getattr(call.function, "__name__", "")
    if name == "__getitem__":
        index = call.args[1][0] if isinstance(call.args[1], tuple) and call.args[1] else call.args[1]
        if isinstance(index, torch.Tensor):
            return not index.is_floating_point() and index.dtype is not torch.bool
        return isinstance(index, int) or (isinstance(index, slice) and index != slice(None))
    if name.rstrip("_") in _BY_ROW_NUMBER:
        return True
    if name not in ("chunk", "split", "tensor_split", "unbind", "narrow", "select"):
        return False
    at = {"unbind": 1, "narrow": 1, "select": 1}.get(name, 2)
    axis = call.kwargs.get("dim", call.args[at] if len(call.args) > at else 0)
    return isinstance(axis, int) and axis % max(call.args[0].dim(), 1) == 0


def _constants_of(call: Call) -> list[object]:
    """What a call was given beside tensors that makes it another: words, and numbers unless all it gave is numbers."""
    found: list[object] = [v for v in leaves_of((call.args, call.kwargs)) if isinstance(v, (bool, int, float, str))]
    return found if any(output.dim() for output in call.outputs) else [c for c in found if isinstance(c, str)]


def leaves_of(value: Any) -> Iterator[Any]:
    """What stands in nested containers, keys of dictionaries and bounds of slices among it, in a fixed order."""
    if isinstance(value, slice):
        yield from leaves_of((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        yield from leaves_of(list(value.items()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value

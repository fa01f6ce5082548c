"""A tape of how a loss came from data: the calls outside modules, each outermost module call counting as one.

Only calls whose result needs a gradient are on the tape, so whatever prepared the data is not: the prepared tensors
are the tape's leaves, and a large batch is the same tape over the leaves of several micro-batches, concatenated. (How
data was prepared that a large batch prepares otherwise is noted beside the tape: see `preparing`.)

What a call writes into memory it makes anew, for all tensors that share the memory: whoever reads one of them later
depends on the call, whatever it returned. A buffer that comes from outside the tape is a leaf with the values that it
held before the first such call. Where memory of the tape was changed by something that is not on it (under
``no_grad``, through ``.data``), the tape does not say how the loss was computed.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode, resolve_name

from gradcheck_accum.engine.callers import call_from
from gradcheck_accum.engine.checkpoints import Checkpointed
from gradcheck_accum.engine.copies import CopiesOnWrite
from gradcheck_accum.engine.determinism import loses_digits
from gradcheck_accum.engine.lent import Lent, lent_weights, steps_weights
from gradcheck_accum.engine.loss_graph import is_cached
from gradcheck_accum.engine.memory import Region, may_write, memory_of, version_of, versions_of, written_among
from gradcheck_accum.engine.preparing import Preparation, Preparations
from gradcheck_accum.engine.randomness import State, random_state, same_state

_KEPT_GRAPHLESS = 64
"""Outputs of modules without a graph of which it is known who made them."""

KEPT_SEGMENTS = 3
"""How many backwards a recorded call stays usable for: a tensor may be made before one backward and used by another."""


_BY_ROW_NUMBER = {
    "index_add",
    "index_copy",
    "index_fill",
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

    ``place`` is where in the code a module was called from, the same for every turn of a loop. ``written`` are the
    tensors among its arguments that it wrote into, by their position there, and ``before`` what those from outside the
    tape held until then. ``versions`` are those of ``made`` right after the call. ``is_followed`` says that running it
    again does what it did, ``looks_up_rows`` that a module looked up rows by numbers that it was given.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor]
    rng_state: State | None = None
    autocast: tuple[str, torch.dtype] | None = None
    place: Place | None = None
    written: tuple[int, ...] = ()
    before: tuple[torch.Tensor, torch.Tensor] | None = None
    is_followed: bool = True
    looks_up_rows: bool = False
    versions: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = versions_of(self.made)

    @property
    def given(self) -> list[torch.Tensor]:
        """The tensors among its arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    @property
    def changed(self) -> list[torch.Tensor]:
        """The tensors among its arguments that it wrote into."""
        given = self.given if self.written else []
        return [given[position] for position in self.written]

    @property
    def made(self) -> list[torch.Tensor]:
        """What it gave, and what it wrote into."""
        return [*self.outputs, *self.changed]


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


@dataclass
class Program:
    """How one micro-batch's loss is computed from its leaves, free of the tensors in between.

    ``results`` are the losses that one backward was called on.

    ``kept`` are, for each step, the tensors that its module leaves in attributes and that the loss is made of too: the
    submodule that has one, and the attribute. ``rng_states`` are the states of the generators before each step that
    drew from them, ``constants`` the words that its calls were given, and the plain numbers that its tensors (scalars
    apart: their factors are known) were computed with. ``written`` are, for each step, the positions of the tensors
    among its arguments that it writes into, ``buffers`` the leaves that any of them does. ``by_position`` says that the
    loop itself takes a batch apart by the places of its samples, so that micro-batches put together may not be the
    batch that it would have made, ``learns`` that the loss is computed with weights that were stepped on in its own
    micro-batch, ``is_cached`` that a hook computes the gradients of a loss that a module gave. ``places`` are those
    that the steps which are modules were called from, ``coarsest`` is the dtype with the most rounding that any of it
    was computed in, modules included. ``prepared`` says how leaves were made that a reduction is part of.
    """

    steps: list[tuple[Callable[..., Any], Any, Any, tuple[str, torch.dtype] | None]]
    kept: list[list[tuple[str, str]]]
    written: list[tuple[int, ...]]
    buffers: frozenset[int]
    leaves: list[torch.Tensor]
    versions: list[int]
    results: list[Any]
    rng_states: list[State | None]
    constants: list[object]
    by_position: bool
    looks_up_rows: bool
    learns: bool
    is_cached: bool
    places: list[Place | None]
    coarsest: torch.dtype | None
    prepared: dict[int, Preparation] = field(default_factory=dict)

    @property
    def held(self) -> tuple[list[torch.Tensor], list[int]]:
        """Its leaves, with the versions that they were used with."""
        return self.leaves, self.versions

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

    def lent(self) -> set[int]:
        """The leaves that weights are made of which its modules are lent: they belong to no sample."""
        wanted = {
            weight for function, args, *_ in self.steps if isinstance(function, Lent) for weight in leaves_of(args[0])
        }
        for position in reversed(range(len(self.steps))):
            if any(isinstance(value, Produced) and value.call == position for value in wanted):
                wanted |= {v for v in leaves_of(self.steps[position][1:3]) if isinstance(v, (Leaf, Produced))}
        return {value.index for value in wanted if isinstance(value, Leaf)}

    def times(self, factor: float) -> Program:
        """The same computation, whose losses are multiplied by a number in the end."""
        first, added = len(self.steps), len(self.results)
        scaled: list[tuple[Callable[..., Any], Any, Any, None]] = [
            (torch.mul, (result, factor), {}, None) for result in self.results
        ]
        return replace(
            self,
            steps=[*self.steps, *scaled],
            kept=[*self.kept, *([] for _ in range(added))],
            written=[*self.written, *[()] * added],
            results=[Produced(first + index, 0) for index in range(added)],
            rng_states=[*self.rng_states, *[None] * added],
            places=[*self.places, *[None] * added],
        )

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
        leaves = [leaf.clone() if index in self.buffers else leaf for index, leaf in enumerate(leaves)]
        for position, (function, args, kwargs, autocast) in enumerate(self.steps):
            args = _fill(args, leaves, made)
            kwargs = _fill(kwargs, leaves, made)
            cast = nullcontext() if autocast is None else torch.autocast(autocast[0], dtype=autocast[1])
            with cast, nullcontext() if around is None else around(position):
                result = function(*args, **kwargs)
            made.append(list(tensors_in(result)))
            if isinstance(function, nn.Module):
                made[-1] += [getattr(function.get_submodule(owner), name) for owner, name in self.kept[position]]
            if self.written[position]:
                given = list(tensors_in((args, kwargs)))
                made[-1] += [given[written] for written in self.written[position]]
        losses = _fill(self.results, leaves, made)
        if not all(isinstance(loss, torch.Tensor) for loss in losses):
            raise TypeError("the recorded calls give no tensor")
        total: torch.Tensor = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total


def _name(function: Callable[..., Any]) -> object:
    if isinstance(function, Lent):
        return function.module
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


_BLENDS = frozenset(
    {"add_", "copy_", "lerp_", "mul_", "_foreach_add_", "_foreach_copy_", "_foreach_lerp_", "_foreach_mul_"}
)
SCALINGS = frozenset(
    f"{name}{underscore}"
    for name in ("div", "divide", "true_divide", "mul", "multiply", "_foreach_div", "_foreach_mul")
    for underscore in ("", "_")
)
"""What multiplies or divides tensors, as it is called by name."""

_SCALES = SCALINGS | {"__truediv__", "__itruediv__", "__mul__", "__imul__", "__rmul__"}


_READ_GRADIENT = vars(torch._C.TensorBase)["grad"].__get__
"""What reads ``.grad`` of a tensor."""


@dataclass(slots=True)
class _Memories:
    """The memory of what the calls of a segment made: it is no other tensor's as long as they are kept.

    Few loops write into any, so that it is asked for first and looked up then.
    """

    memories: set[int] = field(default_factory=set)
    _taken: int = 0

    def take(self, calls: Sequence[Call]) -> None:
        """Look up those of the calls that are new."""
        made = (tensor for call in calls[self._taken :] for tensor in call.made)
        self.memories.update(memory for tensor in made if (memory := memory_of(tensor)) is not None)
        self._taken = len(calls)


@dataclass(eq=False)
class Tape(TorchFunctionMode):
    """Records while it is entered; ask it for the program of a loss right before its backward.

    ``on_scalar`` is told each number that a call outside modules gives, where it needs a gradient, ``on_blend`` each
    operation in place by which tensors may be taken into an average, with its arguments, ``on_scale`` what is about to
    be multiplied or divided, be it tensors that need no gradient, ``on_write`` each tensor that is about to be
    written into, ``on_gradient_read`` each whose ``.grad`` is read, and ``on_call`` each outermost call: its name,
    arguments and result.
    """

    on_scalar: Callable[[torch.Tensor], object] | None = None
    on_blend: Callable[[str, Any, Any], object] | None = None
    on_scale: Callable[[Any], object] | None = None
    on_write: Callable[[torch.Tensor], object] | None = None
    on_gradient_read: Callable[[torch.Tensor], object] | None = None
    on_call: Callable[[str, Any, Any], object] | None = None
    segments: list[list[Call]] = field(default_factory=lambda: [[]])
    copies: CopiesOnWrite = field(default_factory=CopiesOnWrite)
    preparations: Preparations = field(init=False)
    _memories: list[_Memories] = field(default_factory=lambda: [_Memories()])
    _paused: int = 0
    _depth: int = 0
    _inside: nn.ModuleList | None = None
    """The modules that the checkpointed function which is running has called."""
    _numbers: set[int] = field(default_factory=set)
    """The memory of the integers that the module which is running was given."""
    _looks_up_rows: bool = False
    """Whether it has looked up rows by these."""
    _graphless: deque[tuple[weakref.ref[torch.Tensor], nn.Module]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_GRAPHLESS)
    )
    """What modules gave last where no graphs are made."""

    def __post_init__(self) -> None:
        super().__init__()
        self.preparations = Preparations(self.copies, KEPT_SEGMENTS)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        caller = sys._getframe(1)
        name = getattr(func, "__name__", "")
        if name in _BLENDS and self.on_blend is not None and not self._paused:
            with torch._C.DisableTorchFunction():
                self.on_blend(name, args, kwargs)
        if name in _SCALES and self.on_scale is not None and not (self._depth or self._paused):
            with torch._C.DisableTorchFunction():
                self.on_scale(args[0] if args else None)
        if self._paused:
            return call_from(caller, func, args, kwargs)
        if self.on_gradient_read is not None and name == "__get__" and func == _READ_GRADIENT and not self._depth:
            self.on_gradient_read(args[0])
        writes = may_write(func)
        if self.on_write is not None and (writes or name == "__set__") and args and isinstance(args[0], torch.Tensor):
            with torch._C.DisableTorchFunction():
                self.on_write(args[0])
        made_of = self.preparations.about_to_write(func, args, kwargs) if writes and not self._depth else None
        if writes and args:
            self.copies.about_to_write(args[0])
        if self._depth:
            if self._numbers and name.rstrip("_") in _BY_ROW_NUMBER and not self._looks_up_rows:
                self._looks_up_rows = _memory_of_numbers(_index_of_rows(args)) in self._numbers
            # A criterion may scale its loss too.
            return self.note_scaling(caller, func, args, kwargs, gradients=False)
        is_recording = torch.is_grad_enabled()
        # To read an attribute of a tensor draws nothing, and writes nothing.
        state = random_state() if name != "__get__" and (is_recording or self.preparations.is_noting) else None
        if is_recording:
            result = self._call(caller, func, args, kwargs, state, writes=writes)
        else:
            result = call_from(caller, func, args, kwargs)
        if writes and args:
            self.preparations.written(args[0], made_of)
        else:
            self.preparations.note(name, func, args, kwargs, result, state)
        if self.on_call is not None:
            with torch._C.DisableTorchFunction():
                self.on_call(name, args, result)
        return result

    def note_scaling(self, caller: FrameType, func: Any, args: Any, kwargs: Any, *, gradients: bool = True) -> Any:
        """Run a call, and hand on what it multiplies or divides, and the number that it gives.

        ``gradients`` says whether what is about to be scaled may be gradients.
        """
        if getattr(func, "__name__", "") not in _SCALES or self._paused:
            return call_from(caller, func, args, kwargs)
        if gradients and self.on_scale is not None:
            with torch._C.DisableTorchFunction():
                self.on_scale(args[0] if args else None)
        result = call_from(caller, func, args, kwargs)
        if self.on_scalar is not None and isinstance(result, torch.Tensor) and result.dim() == 0:
            with torch._C.DisableTorchFunction():
                self.on_scalar(result)
        return result

    def _call(self, caller: FrameType, func: Any, args: Any, kwargs: Any, state: State | None, *, writes: bool) -> Any:
        """Run a call outside modules, and record it where its result has a graph."""
        if state is None:
            result = call_from(caller, func, args, kwargs)
            self._record(func, args, kwargs, result, None)
            return result
        given = list(tensors_in((args, kwargs)))
        versions = versions_of(given)
        before = _about_to_be_filled(given) if writes else None
        result = call_from(caller, func, args, kwargs)
        self._record(func, args, kwargs, result, state, written=written_among(given, versions), before=before)
        return result

    def _record(
        self,
        function: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        state: State | None,
        place: Place | None = None,
        written: tuple[int, ...] = (),
        before: tuple[torch.Tensor, torch.Tensor] | None = None,
        is_followed: bool = True,
        looks_up_rows: bool = False,
    ) -> None:
        if isinstance(result, torch.Tensor):
            cached = isinstance(function, nn.Module) and is_cached(result)
            has_graph = cached or (result.requires_grad and not result.is_leaf)
            if has_graph and result.dim() == 0 and self.on_scalar is not None:
                self.on_scalar(result)
        elif result is None or isinstance(result, (bool, int, float, str, torch.Size, torch.dtype, torch.device)):
            has_graph = False
        else:
            has_graph = any(tensor.requires_grad for tensor in tensors_in(result))
        if not has_graph and not written:
            return
        outputs = [result] if isinstance(result, torch.Tensor) else list(tensors_in(result))
        call = Call(function, args, kwargs, outputs, state, _autocast(), place, written, looks_up_rows=looks_up_rows)
        is_on_tape = has_graph or any(t.requires_grad and not t.is_leaf for t in call.changed)
        if not is_on_tape and not self._holds(call.changed):
            return
        call.is_followed = is_on_tape and is_followed
        if state is not None and same_state(state, random_state()):
            call.rng_state = None
        if before is not None and written:
            self._fill_from_outside(call, *before)
        self._append(call)

    def _append(self, call: Call) -> None:
        self.segments[-1].append(call)

    def _fill_from_outside(self, call: Call, buffer: torch.Tensor, values: torch.Tensor) -> None:
        """A call fills a tensor that was not on the tape: its ``buffer``, or itself, held ``values`` before."""
        view, known = call.changed[0], self._holds([buffer])
        if view is buffer:
            call.before = None if known else (buffer, values)
            return
        region = Region.of(view, buffer)
        if region is None:
            call.is_followed = False
            return
        taken = Call(region, (buffer,), {}, [view])
        taken.before = None if known else (buffer, values)
        self._append(taken)

    def _holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether memory of these tensors is that of a tensor on the tape."""
        own = {memory_of(tensor) for tensor in tensors}
        for segment, known in zip(self.segments, self._memories, strict=True):
            known.take(segment)
        return any(not own.isdisjoint(known.memories) for known in self._memories)

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
                result = call(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth and not self._paused:
                self._graphless.extend((weakref.ref(tensor), module) for tensor in tensors_in(result))
            return result
        state = random_state()
        # A module may write what it computes into the dictionary that it was given.
        lent = lent_weights(module)
        given = (lent, *_copied(args)) if lent else _copied(args), _copied(kwargs)
        tensors = list(tensors_in(given))
        versions = versions_of(tensors)
        self._depth += 1
        self._looks_up_rows = False
        self._numbers = {memory for t in tensors if (memory := _memory_of_numbers(t)) is not None}
        try:
            result = call(*args, **kwargs)
        finally:
            self._depth -= 1
        written = written_among(tensors, versions)
        # Weights that are leaves of their own are no function of those that an optimizer steps on.
        is_followed = not any(weight.requires_grad and weight.is_leaf for weight in lent.values())
        function = Lent(module) if lent else module
        looked_up = self._looks_up_rows
        self._record(
            function, *given, result, state, _place(), written, is_followed=is_followed, looks_up_rows=looked_up
        )
        if self.on_call is not None:
            with torch._C.DisableTorchFunction():
                self.on_call("__call__", given, result)
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
        self._memories.append(_Memories())
        del self.segments[:-KEPT_SEGMENTS]
        del self._memories[:-KEPT_SEGMENTS]
        self.preparations.next_segment()

    def program(self, losses: Sequence[torch.Tensor]) -> Program | None:
        """How the losses of one backward were computed, or None where some of it was not recorded."""
        calls = [call for segment in self.segments for call in segment]
        # Few modules leave in an attribute what a loss is made of, and to look at all of them takes time.
        found = self._program(calls, losses, [[] for _ in calls]) or self._program(calls, losses, _attributes(calls))
        if found is not None:
            self.copies.hold(found)
        return found

    def _program(
        self,
        calls: list[Call],
        losses: Sequence[torch.Tensor],
        attributes: list[list[tuple[str, str, torch.Tensor]]],
    ) -> Program | None:
        outputs = [
            [*c.outputs, *(tensor for _, _, tensor in kept), *c.changed]
            for c, kept in zip(calls, attributes, strict=True)
        ]
        needed = self._needed(calls, outputs, losses)
        if needed is None or not _is_all_followed(calls, needed):
            return None
        before = {id(c.before[0]): c.before[1] for i in sorted(needed, reverse=True) if (c := calls[i]).before}
        buffers: set[int] = set()
        leaves: list[torch.Tensor] = []
        places: dict[int, Leaf] = {}
        renumbered = {old: new for new, old in enumerate(sorted(needed))}
        produced: dict[int, Produced] = {}
        prepared: dict[int, Preparation] = {}

        def encode(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) in produced:
                    return produced[id(value)]
                if id(value) not in places:
                    places[id(value)] = Leaf(len(leaves))
                    how = self.preparations.of(value)
                    if how is not None:
                        prepared[len(leaves)] = how
                    if id(value) in before:
                        buffers.add(len(leaves))
                        value = before[id(value)]
                    leaves.append(value if value.requires_grad else value.detach())
                    return Leaf(len(leaves) - 1)
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
            [call.written for call in chosen],
            frozenset(buffers),
            leaves,
            [leaf._version for leaf in leaves],
            [produced[id(loss)] for loss in losses],
            [call.rng_state for call in chosen],
            [constant for call in chosen for constant in _constants_of(call)],
            any(call.looks_up_rows or _parts_rows(call) for call in chosen),
            any(call.looks_up_rows for call in chosen),
            steps_weights((call.function, call.args, call.given, call.made) for call in chosen),
            any(is_cached(output) for call in chosen for output in call.outputs),
            [call.place for call in chosen],
            _coarsest(losses),
            prepared,
        )

    def makers_of(self, data: Iterable[torch.Tensor]) -> list[nn.Module]:
        """The modules that data came from, which has no graph any more or never had one."""
        memories = {memory for tensor in data if (memory := memory_of(tensor)) is not None}
        calls = [call for segment in self.segments for call in segment]
        outputs = [call.made for call in calls]
        cut = [t for own in outputs for t in own if t.requires_grad and memory_of(t) in memories]
        graphless = [(made(), module) for made, module in self._graphless]
        functions = [calls[i].function for i in self._needed(calls, outputs, cut) or ()]
        return [
            *(function for function in functions if isinstance(function, nn.Module)),
            *(module for made, module in graphless if made is not None and memory_of(made) in memories),
        ]

    @staticmethod
    def _needed(
        calls: list[Call], outputs: list[list[torch.Tensor]], losses: Sequence[torch.Tensor]
    ) -> set[int] | None:
        makers: dict[int, list[int]] = {}
        writers: dict[int, list[int]] = {}
        for index, own in enumerate(outputs):
            for output in own:
                makers.setdefault(id(output), []).append(index)
            for memory in map(memory_of, calls[index].changed):
                if memory is not None:
                    writers.setdefault(memory, []).append(index)

        def made_by(tensors: Iterable[torch.Tensor], until: int) -> Iterator[int]:
            """The calls before ``until`` that made tensors, or wrote into their memory: not the last of them alone."""
            for tensor in tensors:
                wrote = writers.get(memory_of(tensor) or 0, ()) if writers else ()
                yield from (index for index in (*makers.get(id(tensor), ()), *wrote) if index < until)

        if any(id(loss) not in makers for loss in losses):
            return None
        needed: set[int] = set()
        pending = list(made_by(losses, len(calls)))
        while pending:
            index = pending.pop()
            if index not in needed:
                needed.add(index)
                pending.extend(made_by(calls[index].given, index))
        return needed


def _about_to_be_filled(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The buffer that a call may put results with a graph into, and a copy of what it holds; None where there is none.

    It is that of the call's first tensor, if that has no graph yet and what is to be written into it has one.
    """
    if not given or given[0].requires_grad or not any(tensor.requires_grad for tensor in given[1:]):
        return None
    buffer = given[0] if given[0]._base is None else given[0]._base
    return buffer, buffer.detach().clone()


def _is_all_followed(calls: Sequence[Call], needed: set[int]) -> bool:
    """Whether running the needed calls again does all that was done to their memory."""
    last: dict[int, tuple[torch.Tensor, int | None]] = {}
    for call in calls:
        for tensor, version in zip(call.made, call.versions, strict=True):
            memory = memory_of(tensor)
            if memory is not None and tensor.requires_grad:
                last[memory] = tensor, version
    memories = {memory_of(tensor) for index in needed for tensor in calls[index].made}
    seen = all(version_of(t) == version for memory, (t, version) in last.items() if memory in memories)
    return seen and all(calls[index].is_followed for index in needed)


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
    if isinstance(call.function, Region):
        return not call.function.every_row
    name = getattr(call.function, "__name__", "")
    if name in ("index_put", "index_put_"):
        first = call.args[1][0] if call.args[1] else None
        return first is not None and first.dtype is not torch.bool
    if name in ("__getitem__", "__setitem__"):
        index = call.args[1][0] if isinstance(call.args[1], tuple) and call.args[1] else call.args[1]
        if isinstance(index, torch.Tensor):
            return _is_numbers(index)
        return isinstance(index, int) or (isinstance(index, slice) and index != slice(None))
    if name.rstrip("_") in _BY_ROW_NUMBER:
        return True
    if name not in ("chunk", "split", "tensor_split", "unbind", "narrow", "select"):
        return False
    at = {"unbind": 1, "narrow": 1, "select": 1}.get(name, 2)
    axis = call.kwargs.get("dim", call.args[at] if len(call.args) > at else 0)
    return isinstance(axis, int) and axis % max(call.args[0].dim(), 1) == 0


def _index_of_rows(args: Sequence[Any]) -> object:
    """What a call that is given a dimension looks rows up by, None where it looks up along another than the first."""
    return args[2] if len(args) > 2 and args[1] in (0, -args[0].dim()) else None


def _memory_of_numbers(value: object) -> int | None:
    """The memory of a tensor of integers; None for anything else."""
    return memory_of(value) if isinstance(value, torch.Tensor) and _is_numbers(value) else None


def _is_numbers(index: torch.Tensor) -> bool:
    return not index.is_floating_point() and index.dtype is not torch.bool


def _constants_of(call: Call) -> list[object]:
    """What a call was given beside tensors that makes it another: words, and numbers unless all it gave is numbers."""
    found: list[object] = [v for v in leaves_of((call.args, call.kwargs)) if isinstance(v, (bool, int, float, str))]
    return found if any(output.dim() for output in call.made) else [c for c in found if isinstance(c, str)]


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


class ScalingNotes(TorchFunctionMode):
    """Hands on to a tape's ``on_scalar`` and ``on_scale`` what is multiplied and divided, and records nothing.

    It is entered where nothing is run again, and the source is to be read all the same.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        return self._tape.note_scaling(sys._getframe(1), func, args, kwargs)

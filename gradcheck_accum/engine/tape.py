"""A tape of how a loss came from data: the calls outside modules, each outermost module call counting as one.

Only calls whose result needs a gradient are on the tape, so whatever prepared the data is not: the prepared tensors
are the tape's leaves, and a large batch is the same tape over the leaves of several micro-batches, concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

KEPT_SEGMENTS = 3
"""How many backwards a recorded call stays usable for: a tensor may be made before one backward and used by another."""


@dataclass(slots=True)
class Call:
    """One recorded call, with its arguments and the tensors that it gave."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor]
    rng_state: torch.Tensor | None = None
    random: bool = False
    autocast: tuple[str, torch.dtype] | None = None


@dataclass(frozen=True, slots=True)
class _Produced:
    """The place of an argument that an earlier call of the tape gave: which call, which of its tensors."""

    call: int
    output: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The place of an argument that the tape did not make."""

    index: int


@dataclass(slots=True)
class Program:
    """How one micro-batch's loss is computed from its leaves, free of the tensors in between."""

    steps: list[tuple[Callable[..., Any], Any, Any, tuple[str, torch.dtype] | None]]
    leaves: list[torch.Tensor]
    versions: list[int]
    result: Any
    rng_states: list[torch.Tensor | None]
    random: bool

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that it calls."""
        return [function for function, *_ in self.steps if isinstance(function, nn.Module)]

    @property
    def lowest_dtype(self) -> torch.dtype | None:
        """The autocast dtype, where any of it ran under autocast."""
        return next((autocast[1] for *_, autocast in self.steps if autocast is not None), None)

    def is_intact(self) -> bool:
        """Whether no leaf has been changed in place since it was recorded."""
        return all(leaf._version == version for leaf, version in zip(self.leaves, self.versions, strict=True))

    def same_shape(self, other: Program) -> bool:
        """Whether two programs make the same calls."""
        return len(self.leaves) == len(other.leaves) and [_name(s[0]) for s in self.steps] == [
            _name(s[0]) for s in other.steps
        ]

    def run(self, leaves: list[torch.Tensor], *, with_rng: bool = False) -> torch.Tensor:
        """The loss over ``leaves``; ``with_rng`` draws the random numbers that the recording drew.

        Raises whatever a call raises that does not fit the leaves.
        """
        made: list[list[torch.Tensor]] = []
        for (function, args, kwargs, autocast), state in zip(self.steps, self.rng_states, strict=True):
            if with_rng and state is not None:
                torch.set_rng_state(state)
            args = _fill(args, leaves, made)
            kwargs = _fill(kwargs, leaves, made)
            if autocast is None:
                result = function(*args, **kwargs)
            else:
                with torch.autocast(autocast[0], dtype=autocast[1]):
                    result = function(*args, **kwargs)
            made.append(list(tensors_in(result)))
        value = _fill(self.result, leaves, made)
        if not isinstance(value, torch.Tensor):
            raise TypeError("the recorded calls give no tensor")
        return value


def _name(function: Callable[..., Any]) -> object:
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
        case _Produced():
            return made[value.call][value.output]
        case _Leaf():
            return leaves[value.index]
        case dict():
            return {key: _fill(item, leaves, made) for key, item in value.items()}
        case list():
            return [_fill(item, leaves, made) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(_fill(item, leaves, made) for item in value)
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

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._depth == 0 and not self._paused and torch.is_grad_enabled():
            self._record(func, args, kwargs, result)
        return result

    def _record(self, function: Any, args: Any, kwargs: Any, result: Any, **details: Any) -> None:
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
            self.segments[-1].append(Call(function, args, kwargs, kept, autocast=_autocast(), **details))

    def call_module(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an outermost module call, and record it as one."""
        if self._depth or self._paused or not torch.is_grad_enabled():
            self._depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
        state = torch.get_rng_state()
        # A module may write what it computes into the dictionary that it was given.
        given = _copied(args), _copied(kwargs)
        self._depth += 1
        try:
            result = call(*args, **kwargs)
        finally:
            self._depth -= 1
        random = not torch.equal(state, torch.get_rng_state())
        self._record(module, *given, result, rng_state=state if random else None, random=random)
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

    def program(self, loss: torch.Tensor) -> Program | None:
        """How ``loss`` was computed, or None where some of it was not recorded."""
        calls = [call for segment in self.segments for call in segment]
        made_by: dict[int, _Produced] = {}
        for index, call in enumerate(calls):
            for position, output in enumerate(call.outputs):
                made_by[id(output)] = _Produced(index, position)
        needed = self._needed(calls, loss)
        if needed is None:
            return None
        leaves: list[torch.Tensor] = []
        places: dict[int, _Leaf] = {}
        renumbered = {old: new for new, old in enumerate(sorted(needed))}
        produced: dict[int, _Produced] = {}

        def encode(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) in produced:
                    return produced[id(value)]
                if id(value) not in places:
                    places[id(value)] = _Leaf(len(leaves))
                    leaves.append(value if value.requires_grad else value.detach())
                return places[id(value)]
            if isinstance(value, dict):
                return {key: encode(item) for key, item in value.items()}
            if isinstance(value, list):
                return [encode(item) for item in value]
            if type(value) is tuple:
                return tuple(encode(item) for item in value)
            return value

        steps = []
        for old in sorted(needed):
            call = calls[old]
            steps.append((call.function, encode(call.args), encode(call.kwargs), call.autocast))
            for position, output in enumerate(call.outputs):
                produced[id(output)] = _Produced(renumbered[old], position)
        if id(loss) not in produced or any(leaf.requires_grad and not leaf.is_leaf for leaf in leaves):
            return None
        chosen = [calls[old] for old in sorted(needed)]
        return Program(
            steps,
            leaves,
            [leaf._version for leaf in leaves],
            produced[id(loss)],
            [call.rng_state for call in chosen],
            any(call.random for call in chosen),
        )

    @staticmethod
    def _needed(calls: list[Call], loss: torch.Tensor) -> set[int] | None:
        makers: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            for output in call.outputs:
                makers.setdefault(id(output), []).append(index)
        if id(loss) not in makers:
            return None
        needed: set[int] = set()
        pending = list(makers[id(loss)])
        while pending:
            index = pending.pop()
            if index in needed:
                continue
            needed.add(index)
            for tensor in tensors_in((calls[index].args, calls[index].kwargs)):
                # A tensor changed in place was made by several calls: all that came before this one.
                pending.extend(maker for maker in makers.get(id(tensor), []) if maker < index)
        return needed


def _autocast() -> tuple[str, torch.dtype] | None:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None


def concatenate(programs: Iterable[Program]) -> list[torch.Tensor]:
    """The leaves of several micro-batches as those of one batch.

    A leaf that is one object in all of them (class weights, a parameter) stays as it is; others are joined along
    their leading dimension. Raises ValueError where they do not fit together.
    """
    programs = list(programs)
    first = programs[0]
    if not all(first.same_shape(other) for other in programs[1:]):
        raise ValueError("the micro-batches were computed by different calls")
    joined: list[torch.Tensor] = []
    for position, leaf in enumerate(first.leaves):
        own = [program.leaves[position] for program in programs]
        if all(other is leaf or _is_same_view(other, leaf) for other in own):
            joined.append(leaf)
        elif leaf.dim() == 0:
            if any(not torch.equal(other, leaf) for other in own):
                raise ValueError("a number that the loss was computed with differs between micro-batches")
            joined.append(leaf)
        elif any(other.shape[1:] != leaf.shape[1:] for other in own):
            raise ValueError("the micro-batches' tensors have different shapes")
        elif all(_are_offsets(other) for other in own):
            raise ValueError("positions in one micro-batch's data mean others in a large batch's")
        else:
            # Data may need a gradient too (an adversarial example, a gradient penalty, reentrant checkpointing).
            joined.append(torch.cat([other.detach() for other in own]).requires_grad_(leaf.requires_grad))
    return joined


def _are_offsets(leaf: torch.Tensor) -> bool:
    """Whether a tensor looks like the places where the rows of a longer one begin: 0, 7, 12, ..."""
    if leaf.dim() != 1 or leaf.numel() < 2 or leaf.is_floating_point() or leaf.dtype is torch.bool:
        return False
    rises = bool((leaf[1:] >= leaf[:-1]).all())
    return rises and int(leaf[0]) == 0 and int(leaf[-1]) >= leaf.numel()


def _is_same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.data_ptr() == right.data_ptr()
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.data_ptr() != 0
    )

"""Finds what the source counts to before an optimizer's step: K, located once for every place that steps.

The number itself is read at each step, because it may change. Its counter is also read where gradients are cleared, if
that is in the loop that counts: micro-batches that were counted by then and did not run came before the clearing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType

from gradcheck_accum.ledger.events import Listed, Quotient, Step, WindowBound
from gradcheck_accum.verify.provenance.deciding import deciding_bounds, number_of_parts
from gradcheck_accum.verify.provenance.following import MOST_FRAMES, Place, class_of_own, place_of
from gradcheck_accum.verify.provenance.lines import LOOPS, CallChain, Line
from gradcheck_accum.verify.provenance.origins import Origins
from gradcheck_accum.verify.provenance.quotients import quotient_of
from gradcheck_accum.verify.provenance.readable import steps_of, value_of
from gradcheck_accum.verify.provenance.syntax import Syntax, own_frame, syntax_of
from gradcheck_accum.verify.stack.frames import user_frames

_MOST_PLACES = 1024
"""The most places that are cached: more come only from code that is created again and again."""

_Named = tuple[tuple[int, int], ...]
"""A chain of calls with the identities of code objects, which are faster to compare."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """The loop whose turns a counter counts, and the code that runs it."""

    code: CodeType
    loop: ast.AST
    syntax: Syntax
    _within: dict[int, bool] = field(default_factory=dict)

    def is_in(self, frame: FrameType) -> bool:
        """Whether a frame is in the loop now."""
        if frame.f_code is not self.code:
            return False
        if frame.f_lasti not in self._within:
            self._within[frame.f_lasti] = any(
                node is self.loop for node in self.syntax.around(self.syntax.node_at(frame))
            )
        return self._within[frame.f_lasti]


@dataclass(frozen=True, slots=True)
class _Bound:
    """The expression of K and that of its counter, each with its user frame, numbered from the innermost.

    The number is None where the expression belongs to a frame that no longer exists. ``listed`` is the list that a loop
    ran over, and ``lengths`` the origins of its length; ``parts`` are those of the number of parts that the loop around
    the step cuts data into, ``count`` those of what has come to K.
    """

    node: ast.expr | None = None
    level: int | None = None
    origins: frozenset[str] = frozenset()
    counter: ast.expr | None = None
    counter_level: int | None = None
    turns: _Turns | None = None
    first: int | None = None
    listed: ast.expr | None = None
    lengths: frozenset[str] = frozenset()
    quotient: Quotient | None = None
    parts: frozenset[str] = frozenset()
    count: frozenset[str] = frozenset()


_read: dict[tuple[_Named, frozenset[_Named]], tuple[list[CallChain], _Bound | None, _Turns | None]] = {}
"""Cache: what was read at each place of a step, for backwards at these places, and the loop around it.

Code objects are kept alive so that their identities stay unique.
"""


def call_chain() -> CallChain:
    """The current call chain of the user's code."""
    return _chain(user_frames(MOST_FRAMES))


class WindowCounters:
    """What the source counts to before the steps of each optimizer of a run, and the values of its counters."""

    def __init__(self) -> None:
        self._bounds: dict[str, _Bound] = {}
        self._loops: dict[str, _Turns | None] = {}
        self._reached: dict[str, int] = {}

    def at_step(self, optimizer: str, backwards: Iterable[CallChain]) -> WindowBound | None:
        """What the source counts to before the step that is being made, for a window of these backwards."""
        frames = user_frames(MOST_FRAMES)
        bound, self._loops[optimizer] = _read_around(frames, backwards)
        if bound is None:
            self._bounds.pop(optimizer, None)
            return None
        self._bounds[optimizer] = bound
        steps, reached = _read_at(bound.node, bound.level, frames), _read_at(bound.counter, bound.counter_level, frames)
        listed = _listed_at(bound, frames)
        if steps is None and not bound.origins and listed is None and not bound.parts:
            return None
        return WindowBound(steps, bound.origins, reached, bound.first, listed, bound.quotient, bound.parts, bound.count)

    def counted(self, step: Step) -> int | None:
        """How many micro-batches the source counted in the window of ``step``, or K; called once for each step.

        None where the source shows no count.
        """
        bound, before = step.counted_by, self._reached.pop(step.optimizer, None)
        if bound is None:
            return None
        if bound.reached is not None:
            self._reached[step.optimizer] = bound.reached
        counted = bound.counted_since(before)
        return bound.steps if counted is None else counted

    def now(self, optimizers: Iterable[str]) -> tuple[tuple[str, int], ...]:
        """The values of the counters that decide on the steps of ``optimizers``, if their loop is still running."""
        bounds = [(name, self._bounds[name]) for name in optimizers if name in self._bounds]
        if all(bound.turns is None for _, bound in bounds):
            return ()
        frames = [frame for frame in map(own_frame, user_frames(MOST_FRAMES)) if frame is not None]
        return tuple((name, reached) for name, bound in bounds if (reached := _reached_in(bound, frames)) is not None)

    def stepping(self, optimizers: Iterable[str]) -> frozenset[str]:
        """Those of ``optimizers`` that have stepped in a loop which is still running."""
        loops = [(name, loop) for name in optimizers if (loop := self._loops.get(name)) is not None]
        frames = [own_frame(frame) for frame in user_frames(MOST_FRAMES)] if loops else []
        return frozenset(name for name, loop in loops if any(f is not None and loop.is_in(f) for f in frames))


def _reached_in(bound: _Bound, frames: Iterable[FrameType]) -> int | None:
    if bound.turns is None or bound.counter is None:
        return None
    counting = next((frame for frame in frames if bound.turns.is_in(frame)), None)
    return None if counting is None else steps_of(bound.counter, counting)


def _read_around(frames: list[FrameType], backwards: Iterable[CallChain]) -> tuple[_Bound | None, _Turns | None]:
    """What decides on the step that is being made, and the innermost loop around it."""
    own, ran = _chain(frames), {_named(chain): chain for chain in backwards}
    key = _named(own), frozenset(ran)
    known = _read.get(key)
    if known is None:
        if len(_read) >= _MOST_PLACES:
            _read.clear()
        chains = list(ran.values())
        loop = next(filter(None, map(_turns_around, frames)), None)
        ran_from = [chain for chain in chains if chain]
        known = _read[key] = [own, *chains], _search(frames, ran_from) or _search_parts(frames, ran_from), loop
    return known[1:]


def _read_at(node: ast.expr | None, level: int | None, frames: list[FrameType]) -> int | None:
    frame = None if level is None else own_frame(frames[level])
    return None if frame is None or node is None else steps_of(node, frame)


def _listed_at(bound: _Bound, frames: list[FrameType]) -> Listed | None:
    """The list that a loop ran over, with its length now; None where that is known to be no list."""
    frame = None if bound.level is None or bound.listed is None else own_frame(frames[bound.level])
    if frame is None or bound.listed is None:
        return None
    value = value_of(bound.listed, frame)
    return Listed(len(value), bound.lengths) if isinstance(value, (list, tuple)) else None


def _chain(frames: Iterable[FrameType]) -> CallChain:
    return tuple((frame.f_code, frame.f_lasti) for frame in frames)


def _named(chain: CallChain) -> _Named:
    return tuple((id(code), instruction) for code, instruction in chain)


def _search(frames: list[FrameType], backwards: list[CallChain]) -> _Bound | None:
    """The innermost bound that decides; None where there are several different numbers, since K is one."""
    for level, frame in enumerate(frames):
        syntax = syntax_of(frame)
        if syntax is None:
            continue
        node = syntax.node_at(frame)
        line = Line(place_of(frame, node, syntax), node, backwards)
        bounds = deciding_bounds(line)
        if bounds is not None:
            if len({ast.unparse(bound.number) for bound in bounds if bound.number is not None}) > 1 or not bounds:
                return None
            found = bounds[0]
            counter_level = (
                None if found.counter is None else _level_of(found.counter, found.place, line, frames, level)
            )
            lengths = (Origins().of_length(listed, found.place) for listed in found.listed)
            number = found.number
            return _Bound(
                number,
                _level_of(number or found.listed[0], found.place, line, frames, level),
                frozenset() if number is None else Origins().of(number, found.place) or frozenset(),
                found.counter,
                counter_level,
                None if counter_level is None else _turns_around(frames[counter_level]),
                found.first,
                found.listed[0] if found.listed else None,
                frozenset[str]().union(*lengths),
                None if number is None else quotient_of(number, found.place),
                count=frozenset() if found.count is None else Origins().of(found.count, found.place) or frozenset(),
            )
    return None


def _search_parts(frames: list[FrameType], backwards: list[CallChain]) -> _Bound | None:
    """The number of parts of the data where the loop around the step, in its own function, takes one in each turn."""
    syntax = syntax_of(frames[0]) if frames else None
    if syntax is None:
        return None
    node = syntax.node_at(frames[0])
    line = Line(place_of(frames[0], node, syntax), node, backwards)
    number = number_of_parts(line)
    return None if number is None else _Bound(parts=Origins().of(number, line.place) or frozenset())


def _turns_around(frame: FrameType) -> _Turns | None:
    """The innermost loop that a frame is in now."""
    own = own_frame(frame)
    syntax = None if own is None else syntax_of(own)
    if own is None or syntax is None:
        return None
    node = syntax.node_at(own)
    scope = syntax.scope_of(node)
    loop = next((n for n in syntax.around(node) if isinstance(n, LOOPS)), None)
    return None if loop is None or syntax.scope_of(loop) is not scope else _Turns(own.f_code, loop, syntax)


def _level_of(bound: ast.expr, place: Place, line: Line, frames: list[FrameType], level: int) -> int | None:
    """The number of the frame that a bound can be read in: its own, or that of the line if it is the same there."""
    if place.frame is not None:
        return next((number for number, frame in enumerate(frames) if own_frame(frame) is place.frame), None)
    if place is line.place:
        return level
    names = [node.id for node in ast.walk(bound) if isinstance(node, ast.Name)]
    own = [class_of_own(name, place) for name in names]
    if all(cls is not None and cls is class_of_own(name, line.place) for name, cls in zip(names, own, strict=True)):
        return level
    return None

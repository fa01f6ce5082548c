"""What the source at an optimizer's step counts to before it steps: K, found once for every place that steps.

The number itself is read at each step: it may change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

from gradcheck_accum.events import WindowBound
from gradcheck_accum.verify.frames import user_frames
from gradcheck_accum.verify.provenance.deciding import deciding_bounds
from gradcheck_accum.verify.provenance.following import MOST_FRAMES, Place, class_of_own, place_of
from gradcheck_accum.verify.provenance.lines import CallChain, Line
from gradcheck_accum.verify.provenance.origins import Origins
from gradcheck_accum.verify.provenance.readable import steps_of
from gradcheck_accum.verify.provenance.syntax import own_frame, syntax_of

_MOST_PLACES = 1024
"""Places beyond which what was read is forgotten: code that is made anew all the time is no loop's."""

_Named = tuple[tuple[int, int], ...]
"""A chain of calls by the identities of their code, which are quicker to compare."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """Where K stands, and what is tested against it: each in a frame of the user's, by its number from the innermost.

    None where it was read in a frame that is gone.
    """

    node: ast.expr
    level: int | None
    origins: frozenset[str]
    counter: ast.expr | None
    counter_level: int | None
    first: int | None


_read: dict[tuple[_Named, frozenset[_Named]], tuple[list[CallChain], _Bound | None]] = {}
"""What was read at each place of a step, for backwards at these places; code is held, so that its identity is its."""


def call_chain() -> CallChain:
    """Where the user's code is now."""
    return _chain(user_frames(MOST_FRAMES))


def bound_of_window(backwards: Iterable[CallChain]) -> WindowBound | None:
    """What the source counts to that decides on the step which is being made, with a window of these backwards."""
    frames = user_frames(MOST_FRAMES)
    own, ran = _chain(frames), {_named(chain): chain for chain in backwards}
    key = _named(own), frozenset(ran)
    known = _read.get(key)
    if known is None:
        if len(_read) >= _MOST_PLACES:
            _read.clear()
        chains = list(ran.values())
        known = _read[key] = [own, *chains], _search(frames, [chain for chain in chains if chain])
    bound = known[1]
    if bound is None:
        return None
    steps, reached = _read_at(bound.node, bound.level, frames), _read_at(bound.counter, bound.counter_level, frames)
    return WindowBound(steps, bound.origins, reached, bound.first) if steps is not None or bound.origins else None


def _read_at(node: ast.expr | None, level: int | None, frames: list[FrameType]) -> int | None:
    frame = None if level is None else own_frame(frames[level])
    return None if frame is None or node is None else steps_of(node, frame)


def _chain(frames: Iterable[FrameType]) -> CallChain:
    return tuple((frame.f_code, frame.f_lasti) for frame in frames)


def _named(chain: CallChain) -> _Named:
    return tuple((id(code), instruction) for code, instruction in chain)


def _search(frames: list[FrameType], backwards: list[CallChain]) -> _Bound | None:
    """The innermost bound that decides; none where several numbers do: K is one."""
    for level, frame in enumerate(frames):
        syntax = syntax_of(frame)
        if syntax is None:
            continue
        node = syntax.node_at(frame)
        line = Line(place_of(frame, node, syntax), node, backwards)
        bounds = deciding_bounds(line)
        if bounds is not None:
            if len({ast.unparse(bound.number) for bound in bounds}) != 1:
                return None
            found = bounds[0]
            counter_level = (
                None if found.counter is None else _level_of(found.counter, found.place, line, frames, level)
            )
            return _Bound(
                found.number,
                _level_of(found.number, found.place, line, frames, level),
                Origins().of(found.number, found.place) or frozenset(),
                found.counter,
                counter_level,
                found.first,
            )
    return None


def _level_of(bound: ast.expr, place: Place, line: Line, frames: list[FrameType], level: int) -> int | None:
    """The frame that a bound can be read in: its own, or that of the line where it is the same there."""
    if place.frame is not None:
        return next((number for number, frame in enumerate(frames) if own_frame(frame) is place.frame), None)
    if place is line.place:
        return level
    names = [node.id for node in ast.walk(bound) if isinstance(node, ast.Name)]
    own = [class_of_own(name, place) for name in names]
    if all(cls is not None and cls is class_of_own(name, line.place) for name, cls in zip(names, own, strict=True)):
        return level
    return None

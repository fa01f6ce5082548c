"""The ranks of one run, as its leader sees them: they make their steps together, and one step is what all of them do.

A step's data is that of all ranks: its distribution over them is a split like that into micro-batches. What a rank
measures of its own gradient holds for all if they step on their average; if they do not, the worst counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol

from gradcheck_accum.comparing.messages import Arrival, GradientDistance, Numbers, Order, Over, Part
from gradcheck_accum.comparing.rows import Rows

PATIENCE = 120.0
"""Seconds that a rank at a step waits for the others, which may be waiting for what it does after the step."""


class Rank(Protocol):
    """One of the ranks of a run."""

    def order(self, order: Order, path: str = "") -> None:
        """Give an order, if it is there to take one."""

    def answer(self) -> Any:
        """Its answer to an order that requires one; None if it died."""

    def leave(self) -> None:
        """Stop leading it: it ends at its next step."""


NextOf = Callable[[Sequence[int], "float | None"], "tuple[int, Arrival | Over | None] | None"]
"""Waits for the next of some ranks: which it is, and what it has come to (None: it is gone).

None where none of them has come to anything in so many seconds.
"""


class Ranks:
    """A run of several ``ranks``; ``next_of`` waits for the next of them, and one for the others with ``patience``."""

    def __init__(self, ranks: Sequence[Rank], next_of: NextOf, patience: float = PATIENCE) -> None:
        self._ranks, self._next_of, self._patience = ranks, next_of, patience
        self.failure = ""
        """Why they cannot be led any more, empty if they can."""
        self._over: dict[int, Over] = {}
        self._at_step: list[int] = []
        self._is_alone = False

    def receive(self) -> Arrival | Over | None:
        """Wait for their next step or their end; None if one of them died."""
        awaited = [rank for rank in range(len(self._ranks)) if rank not in self._over]
        arrived: dict[int, Arrival] = {}
        while awaited:
            patience = self._patience if arrived and not self._is_alone else None
            found = self._next_of(awaited, patience)
            if found is None:
                self._fail(f"rank {awaited[0]} makes no step where rank {min(arrived)} makes one")
                return None
            rank, message = found
            awaited.remove(rank)
            if message is None:
                self._dismiss()
                return None
            if isinstance(message, Over):
                self._over[rank] = message
            else:
                arrived[rank] = message
        self._at_step = sorted(arrived)
        if not arrived:
            return _ended_together(self._over)
        names = sorted({one.optimizer for one in arrived.values()})
        if len(names) > 1:
            self._fail(f"its ranks step different optimizers at once ({' and '.join(names)})")
            return None
        return stepped_together(arrived)

    def tell(self, order: Order, path: str = "") -> Any:
        """Give all that are at the step an order; what they answer together, where they do."""
        self._is_alone = self._is_alone or order is Order.ALONE
        for rank in self._at_step:
            self._ranks[rank].order(order, path)
        if not order.is_answered:
            return None
        answers = [self._ranks[rank].answer() for rank in self._at_step]
        measured = [answer for answer in answers if isinstance(answer, Numbers)]
        return worst_of(measured) if len(measured) == len(answers) and measured else None

    def _fail(self, why: str) -> None:
        self.failure = f"its ranks cannot be compared step by step: {why}"
        self._dismiss()

    def _dismiss(self) -> None:
        for rank in self._ranks:
            rank.leave()


def stepped_together(arrived: Mapping[int, Arrival]) -> Arrival:
    """The step that several ranks make together."""
    each = [arrived[rank] for rank in sorted(arrived)]
    first = each[0]
    known = [one.rows for one in each if one.rows is not None]
    weights = list(dict.fromkeys(one.weights for one in each))
    return replace(
        first,
        micro_batches=sum(one.micro_batches for one in each),
        rows=Rows.together(known) if len(known) == len(each) else None,
        weights=b"".join(weights),
        random=any(one.random for one in each),
        couples=tuple(dict.fromkeys(name for one in each for name in one.couples)),
        loss_tolerance=max(one.loss_tolerance for one in each),
        is_idle=all(one.is_idle for one in each),
        parts=tuple(Part(one.micro_batches, one.rows) for one in each),
    )


def _ended_together(over: Mapping[int, Over]) -> Over:
    left: dict[str, Rows | None] = {}
    for name in dict.fromkeys(name for one in over.values() for name in one.left):
        known = [one.left[name] for one in over.values() if name in one.left]
        rows = [each for each in known if each is not None]
        left[name] = Rows.together(rows) if len(rows) == len(known) else None
    return Over(left, over[min(over)].reads)


def worst_of(measured: Sequence[Numbers]) -> Numbers:
    """What several ranks measured of one step: the numbers of the one that is farthest off.

    A gradient is the average of what the ranks computed, and so is what rounding may make of it.
    """
    worst = max(measured, key=lambda one: max(map(_off, _both(one))))
    used = replace(worst.used, allowed=fmean([one.used.allowed for one in measured]))
    clips = [one.before_clip.allowed for one in measured if one.before_clip is not None]
    before = None if worst.before_clip is None else replace(worst.before_clip, allowed=fmean(clips))
    moved = [one.update for one in measured if one.update is not None]
    update = max(
        moved, key=lambda one: (one.is_same is False, math.inf if one.error is None else one.error), default=None
    )
    return replace(worst, used=used, before_clip=before, update=update)


def _both(numbers: Numbers) -> list[GradientDistance]:
    return [numbers.used] if numbers.before_clip is None else [numbers.used, numbers.before_clip]


def _off(distance: GradientDistance) -> float:
    return math.inf if distance.error is None else distance.error

"""Kinds of events: events of one kind differ only in numbers that run on from one event to the next.

A loop repeats itself. The content of an event without such numbers (the number of the micro-batch, how many batches a
pass has loaded, the value of a counter), together with how far these have run on since the event before, is its *kind*.
A run of very many windows has few kinds of events: this keeps its past small
(`gradcheck_accum.verify.book.past_events`), and what was read from a stretch of events holds for every stretch of the
same kinds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from gradcheck_accum.ledger.events import (
    AverageUpdate,
    Backward,
    ChangedByStep,
    Clip,
    Event,
    GraphsHeld,
    Rework,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)

_Relative: TypeAlias = tuple[bool, int | None]
"""A number relative to the one before: (True, increase) if it ran on from there, otherwise (False, number)."""

_MOST = 1 << 10
"""Kinds that are known at a time: where all losses have different units, each event is a kind of its own."""

_REMEMBERED = 1 << 10
"""Passes, and data, that are remembered: those of long ago do not return."""


@dataclass(slots=True)
class RunningNumbers:
    """The current values of the numbers that run on."""

    micro_batch: int = -1
    epoch: int = 0
    given: dict[int | None, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    backwards: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    """By the identity of data: which backward ran on it last."""
    ran_on: dict[int, int] = field(default_factory=dict)
    """The inverse: the data of each backward."""

    def copy(self) -> RunningNumbers:
        """An independent copy."""
        return replace(
            self,
            given=dict(self.given),
            reached=dict(self.reached),
            batches=dict(self.batches),
            ran_on=dict(self.ran_on),
        )

    def relative(self, event: Event) -> Hashable:
        """The numbers of an event relative to these; events of one kind have the same."""
        if isinstance(event, Backward):
            return (
                event.micro_batch - self.micro_batch,
                None if event.epoch is None else event.epoch - self.epoch,
                _relative(event.given, self.given.get(event.epoch), may_stay=True),
                None if event.batch is None else self.backwards - self.batches.get(event.batch, self.backwards),
            )
        if isinstance(event, Step):
            bound = event.counted_by
            return None if bound is None else _relative(bound.reached, self.reached.get(event.optimizer))
        if isinstance(event, ZeroGrad) and event.counted:
            return tuple((name, _relative(count, self.reached.get(name))) for name, count in event.counted)
        return None

    def like(self, example: Event, relative: Any) -> Event:
        """An event like ``example`` whose numbers, relative to these, are ``beside``."""
        if isinstance(example, Backward):
            ahead, passes, given, batch = relative
            epoch = None if passes is None else self.epoch + passes
            return replace(
                example,
                micro_batch=self.micro_batch + ahead,
                epoch=epoch,
                given=_number(given, self.given.get(epoch)),
                batch=None if batch is None else self.ran_on.get(self.backwards - batch, -1 - self.backwards),
            )
        if isinstance(example, Step) and example.counted_by is not None:
            reached = _number(relative, self.reached.get(example.optimizer))
            return replace(example, counted_by=replace(example.counted_by, reached=reached))
        if isinstance(example, ZeroGrad) and example.counted:
            counts = ((name, _number(own, self.reached.get(name)) or 0) for name, own in relative)
            return replace(example, counted=tuple(counts))
        return replace(example)

    def run_on(self, event: Event) -> None:
        """An event has happened."""
        if isinstance(event, Backward):
            self.micro_batch = event.micro_batch
            if event.epoch is not None:
                self.epoch = event.epoch
            if event.given is not None:
                _remember(self.given, event.epoch, event.given)
            if event.batch is not None:
                _remember(self.batches, event.batch, self.backwards)
                _remember(self.ran_on, self.backwards, event.batch)
            self.backwards += 1
        elif isinstance(event, Step):
            if event.counted_by is not None and event.counted_by.reached is not None:
                self.reached[event.optimizer] = event.counted_by.reached
        elif isinstance(event, ZeroGrad):
            self.reached.update(event.counted)

    def forget_data(self) -> None:
        """Forget the identities of data, because its memory may be reused."""
        self.batches.clear()
        self.ran_on.clear()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind by its ``number``; ``beside`` are the numbers of its events relative to those before.

    The ``first`` event is kept alive because the kind depends on the identity of its terms.
    """

    number: int
    relative: Hashable
    first: Event


class Kinds:
    """Numbers the kinds of events; forgotten kinds get new numbers when they recur."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Kind] = {}
        self._next = count()

    def of(self, event: Event, numbers: RunningNumbers) -> Kind:
        """The kind of an event; ``numbers`` are as they were before it."""
        said = said_by(event)
        if said is None:
            # It is a kind of its own.
            return Kind(next(self._next), None, event)
        relative = numbers.relative(event)
        key = said, relative
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = Kind(next(self._next), relative, event)
        return known


def said_by(event: Event, terms: Hashable = None) -> Hashable:
    """The content of an event without the numbers that run on; None if it is a kind of its own.

    For a backward, ``terms`` replaces its terms if given.
    """
    where = type(event), event.where, event.where.through
    if isinstance(event, Backward):
        return (
            where,
            event.stores,
            # Terms are interned, and ``==`` would ignore the places of their factors.
            id(event.terms) if terms is None else terms,
            event.grad_scaled,
            event.synced,
            event.ranks,
            event.kept_apart,
            event.rescale,
            event.cut_off,
            event.computation,
            event.past_wrapper,
            event.of_one_batch,
        )
    if isinstance(event, Step):
        bound = event.counted_by
        counted = (
            None
            if bound is None
            else (bound.steps, bound.origins, bound.first, bound.listed, bound.quotient, bound.parts, bound.count)
        )
        own = event.accumulation_steps, event.through_scaler, event.skipped, event.again, event.unread
        by_hand = event.by_hand, event.rates_alone, event.used
        return where, event.optimizer, event.stores, counted, own, by_hand
    if isinstance(event, ZeroGrad):
        return where, event.stores, event.within, event.seen_later
    if isinstance(event, SchedulerStep):
        return where, event.scheduler, event.stores, event.horizon, event.since, event.by_hand
    if isinstance(event, AverageUpdate):
        return where, event.average, event.stores, event.since
    if isinstance(event, GraphsHeld):
        return where, event.count, event.read
    if isinstance(event, Rework):
        return where, event.stores, event.only_adds
    if isinstance(event, (ChangedByStep, Clip, Unscale)):
        return where, event.stores
    return where if isinstance(event, ScalerUpdate) else None


def _relative(number: int | None, before: int | None, *, may_stay: bool = False) -> _Relative:
    """A number relative to the one before; an equal number has run on only if it ``may_stay``."""
    if number is None or before is None or number < before or (number == before and not may_stay):
        return False, number
    return True, number - before


def _number(relative: _Relative, before: int | None) -> int | None:
    """The inverse of `_beside`: the number from its relative form and the one before."""
    goes_on, number = relative
    return before + number if goes_on and before is not None and number is not None else number


def _remember(known: dict[Any, int], key: Hashable, value: int) -> None:
    """Store a number by its key, the latest last, and drop the oldest."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]

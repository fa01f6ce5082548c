"""A compact form of past events: the kind of each, and the numbers in which it differs from others of its kind."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradcheck_accum.ledger.events import Backward, Event, Factor, Term
from gradcheck_accum.verify.book.alike import Alike
from gradcheck_accum.verify.book.kinds import Kind, RunningNumbers, said_by

_MOST = 1 << 10
"""Kinds that are remembered after their first event."""


@dataclass(frozen=True, slots=True)
class _Example:
    """The first of many similar events, and their running numbers relative to those before.

    ``varies`` means that the numbers in the terms are stored for each event.
    """

    event: Event
    relative: Hashable
    varies: bool = False


class PastEvents:
    """The first events of a run.

    Events that recur with the same numbers of units and the same factors are stored once. Where every loss has
    different units, these are stored for each, and everything else once.
    """

    def __init__(self) -> None:
        self._events, self._numbers = Alike[_Example](), array("d")
        self._once: set[int] = set()
        """The kinds of events, as `Kinds` numbers them, that occurred once."""
        self._after = RunningNumbers()

    def __len__(self) -> int:
        return len(self._events)

    def after(self) -> RunningNumbers:
        """The running numbers after the last of these events."""
        return self._after.copy()

    def add(self, event: Event, kind: Kind) -> None:
        """Append an event."""
        if isinstance(event, Backward) and kind.number not in self._once and not self._events.knows(kind.number):
            if len(self._once) >= _MOST:
                self._once.clear()
            self._once.add(kind.number)
            shape = said_by(event, _shape_of(event.terms)), kind.relative
            self._events.add(shape, lambda: _Example(event, kind.relative, varies=True))
            self._numbers.extend(_numbers_in(event.terms))
        else:
            self._events.add(kind.number, lambda: _Example(event, kind.relative))
        self._after.run_on(event)

    def __iter__(self) -> Iterator[Event]:
        """The events: new objects at every iteration, all of them distinct."""
        running, numbers = RunningNumbers(), iter(self._numbers)
        for kind in self._events:
            # An event that is a kind of its own is kept as it was.
            event = kind.event if said_by(kind.event) is None else running.like(kind.event, kind.relative)
            if kind.varies and isinstance(event, Backward):
                event = replace(event, terms=tuple(_with_numbers(term, numbers) for term in event.terms))
            running.run_on(event)
            yield event


def _shape_of(terms: Sequence[Term]) -> Hashable:
    """The content of terms without their numbers."""
    return tuple(
        (
            (term.name, term.reduction, term.summed, term.leaves_out, term.samples, term.in_turn, term.may_be_batches),
            (_unless_number(term.units), _unless_number(term.rows)),
            tuple(_shape_of_factor(factor) for factor in term.factors),
        )
        for term in terms
    )


def _shape_of_factor(factor: Factor) -> Hashable:
    place = None if factor.where is None else (factor.where, factor.where.through)
    return _unless_number(factor.value), factor.operation, factor.purpose, place, factor.origins


def _unless_number(value: float | None) -> Hashable:
    """A value's part of the shape: a placeholder for a number that is stored separately, otherwise the value."""
    return "number" if isinstance(value, float) else value


def _numbers_in(terms: Sequence[Term]) -> Iterator[float]:
    """The numbers of terms, in the order of `_with_numbers`."""
    for term in terms:
        values = (term.units, term.rows, *(factor.value for factor in term.factors))
        yield from (value for value in values if isinstance(value, float))


def _with_numbers(term: Term, numbers: Iterator[float]) -> Term:
    """A term with the next of the numbers in the place of its own."""

    def own(value: float | None) -> float | None:
        return next(numbers) if isinstance(value, float) else value

    units, rows = own(term.units), own(term.rows)
    return replace(term, units=units, rows=rows, factors=tuple(replace(f, value=own(f.value)) for f in term.factors))

"""The record of a run: its events in order, and the measurements of each step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gradcheck_accum.ledger.events import (
    Backward,
    ChangedByStep,
    Clip,
    Event,
    Opaque,
    Rework,
    ScaleGrads,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.kinds import Kind, Kinds, RunningNumbers
from gradcheck_accum.verify.book.past_events import PastEvents
from gradcheck_accum.verify.book.past_steps import PastSteps
from gradcheck_accum.verify.book.records import Measured

_TOUCHING = (ZeroGrad, ScaleGrads, Rework, ChangedByStep, Clip, Unscale, Opaque, Step)
"""Events that may separate backwards: those before may have other weights than those after."""
_TELLING = 8
"""Windows from which the loop's scaling is read while it runs."""
_AT_HAND = 4 * _TELLING
"""Steps after which what is past is packed, many of them at a time."""


class Journal:
    """The events of a run and its measured steps, from its start or its last restart.

    The last windows are kept as they are. What came before them, and is no longer awaited, is kept in a compact form:
    the kind of each event and step, and its numbers.
    """

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self._events: list[Event] = []
        self._measured: list[Measured] = []
        self._kinds = Kinds()
        self._known: list[Kind] = []
        """The kinds of the first of the events at hand."""
        self._begin()
        self.from_start = True
        """Whether the events go back to where the loop began."""

    def _begin(self) -> None:
        """Nothing is past."""
        self._past, self._past_steps = PastEvents(), PastSteps()
        self._now = RunningNumbers()
        """The running numbers after the events whose kinds are known."""
        self._known.clear()
        self._full = _AT_HAND

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return len(self._past_steps) + len(self._measured)

    @property
    def last_step(self) -> Measured | None:
        """The last step that was measured."""
        return self._measured[-1] if self._measured else None

    @property
    def last(self) -> Event | None:
        """The last event."""
        return self._events[-1] if self._events else None

    def add(self, event: Event) -> None:
        """Something has happened."""
        self._events.append(event)
        if isinstance(event, _TOUCHING):
            self._book.close_part()

    def put_right(self, changed: Mapping[Backward, Backward]) -> None:
        """Replace backwards of the last windows by what they have turned out to be."""
        left = set(changed)
        for position in range(len(self._events) - 1, -1, -1):
            event = self._events[position]
            if not left:
                break
            if isinstance(event, Backward) and event in left:
                self._events[position] = changed[event]
                left.discard(event)
                self._unknown_from(position)

    def take_back(self, step: Step) -> None:
        """Remove a step that was recorded, but turned out to be none."""
        # It is one of the last: a long run has very many.
        position = next(i for i in range(len(self._events) - 1, -1, -1) if self._events[i] is step)
        del self._events[position]
        self._unknown_from(position)

    def enter(self, measured: Measured, waiting: Collection[Event]) -> None:
        """A step has been made; ``waiting`` are the events of backwards that others have yet to use."""
        self._measured.append(measured)
        if not waiting:
            # The memory of data is reused from now on: the same address no longer means the same data.
            self._now.forget_data()
        if len(self._measured) >= self._full:
            self._pack(waiting)
            # Awaited events stay, however many there are, so do not search them at every step.
            self._full = max(_AT_HAND, 2 * len(self._measured))

    def restart(self) -> None:
        """Restart: what was seen before is forgotten."""
        self.from_start = False
        self._events.clear()
        self._measured.clear()
        self._begin()

    def begin_again(self) -> int:
        """Forget what was seen before anything was trained; how many backwards that were."""
        backwards = sum(isinstance(event, Backward) for event in self._events)
        self._events.clear()
        self._measured.clear()
        self._begin()
        return backwards

    def forget_before(self, windows: int) -> None:
        """Forget all but the last ``windows`` windows."""
        if self.steps > windows:
            self.from_start = False
            measured = self._measured[-windows:]
            events = self._events[-self._count_of_last(windows) :]
            self._begin()
            self._measured, self._events = measured, events

    def last_events(self) -> tuple[tuple[Event, ...], tuple[int, ...]]:
        """The events of the last few windows, from which the loop's scaling is read, and their kinds."""
        self._know()
        count = self._count_of_last(_TELLING)
        return tuple(self._events[-count:]), tuple(kind.number for kind in self._known[-count:])

    def whole(self) -> tuple[tuple[Event, ...], list[Measured]]:
        """All events, and the measured steps of the run, which are among them."""
        events = (*self._past, *self._events)
        return events, [*self._past_steps.measured(events), *self._measured]

    def _count_of_last(self, windows: int) -> int:
        """How many of the last events are those of so many windows."""
        steps = 0
        for position, event in enumerate(reversed(self._events), 1):
            steps += isinstance(event, Step)
            if steps > windows:
                return position - 1
        return len(self._events)

    def _unknown_from(self, position: int) -> None:
        """Forget the kinds of the events from ``position`` on, which have changed."""
        if position < len(self._known):
            del self._known[position:]
            self._now = self._past.after()
            for event in self._events[:position]:
                self._now.run_on(event)

    def _know(self) -> None:
        """Find the kinds of what has happened since the last time."""
        for event in self._events[len(self._known) :]:
            self._known.append(self._kinds.of(event, self._now))
            self._now.run_on(event)

    def _pack(self, waiting: Collection[Event]) -> None:
        """Keep as numbers what is past: not the last windows, nor what a step uses that is at hand or yet to come."""
        self._know()
        begin = len(self._past)
        places = {event: begin + position for position, event in enumerate(self._events)}
        used = [*waiting, *(event for measured in self._measured for event in _events_of(measured))]
        if not all(event in places for event in used):
            return  # what was watched before is forgotten, and so will be the rest
        until = begin + len(self._events) - self._count_of_last(_TELLING)
        until = min([until, *(places[event] for event in waiting)])
        count = len(self._measured)
        for number in range(count - 1, -1, -1):
            own = [places[event] for event in _events_of(self._measured[number])]
            if max(own) >= until:
                count, until = number, min([until, *own])
        for measured in self._measured[:count]:
            self._past_steps.add(measured, places)
        del self._measured[:count]
        over = until - begin
        for event, kind in zip(self._events[:over], self._known[:over], strict=True):
            self._past.add(event, kind)
        del self._events[:over], self._known[:over]


def _events_of(measured: Measured) -> Iterator[Event]:
    """The events that a measured step knows."""
    yield measured.step
    yield from (record.event for record in measured.records)

"""The intended weights of the micro-batches of the next step, read from the last windows of the run.

Reading them takes longer than a small model's window itself, but a loop repeats itself: what was read from a stretch of
events holds for every stretch of the same kinds (`gradcheck_accum.verify.book.kinds`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradcheck_accum.ledger.events import Backward, Event, Trace
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.weights import Readings, read_weights
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.verify.book.records import Measured, Record, Replay
from gradcheck_accum.verify.measure.corrections import common_multiple, entry_corrections, replay_correction

_MOST = 32
"""Stretches that are cached: optimizers may take turns, and the windows at the end of a pass are different."""


class Stretch:
    """The last events of a run as they were when first read; ``like`` is a step with the records that it uses."""

    def __init__(self, events: Sequence[Event], like: Measured, precision: float, coefficient: float | None) -> None:
        self.events, self.like = events, like
        self._precision, self._coefficient = precision, coefficient
        self._of_replays: dict[Hashable, list[float] | None] = {}

    @cached_property
    def ledger(self) -> Ledger:
        """The windows of the stretch."""
        return fold(Trace(tuple(self.events), precision=self._precision))

    @cached_property
    def readings(self) -> Readings:
        """Their weights."""
        return read_weights(self.ledger, coefficient=self._coefficient)

    @cached_property
    def members(self) -> frozenset[int]:
        """The positions of the events that are backwards in the step's windows."""
        held = {entry.backward for window in self.ledger.closed_by(self.like.step) for entry in window.entries}
        return frozenset(i for i, event in enumerate(self.events) if event in held)

    @cached_property
    def corrections(self) -> list[float] | None:
        """As `entry_corrections`."""
        return entry_corrections(self.like, self.ledger, self.readings)

    @cached_property
    def multiple(self) -> float | None:
        """As `common_multiple`."""
        return common_multiple(self.like, self.ledger, self.readings)

    def of_replay(self, replay: Replay) -> list[float] | None:
        """As `replay_correction`."""
        key = tuple(replay.records), len(replay.vectors), replay.coefficients
        if key not in self._of_replays:
            self._of_replays[key] = replay_correction(self.like, replay, self.ledger, self.readings)
        return self._of_replays[key]


@dataclass(frozen=True, slots=True)
class ExpectedWeights:
    """The intended weights of the micro-batches of one step.

    ``members`` are the backwards that belong to its window (a discarded remainder does not).
    """

    members: set[Backward]
    stretch: Stretch

    @property
    def corrections(self) -> list[float] | None:
        """For each record of the step, the factor that makes its own gradient its part of the large batch's."""
        return self.stretch.corrections

    @property
    def multiple(self) -> float | None:
        """The number that the step's gradient has to be multiplied by to give the reference, as `common_multiple`."""
        return self.stretch.multiple

    def of_replay(self, replay: Replay) -> list[float] | None:
        """For each vector of a replay of the step's records, the factor that makes it the large batch's gradient."""
        return self.stretch.of_replay(replay)


class WeightReader:
    """Reads the weights of steps, and caches them by the kinds of events that they were read from."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Stretch] = {}

    def of(
        self,
        measured: Measured,
        events: Sequence[Event],
        kinds: Sequence[int],
        *,
        precision: float,
        coefficient: float | None,
    ) -> ExpectedWeights:
        """The weights of the step ``measured``, from the last ``events`` of the run, which are of these ``kinds``."""
        places = {event: place for place, event in enumerate(events)}
        records = tuple(places.get(record.event) for record in measured.records)
        key = tuple(kinds), places[measured.step], records, precision, coefficient
        stretch = self._known.pop(key, None)
        if stretch is None:
            # The records of past steps are emptied, so the cached stretch gets its own.
            own = [Record(record.event, None, {}, None) for record in measured.records]
            stretch = Stretch(events, Measured(measured.step, own), precision, coefficient)
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
        self._known[key] = stretch
        members = {event for place in stretch.members if isinstance(event := events[place], Backward)}
        return ExpectedWeights(members, stretch)

"""Leads several runs of one script, step by step: matches their steps, and decides what each run does there.

What the reference was at one of its steps is kept until every other run has come to the same data, or shows that it
will not. Meanwhile the reference computes its next step, and waits there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gradcheck_accum.comparing.messages import Arrival, NumberRead, Numbers, Order, Over
from gradcheck_accum.comparing.rows import Alignment, Relation, Rows, relation


class Run(Protocol):
    """One run, as its leader sees it."""

    def receive(self) -> Arrival | Over | None:
        """Wait for its next step or its end; None if it died."""

    def tell(self, order: Order, path: str = "") -> Any:
        """Give an order; returns the answer, if there is one."""


@dataclass(frozen=True, slots=True)
class Met:
    """A step of a run and the reference's on the same data, with what was measured of them.

    ``same_losses`` says that the losses which each of them reads are of the same data too: of several ranks, those of
    the first are known, and belong to its own part.
    """

    mine: Arrival
    theirs: Arrival
    numbers: Numbers | None
    same_weights: bool
    same_losses: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch of data after which both stepped, and in between not both once.

    ``steps`` are the run's own, ``mine`` the rows of each, in order, ``theirs`` those of the reference's.
    """

    steps: tuple[Arrival, ...]
    mine: tuple[int, ...]
    theirs: tuple[int, ...]

    @property
    def at(self) -> Arrival:
        """The first of its steps."""
        return self.steps[0]


@dataclass(slots=True)
class Course:
    """The course of a run, compared with the reference.

    ``parted_at`` are the steps of both where their data differs, ``parted_by`` says how. ``unused`` is how many rows of
    the reference's steps reached the model in this run, but no step.
    """

    met: list[Met] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    parted_at: tuple[Arrival, Arrival] | None = None
    parted_by: str = ""
    unused: int = 0
    missing: tuple[tuple[Arrival, ...], tuple[Arrival, ...]] = ((), ())
    """The steps that the reference made after this run's last, and this run after the reference's."""


@dataclass(slots=True)
class _Follower:
    """The current positions of a run and the reference."""

    course: Course = field(default_factory=Course)
    between: Alignment = field(default_factory=Alignment)
    mine: list[Arrival] = field(default_factory=list)
    theirs: list[Arrival] = field(default_factory=list)
    holds: Arrival | None = None
    is_apart: bool = False
    ended_at: int | None = None
    """The number of the reference's step at which this run had come to its end."""

    def cut(self) -> Cut:
        """The stretch that both have stepped on since the last such place."""
        rows = tuple(_count(a) for a in self.mine), tuple(_count(a) for a in self.theirs)
        return Cut(tuple(map(_without_rows, self.mine)), *rows)

    def marked(self) -> None:
        """Both have stepped after the same rows."""
        self.between, self.mine, self.theirs = Alignment(), [], []


class Lockstep:
    """Leads ``runs``; ``folder`` is where states are exchanged, ``is_free`` means that none takes over another's."""

    def __init__(self, runs: dict[int, Run], folder: Path, *, is_free: bool) -> None:
        self._runs = runs
        self._folder = folder
        self.is_free = is_free
        self.reference = -1
        self.arrivals: dict[int, list[Arrival]] = {number: [] for number in runs}
        self.reads: dict[int, dict[int, list[NumberRead]]] = {number: {} for number in runs}
        self.ends: dict[int, Over | None] = {}
        self._followers: dict[int, _Follower] = {}
        self._weights: dict[tuple[int, str], bytes] = {}
        self._alone: set[int] = set()
        self._is_published = False
        """Whether the reference has published its latest step, and gone on."""

    @property
    def courses(self) -> dict[int, Course]:
        """The course of each run, compared with the reference."""
        return {number: follower.course for number, follower in self._followers.items()}

    def lead(self) -> None:
        """Lead all runs from their first step to their ends, or until one of them dies.

        Then there is no verdict on any of them, and the others end.
        """
        first = {number: self._next(number) for number in self._runs}
        if any(arrival is None for arrival in first.values()):
            # One of them makes no step: there is nothing to compare the others with.
            for number, arrival in first.items():
                if arrival is not None:
                    self._runs[number].tell(Order.STOP)
                    self._drain(number)
            return
        starts = {number: arrival for number, arrival in first.items() if arrival is not None}
        self.reference = min(starts, key=lambda number: _size(starts[number]))
        self._followers = {number: _Follower() for number in starts if number != self.reference}
        for number, follower in self._followers.items():
            self._step(follower, starts[number])
        their: Arrival | None = starts[self.reference]
        while their is not None:
            self._at_step_of_reference(their)
            if self.lost:
                return
            if not self._is_published:
                self._runs[self.reference].tell(Order.GO)
            their = self._next(self.reference)
        if not self.lost:
            self._after_reference()

    @property
    def lost(self) -> list[int]:
        """The runs that died."""
        return [number for number, over in self.ends.items() if over is None]

    # One step of the reference

    def _at_step_of_reference(self, their: Arrival) -> None:
        is_likely_met, self._is_published = self._is_published, False
        if is_likely_met and not all(follower.is_apart for follower in self._followers.values()):
            # Not asked for yet, but then the reference need not wait until the others have come there.
            self._publish(their)
        for number, follower in self._followers.items():
            if follower.is_apart:
                continue
            follower.between.they_step(their.rows or Rows())
            follower.theirs.append(their)
            while not follower.is_apart:
                if follower.holds is None:
                    arrival = self._next(number)
                    if arrival is None:
                        self._ended(number, follower)
                        break
                    self._step(follower, arrival)
                mine = follower.mine[-1]
                relation = self._relation(follower, mine, their)
                if relation is Relation.AHEAD:
                    break
                if relation is Relation.SAME:
                    if not self._is_published:
                        self._publish(their)
                    self._meet(number, follower, mine, their)
                    break
                if relation is Relation.OTHER:
                    self._part(number, follower, mine, their)
                    break
                follower.holds = None
                self._runs[number].tell(Order.GO)

    def _relation(self, follower: _Follower, mine: Arrival, their: Arrival) -> Relation:
        if mine.optimizer != their.optimizer or mine.rows is None or their.rows is None:
            return Relation.OTHER
        return follower.between.relation

    def _publish(self, their: Arrival) -> None:
        """Let the reference write what it is at this step, and go on."""
        if their.parts:
            for old in self._folder.glob(f"{self._file.name}-*"):
                old.unlink()  # of a rank that no longer makes this step
        self._runs[self.reference].tell(Order.PUBLISH, str(self._file))
        self._is_published = True

    @property
    def _file(self) -> Path:
        return self._folder / "state"

    def _meet(self, number: int, follower: _Follower, mine: Arrival, their: Arrival) -> None:
        """Both have stepped after the same rows."""
        fits = self._fits(number, mine)
        run, is_one = self._runs[number], follower.between.is_one_step
        if not fits:
            self._part(number, follower, mine, their, "their models have different shapes")
            return
        if is_one:
            numbers = run.tell(Order.COMPARE if self.is_free else Order.BOTH, str(self._file))
            same = self._same_weights(number, mine.optimizer)
            met = Met(_without_rows(mine), _without_rows(their), numbers, same, _is_read_of_same(mine, their))
            follower.course.met.append(met)
        else:
            if not self.is_free:
                run.tell(Order.SETTLE, str(self._file))
            else:
                run.tell(Order.GO)
            follower.course.cuts.append(follower.cut())
        self._weights[number, mine.optimizer] = b"" if self.is_free else b"settled"
        follower.marked()
        follower.holds = None

    def _fits(self, number: int, mine: Arrival) -> bool:
        name = mine.optimizer
        own = (next(a for a in self.arrivals[n] if a.optimizer == name) for n in (number, self.reference))
        return len({first.shapes for first in own}) == 1

    def _same_weights(self, number: int, name: str) -> bool:
        """Whether a step was made on the same weights as the reference's."""
        if (number, name) in self._weights:
            return bool(self._weights[number, name])
        own = (next(a for a in self.arrivals[n] if a.optimizer == name) for n in (number, self.reference))
        return len({first.weights for first in own}) == 1

    def _part(self, number: int, follower: _Follower, mine: Arrival, their: Arrival, why: str = "") -> None:
        follower.is_apart = True
        follower.course.parted_at = _without_rows(mine), _without_rows(their)
        follower.course.parted_by = why or _why_apart(mine, their)
        follower.holds = None
        self._leave_alone(number)

    def _leave_alone(self, number: int) -> None:
        """Let a run go on to its end."""
        self._alone.add(number)
        self._runs[number].tell(Order.ALONE)

    def _step(self, follower: _Follower, arrival: Arrival) -> None:
        follower.holds = arrival
        follower.mine.append(arrival)
        follower.between.i_step(arrival.rows or Rows())

    # Ends

    def _next(self, number: int) -> Arrival | None:
        """A run's next step, None where it has come to its end."""
        if number in self.ends:
            return None
        message = self._runs[number].receive()
        while isinstance(message, Arrival) and message.is_idle:
            # What changes nothing is no step.
            self._take(number, message.reads)
            if number not in self._alone:
                self._runs[number].tell(Order.GO)
            message = self._runs[number].receive()
        if isinstance(message, Arrival):
            self.arrivals[number].append(_without_rows(message))
            self._take(number, message.reads)
            return message
        self.ends[number] = message
        self._take(number, message.reads if message is not None else ())
        return None

    def _take(self, number: int, reads: Sequence[NumberRead]) -> None:
        for read in reads:
            self.reads[number].setdefault(read.window, []).append(read)

    def _drain(self, number: int) -> None:
        while self._next(number) is not None:
            pass

    def _ended(self, number: int, follower: _Follower) -> None:
        """A run has ended before it reached the data of a step of the reference."""
        follower.is_apart = True
        over = self.ends[number]
        name = follower.theirs[-1].optimizer
        left = over.left.get(name) if over is not None else None
        missed = Rows.together([follower.between.theirs])
        if left is not None:
            reached = Rows.together([follower.between.mine, left])
            if relation(reached, missed) in (Relation.SAME, Relation.AHEAD):
                follower.course.unused = missed.count - follower.between.mine.count
                if follower.mine:
                    # Its last steps end where none of the reference's does.
                    follower.course.cuts.append(follower.cut())
        follower.ended_at = follower.theirs[-1].index

    def _after_reference(self) -> None:
        """The reference has ended: lead the others to their ends."""
        for number, follower in self._followers.items():
            if follower.ended_at is not None:
                missed = [a for a in self.arrivals[self.reference] if a.index >= follower.ended_at]
                follower.course.missing = tuple(missed), ()
            if follower.is_apart:
                self._drain(number)
                continue
            if follower.holds is None:
                follower.holds = self._next(number)
            if follower.holds is not None:
                before = len(self.arrivals[number]) - 1
                self._leave_alone(number)
                self._drain(number)
                follower.course.missing = (), tuple(self.arrivals[number][before:])


def _size(arrival: Arrival) -> tuple[int, int, int]:
    """The sort key of the reference: the fewest micro-batches a step, then the most rows, then the fewest ranks."""
    return arrival.micro_batches, -_count(arrival), arrival.ranks


def _is_read_of_same(mine: Arrival, their: Arrival) -> bool:
    """Whether the processes whose losses are known have the same rows of a step that both runs make."""
    if not mine.parts and not their.parts:
        return True
    if not mine.parts or not their.parts:
        return False
    own, other = mine.parts[0].rows, their.parts[0].rows
    return own is not None and other is not None and relation(own, other) is Relation.SAME


def _without_rows(arrival: Arrival) -> Arrival:
    """The same with only the number of its rows: nothing of the size of the data is kept."""
    parts = tuple(replace(part, rows=None) for part in arrival.parts)
    rows = None if arrival.rows is None else Rows(count=arrival.rows.count)
    return replace(arrival, rows=rows, reads=(), parts=parts)


def _count(arrival: Arrival) -> int:
    return arrival.rows.count if arrival.rows is not None else 0


def _why_apart(mine: Arrival, their: Arrival) -> str:
    if mine.optimizer != their.optimizer:
        return f"{mine.optimizer} steps there, but {their.optimizer} in the reference"
    if not (mine.micro_batches and their.micro_batches) and None in (mine.rows, their.rows):
        return "no backward() of that step computed its gradient"
    if mine.rows is None or their.rows is None:
        return "part of the loss was computed in a way that could not be recorded"
    return "different rows reach the model"

"""The weight of each entry of the ledger, and the weight that it was meant to have.

The gradient of a window is g = Σ_j c_j ∇L_j with L_j the mean loss of micro-batch j over n_j units, so one unit of it
has the weight w_j = c_j / n_j. The large batch of N = Σ n_j units, with the loss's intended coefficient a, gives each
unit a / N. The *relative weight* w_j N / a is therefore 1 everywhere if and only if the window is right.

c_j is read from the loop: the product of the factors between the reduction and ``backward``, and of those that scaled
the gradient afterwards. a is not written anywhere, so it is decided from evidence, in this order: what the caller
states; the role of a factor in the source; and its value: a factor that equals 1/K, 1/m or n_j/N, or that divides by
the units, belongs to the accumulation, and any other to the objective. A sum-reduced loss needs no scaling at all: its
large batch gives each unit the weight a.

Where gradients are averaged over d ranks, each unit has the weight w_j / d in the end, and N counts the units of all of
them: the relative weight is w_j (N / d) / a, that of one process whose window holds N / d units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

from gradcheck_accum.ledger.events import (
    Backward,
    Factor,
    Operation,
    Purpose,
    Quotient,
    Reduction,
    Term,
    WindowBound,
    kind_in,
)
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import left_local
from gradcheck_accum.ledger.reading import SeriesReading, is_right, read_series, take_for_the_objective
from gradcheck_accum.ledger.roles import CountOfWindows, Evidence, Point, aligned
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import is_length, names_steps
from gradcheck_accum.ledger.weights_of_terms import with_weights_of_terms
from gradcheck_accum.ledger.window_length import is_divided_by, lengths_of_list, scales_every_loss, usual_steps
from gradcheck_accum.ledger.windows import Entry, Fate, Ledger, Window

TERMS_OR_MICRO_BATCHES = (
    "its loss has as many terms of one kind as batches were used for it: they may or may not be micro-batches, whose "
    "sum should be divided by their number, once"
)


@dataclass(frozen=True, slots=True)
class Series:
    """One term of a loop's loss, micro-batch after micro-batch, with the places in the source that run its backward.

    ``gathers`` means that it is all terms of the kind ``name``, the losses of a micro-batch's samples: a sum of as many
    units.
    """

    lines: frozenset[tuple[str, int]]
    name: str
    gathers: bool = False

    def holds(self, backward: Backward, term: Term) -> bool:
        """Whether ``term`` of ``backward`` belongs to this series."""
        return self._names(term) and backward.where.place in self.lines

    def is_in(self, backward: Backward) -> bool:
        """Whether any term of ``backward`` belongs to this series."""
        return backward.where.place in self.lines and any([self._names(term) for term in backward.terms])

    def _names(self, term: Term) -> bool:
        return (term.kind if self.gathers else term.name) == self.name

    def terms_of(self, backward: Backward) -> list[Term]:
        """What a backward has of this series: one term, or none."""
        terms = [term for term in backward.terms if self.holds(backward, term)]
        return [_gathered(self.name, terms)] if self.gathers and terms else terms


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of one term of one entry.

    ``share`` is c_j / a, the micro-batch's part of the whole objective; ``relative`` is w_j N / a. Both are computed as
    if the entry were live, and are None where a factor is unknown.
    """

    entry: Entry
    units: float | None
    share: float | None
    relative: float | None


@dataclass(slots=True)
class Readings:
    """The weights of every entry of a ledger, and ``notes`` on how the loss's scale was read."""

    same: Same
    """Compares two weights."""
    series: dict[tuple[str, str], tuple[Series, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    scale_is_open: bool = False
    """Whether some of them are on what a coefficient of the loss settles."""
    coefficient: float | None = None
    """The intended coefficient of the loss, where the caller states it."""
    _read: dict[tuple[str, str, Series], SeriesReading] = field(default_factory=dict)
    _once_a_window: dict[tuple[str, str], frozenset[Series]] = field(default_factory=dict)
    _known: dict[tuple[Window, Series], tuple[Weight, ...]] = field(default_factory=dict)
    """Cached weights: every pattern reads the same ones."""
    _shown: dict[Window, tuple[float | None, ...]] = field(default_factory=dict)
    """Cached `relative_weights`."""

    def series_of(self, window: Window) -> tuple[Series, ...]:
        """The series that have an entry in ``window``."""
        return tuple(
            series
            for series in self.series.get((window.optimizer, window.store), ())
            if any(series.is_in(e.backward) for e in _all_entries(window))
        )

    def kind(self, window: Window, series: Series) -> Reduction:
        """How the losses of ``series`` add up: a mean over units, a sum over units, or once per step."""
        return self._read[window.optimizer, window.store, series].kind

    def is_normalised(self, window: Window, series: Series) -> bool:
        """Whether the loss of ``series`` does not grow with the number of units in a window."""
        return self._read[window.optimizer, window.store, series].normalised

    def scaled_at(self, windows: Iterable[Window]) -> frozenset[Location]:
        """Where the losses in ``windows`` were multiplied by the factors that are read as the accumulation's."""
        read = (self._read[w.optimizer, w.store, series] for w in windows for series in self.series_of(w))
        return frozenset[Location]().union(*(reading.scaled_at for reading in read))

    def may_be_exchanged(self, windows: Iterable[Window]) -> bool:
        """Whether, of two equal factors of a loss in ``windows``, either may be the accumulation's."""
        return any(
            self._read[w.optimizer, w.store, series].may_be_exchanged for w in windows for series in self.series_of(w)
        )

    def same_objective(self, window: Window, series: Series) -> bool:
        """Whether the objective has the same factor for ``series`` in all micro-batches of ``window`` that have it."""
        own = self._read[window.optimizer, window.store, series].objective
        held = (_held(series, entries) for entries in window.by_rank())
        values = [own.get(entry.backward, 1.0) for entries in held for entry in entries]
        return all(self.same(value, values[0]) for value in values)

    def is_once_a_window(self, window: Window, series: Series) -> bool:
        """Whether exactly one micro-batch of every window that holds several has ``series``.

        The large batch of such a term is that micro-batch, whatever the large batch of the others is.
        """
        return series in self._once_a_window[window.optimizer, window.store] and not window.elsewhere

    def weights(self, window: Window, series: Series) -> tuple[Weight, ...]:
        """The weights of one series' entries in ``window``, in the window's order."""
        known = self._known.get((window, series))
        if known is None:
            known = self._known[window, series] = self._weights(window, series, window.entries)
        return known

    def weights_elsewhere(self, window: Window, series: Series) -> tuple[Weight, ...]:
        """The weights of one series' entries of the same step on other ranks."""
        return tuple(w for own in window.elsewhere for w in self._weights(window, series, own))

    def _weights(self, window: Window, series: Series, entries: Sequence[Entry]) -> tuple[Weight, ...]:
        return self._weights_in(self._read[window.optimizer, window.store, series], window, series, entries)

    def _weights_in(
        self, reading: SeriesReading, window: Window, series: Series, entries: Sequence[Entry]
    ) -> tuple[Weight, ...]:
        total = self._total(reading, window, series)
        own = _held(series, entries)
        length = len([e for e in own if e.fate is not Fate.STALE] or own)
        return tuple(self._weight(reading, entry, total, length) for entry in own)

    @staticmethod
    def _total(reading: SeriesReading, window: Window, series: Series) -> float | None:
        """N / d: the units of all ranks, divided by what the average over them divides by."""
        fresh = [e for own in window.by_rank() for e in _held(series, own)] or _held(series, window.entries)
        units = total_of(reading.units.get(e.backward) for e in fresh)
        return None if units is None else units / window.divisor

    def rank_share(self, window: Window, series: Series, entry: Entry) -> float:
        """The weight of the large batch of one rank, ``entry``'s, in the large batch of all ranks.

        1 where there is one rank; otherwise its share of the units, or 1 / d where units have no influence.
        """
        reading = self._read[window.optimizer, window.store, series]
        total = self._total(reading, window, series)
        own = next((o for o in window.by_rank() if any(e.backward is entry.backward for e in o)), ())
        units = total_of(reading.units.get(e.backward) for e in _held(series, own))
        if not window.elsewhere or reading.kind is not Reduction.MEAN or not total or units is None:
            return 1.0 / window.divisor
        return units / total / window.divisor

    @staticmethod
    def _weight(reading: SeriesReading, entry: Entry, total: float | None, length: int) -> Weight:
        key = entry.backward
        coefficient, units = reading.coefficient.get(key), reading.units.get(key)
        if coefficient is None:
            return Weight(entry, units, None, None)
        share = coefficient / reading.objective.get(key, 1.0)
        if reading.kind is Reduction.SUM:
            relative = share
        elif reading.kind is Reduction.NONE or total is None or not units:
            relative = share * length
        else:
            relative = share * total / units
        return Weight(entry, units, share, relative)

    def relative_weights(self, window: Window) -> tuple[float | None, ...]:
        """The relative weight of each entry of ``window`` in the gradient that the step used: 1 is right, 0 is lost.

        Where a backward has several terms, the weight is that of the first that is no penalty. The entries of other
        ranks follow the window's own. What is not averaged by the step has the weight 0 on other ranks, and on its own
        d times its weight, because nothing divided it; 0 there too where it is kept outside ``.grad``.
        """
        known = self._shown.get(window)
        if known is None:
            known = self._shown[window] = self._relative_weights(window)
        return known

    def _relative_weights(self, window: Window) -> tuple[float | None, ...]:
        first: dict[Backward, float | None] = {}
        by_units = sorted(self.series_of(window), key=lambda s: self.kind(window, s) is Reduction.NONE)
        local = {e.backward for e in left_local(window.fresh())}
        away = {e.backward for own in window.elsewhere for e in left_local(own)}
        for series in by_units:
            for weight in (*self.weights(window, series), *self.weights_elsewhere(window, series)):
                key = weight.entry.backward
                gone = weight.entry.fate in (Fate.WIPED, Fate.LEFT) or key in away
                relative = weight.relative
                if key in local and relative is not None:
                    relative *= 0.0 if weight.entry.backward.kept_apart else window.divisor
                first.setdefault(key, 0.0 if gone else relative)
        return tuple(first.get(entry.backward) for entry in _all_entries(window))

    def units(self, window: Window) -> float | None:
        """N, the units of the window's own entries (of its first series), or None where they are not known."""
        for series in self.series_of(window):
            weights = *self.weights(window, series), *self.weights_elsewhere(window, series)
            units = [w.units for w in weights if w.entry.fate is not Fate.STALE]
            total = total_of(units)
            if units and total is not None and self.kind(window, series) is not Reduction.NONE:
                return total
        return None


def read_weights(ledger: Ledger, *, coefficient: float | None = None) -> Readings:
    """Read the weight of every entry of ``ledger``.

    ``coefficient`` is the intended coefficient a of the loss where the caller states it; then every factor belongs to
    the accumulation.
    """
    readings = Readings(ledger.same, coefficient=coefficient)
    in_a_run = ledger.trace.precision > 0
    for account in ledger.accounts():
        windows = [
            w
            for w in (*ledger.windows, *ledger.abandoned)
            # A step that the grad scaler skipped is no evidence, nor is one that it should have skipped: losses
            # overflowed.
            if (w.optimizer, w.store) == account and not (w.step is not None and w.step.skipped) and not w.hides_scaling
        ]
        series = _find_series(windows, readings.same)
        # A term that always has the weight 0 (a sum over outputs that keeps weights in use, say) is no part of the
        # loss.
        series = tuple(s for s in series if not _is_nothing(s, windows)) or series
        reader = _Reader.of(windows, readings.same, coefficient, in_a_run=in_a_run)
        gathered = reader.read_samples(series)
        series = tuple(s for s in series if not any(_is_part_of(s, whole) for whole in gathered))
        read = gathered | {own: reading for one in series for own, reading in reader.read(one, series).items()}
        reader.read_counts_alike(read)
        reader.read_weights_of_terms(read)
        reader.give_one_role(read)
        reader.read_plain_training(read)
        readings.series[account] = tuple(read)
        readings._once_a_window[account] = _once_a_window(read, windows)
        for one, reading in read.items():
            readings._read[account[0], account[1], one] = reading
            readings.notes += reading.notes
            readings.scale_is_open |= bool(reading.notes) and not reading.is_of_one_term
    return readings


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the series of one account from its windows, of which full ones hold ``steps`` micro-batches."""

    windows: Sequence[Window]
    steps: int
    counter: frozenset[str]
    named: frozenset[str]
    lengths: frozenset[str]
    states_steps: bool
    quotients: frozenset[Quotient]
    held: frozenset[str]
    same: Same
    coefficient: float | None
    in_a_run: bool

    @classmethod
    def of(cls, windows: Sequence[Window], same: Same, coefficient: float | None, *, in_a_run: bool) -> _Reader:
        steps = usual_steps((w for w in windows if w.step is not None), same) or 1
        counters = [own for w in windows if (own := _borne_out(w, steps)) is not None]
        counted = frozenset[str]().union(*(own.origins for own in counters))
        lengths = frozenset(filter(is_length, counted)).union(*map(lengths_of_list, windows))
        counter = counted - lengths | _parts_divided_by(windows)
        named = frozenset[str]() if counter else _named_divisors(windows, steps, same)
        stated = any(window.step is not None and window.step.accumulation_steps for window in windows)
        quotients = frozenset(own.quotient for own in counters if own.quotient is not None)
        held = frozenset[str]().union(*(own.count for own in counters))
        return cls(windows, steps, counter, named, lengths, stated, quotients, held, same, coefficient, in_a_run)

    def read(self, one: Series, every: Sequence[Series]) -> dict[Series, SeriesReading]:
        """The reading of a series, or of each of its places by itself where only these have one, and are right."""
        steps = _steps_of(one, every, self.windows, self.steps)
        evidence, reading = self._read(one, steps)
        unsure = self.coefficient is None and steps < self.steps and not is_right(reading, evidence)
        if unsure and self._is_divided_by_all(evidence):
            note = _of_turns if self._takes_turns(one, every) else _of_some
            return {one: reading.give_up(note(one, steps, self.steps))}
        like = _of_its_kind(one, every)
        if like and self.coefficient is None and not is_right(reading, evidence, shorter=True):
            as_term = self._read_either_way(one, like, reading)
            if as_term is not None:
                return {one: as_term}
        if not reading.is_dark or len(one.lines) == 1:
            return {one: reading}
        apart = [Series(frozenset([line]), one.name) for line in sorted(one.lines)]
        each = {own: self._read(own, _steps_of(own, [own], self.windows, self.steps)) for own in apart}
        right = all(is_right(own, evidence) for evidence, own in each.values())
        return {own: found for own, (_, found) in each.items()} if right else {one: reading}

    def _read_either_way(self, one: Series, like: Sequence[Series], reading: SeriesReading) -> SeriesReading | None:
        """The reading of a series that is not right as all micro-batches of its kind, and is as a term by itself.

        It and those ``like`` it, at other places, may be micro-batches, or terms of the objective on data of their own:
        that a factor is 1/K does not say which. Given up where only the one is right; None where neither is.
        """
        held = _held_by_full(one, self.windows, self.steps)
        if held == self.steps:
            return None
        evidence, as_term = self._read(one, held)
        if not is_right(as_term, evidence):
            return None
        evidence, together = self._read(Series(one.lines.union(*(o.lines for o in like)), one.name), self.steps)
        return as_term if is_right(together, evidence) else reading.give_up(_of_some(one, held, self.steps))

    def read_samples(self, every: Sequence[Series]) -> dict[Series, SeriesReading]:
        """The readings of terms that are the losses of samples: of those whose number divides them.

        Those that may be micro-batches as well have no weight, unless each window's are divided by their number, once,
        and by nothing else: this is right whatever they are.
        """
        found: dict[Series, SeriesReading] = {}
        backwards = [entry.backward for window in self.windows for own in window.by_rank() for entry in own]
        for one in dict.fromkeys(Series(own.lines, kind_in(own.name), gathers=True) for own in every):
            held = [terms for backward in backwards if (terms := [t for t in backward.terms if one.holds(backward, t)])]
            may_be_batches = any(terms[0].may_be_batches for terms in held)
            # Rows that a loop takes one by one may be steps, whose losses have as many units each. Sums count these.
            are_ragged = any(len({t.units for t in terms}) > 1 for terms in held)
            of_means = are_ragged and all(t.reduction is Reduction.MEAN for terms in held for t in terms)
            known = [terms[0].samples or (of_means and terms[0].in_turn) for terms in held]
            if not may_be_batches and not any(known):
                continue
            evidence, reading = self._read(one, self.steps)
            is_known = all(len(terms) == 1 or of_samples for terms, of_samples in zip(held, known, strict=True))
            if not is_known or not reading.normalised or (may_be_batches and not evidence.is_mean_of_window):
                if may_be_batches:
                    found[one] = reading.give_up()
                continue
            # What is divided by the number of unlike losses may count too little of the larger ones.
            if len({t.units for terms in held for t in terms}) == 1:
                found[one] = reading
            elif may_be_batches or reading.kind is Reduction.SUM:
                found[one] = reading.give_up(_of_unlike_samples(one.name))
        return found

    def read_counts_alike(self, read: dict[Series, SeriesReading]) -> None:
        """Read a divisor that may count one thing or another as the count that it is in another term of the loss."""
        # A note says that a number was only read as a count.
        counted = {
            one: self._counts_of(one, reading, [*read])
            for one, reading in read.items()
            if len(read) > 1 and reading.kind is Reduction.SUM and reading.normalised
            if not (reading.is_dark or reading.notes)
        }
        for one, reading in [*read.items()] if counted else ():
            others = [own for other, own in counted.items() if other is not one and other.lines == one.lines]
            if not others:
                continue
            evidence = self._evidence(one, _steps_of(one, [*read], self.windows, self.steps))
            if not reading.is_dark and (reading.kind is Reduction.NONE or is_right(reading, evidence, shorter=True)):
                continue
            evidence = replace(evidence, counts=[count for own in others for count in own])
            again = read_series(evidence, self.coefficient, in_a_run=self.in_a_run)
            if is_right(again, evidence):
                read[one] = again

    def _counts_of(self, one: Series, reading: SeriesReading, every: Sequence[Series]) -> list[CountOfWindows]:
        """The numbers that count the windows of a term."""
        evidence = self._evidence(one, _steps_of(one, every, self.windows, self.steps))
        return [
            CountOfWindows(
                column.factors[0].where,
                column.factors[0].origins,
                {point.step: value for value, point in zip(column.values, evidence.points, strict=True)},
            )
            for column in evidence.columns()
            if (column.factors[0].where, column.values) in reading.scaled_by
        ]

    def give_one_role(self, read: Mapping[Series, SeriesReading]) -> None:
        """Give up a reading that is not right because a factor of the whole loss has another role for another term.

        A count of one term's units is no evidence on whether the others are scaled. Where short windows are not right
        either, what they lack rests on that role as well.
        """
        if len(read) < 2:
            return

        @cache
        def right(one: Series) -> bool:
            own = self._evidence(one, _steps_of(one, [*read], self.windows, self.steps))
            return is_right(read[one], own, shorter=True)

        for one, reading in read.items():
            others = [other for other in read if other is not one and other.lines == one.lines]
            shared = {a for other in others for a in read[other].scaled_by & reading.objective_by}
            for other in others:
                is_count = read[other].kind is Reduction.SUM and read[other].normalised
                both = read[other].scaled_by & reading.scaled_by if is_count else frozenset()
                if both and right(other):
                    shared |= both
            if shared and not right(one):
                first = min(shared, key=lambda each: (each[0].place, each[0].column) if each[0] else (("", 0), 0))
                scaled = [other for other in others if first in read[other].scaled_by]
                reading.give_up(_of_two_roles(one, scaled, first[0]))

    def read_plain_training(self, read: Mapping[Series, SeriesReading]) -> None:
        """Give all factors that are not known to the objective, where each window is its own large batch."""
        open_ = [one for one, reading in read.items() if None in reading.coefficient.values()]
        if not open_ or not self.in_a_run or self.coefficient is not None or self._counts_to_several():
            return
        evidences = {one: self._evidence(one, self.steps) for one in read}
        if all(evidence.is_its_own_large_batch for evidence in evidences.values()):
            for one in open_:
                take_for_the_objective(read[one], evidences[one])

    def _counts_to_several(self) -> bool:
        """Whether the source counts to anything but 1 before a step, also where no window confirms that."""
        bounds = [w.step.counted_by for w in self.windows if w.step is not None and w.step.counted_by is not None]
        return any(bound.steps != 1 or bound.parts for bound in bounds)

    def read_weights_of_terms(self, read: dict[Series, SeriesReading]) -> None:
        """Read a term's own division by a number of K that is not the one of the whole loss as its weight."""
        if len(read) > 1:
            evidences = {one: self._evidence(one, _steps_of(one, [*read], self.windows, self.steps)) for one in read}
            together = {one: [own for own in read if own.lines == one.lines] for one in read}
            read |= with_weights_of_terms(read, evidences, together, self.coefficient, in_a_run=self.in_a_run)

    def _is_divided_by_all(self, evidence: Evidence) -> bool:
        """Whether a loss that only some micro-batches of a window have is divided by the number of all of them."""
        by_all = (c for c in evidence.columns() if c.divides and evidence.is_constant(c))
        return any(self.same(column.values[0] * self.steps, 1.0) for column in by_all)

    def _takes_turns(self, one: Series, every: Sequence[Series]) -> bool:
        """Whether no micro-batch has both this loss and another."""
        batches = {
            own: {entry.backward.micro_batch for window in self.windows for entry in _held(own, window.fresh())}
            for own in every
        }
        return all(batches[one].isdisjoint(batches[other]) for other in every if other != one)

    def _read(self, one: Series, steps: int) -> tuple[Evidence, SeriesReading]:
        evidence = self._evidence(one, steps)
        reading = read_series(evidence, self.coefficient, in_a_run=self.in_a_run)
        if reading.is_dark and any(window.micro_batches > self.steps for window in self.windows):
            # Passes are not always visible: what one of them left over may be in a longer window.
            evidence = self._evidence(one, self.steps, leaks=True)
            reading = read_series(evidence, self.coefficient, in_a_run=self.in_a_run)
        return evidence, reading

    def _evidence(self, one: Series, steps: int, *, leaks: bool = False) -> Evidence:
        points = aligned(_points(one, self.windows, steps, leaks=leaks))
        return Evidence(
            points,
            self.same,
            self.counter,
            self.lengths,
            self.states_steps,
            self.quotients,
            held=self.held,
            named=self.named,
        )


def _of_unlike_samples(name: str) -> str:
    """The note on a sum of losses of unlike sizes that is divided by their number."""
    return (
        f"the losses ({name}) of a micro-batch are added up, and divided by how many there are: right if each is that "
        "of one sample, and wrong if each is a mean over samples, as they have unlike numbers of these: divide sums by "
        "what they count, or state --loss-coefficient"
    )


def _of_two_roles(series: Series, others: Iterable[Series], where: Location | None) -> str:
    """The note on a term that is divided by a count of another's units."""
    names = " and ".join(other.name for other in others)
    return (
        f"{series.name} is divided{f' (line {where.line})' if where else ''} by what {names} is scaled by, which "
        "makes neither a mean nor a sum of it over the window: divide each term by its own count, or state "
        "--loss-coefficient"
    )


def _of_turns(series: Series, held: int, steps: int) -> str:
    """The note on a loss that takes turns with others."""
    return (
        f"{series.name} is the loss of {held} of the {steps} micro-batches of a window, and divided by {steps}: right "
        f"for the mean over all losses of the window (state --loss-coefficient {held / steps:.6g}), and too little for "
        "the sum of each loss's mean (state --loss-coefficient 1)"
    )


def _of_some(series: Series, held: int, steps: int) -> str:
    """The note on a loss that only some micro-batches have, next to that of all of them."""
    return (
        f"{series.name} is in {held} of the {steps} micro-batches of a window, and divided by {steps}: right if "
        f"{held}/{steps} is its weight in the objective, and too little if its mean belongs there: name its weight"
    )


def _parts_divided_by(windows: Sequence[Window]) -> frozenset[str]:
    """The origins of the number of parts that data are split into, if all that the loop trains on is divided by it.

    The loop steps after each part. The weight of one term (a penalty, one over the number of batches) is no evidence.
    """
    bounds = [w.step.counted_by if w.step is not None else None for w in windows]
    parts = frozenset[str]().union(*(bound.parts for bound in bounds if bound is not None))

    def divides(factor: Factor) -> bool:
        return factor.operation is Operation.DIVIDE and not parts.isdisjoint(factor.origins)

    return parts if parts and all(scales_every_loss(window, divides) for window in windows) else frozenset()


def _named_divisors(windows: Sequence[Window], steps: int, same: Same) -> frozenset[str]:
    """The origins of what is K by its name where a loss, or a term of one, is divided by it.

    Where nothing counts to K, this is the number that other constants, which only equal 1/K, are not.
    """
    factors = (f for w in windows for e in w.fresh() for term in e.backward.terms for f in term.factors)
    named = (f for f in factors if f.operation is Operation.DIVIDE and names_steps(f.origins))
    return frozenset[str]().union(*(f.origins for f in named if f.value and same(f.value * steps, 1.0)))


def _borne_out(window: Window, steps: int) -> WindowBound | None:
    """What the source counts to before a window's step, if it equals K or the micro-batches that ran, or is unknown.

    Any other number is no count of micro-batches, and its origins are no evidence of what other numbers are; unless it
    bounds the list that the window is, which the data may end before.
    """
    bound = window.step.counted_by if window.step is not None else None
    if bound is None or bound.steps in (None, steps, window.micro_batches):
        return bound
    ends_early = bound.listed is not None and bound.listed.items == window.micro_batches < bound.steps
    return bound if ends_early else None


def _find_series(windows: Sequence[Window], same: Same) -> tuple[Series, ...]:
    """Group the backwards of an account by the part of the objective that they carry.

    Two places that run on the same batch of data are two terms. Two that never do, and of which one repeats within a
    window or whose losses are divided by the number of micro-batches, are the same term written twice (the last
    micro-batch of a window outside ``no_sync``, say); so are two that never share a window (a flush with a backward of
    its own), and two whose losses are the same computation, of other batches of one loader.
    """
    backwards = [entry.backward for window in windows for own in window.by_rank() for entry in own]
    lines = frozenset(backward.where.place for backward in backwards)
    if len(lines) == 1:
        return tuple(Series(lines, name) for name in dict.fromkeys(t.name for b in backwards for t in b.terms))
    batches: dict[tuple[str, int], set[int]] = {}
    repeats: set[tuple[str, int]] = set()
    together: set[frozenset[tuple[str, int]]] = set()
    names: dict[tuple[str, int], list[str]] = {}
    computed: dict[tuple[str, int], set[int]] = {}
    for window in windows:
        seen: dict[tuple[str, int], set[int]] = {}
        for entry in (e for own in window.by_rank() for e in own):
            line = entry.backward.where.place
            seen.setdefault(line, set()).add(entry.backward.micro_batch)
            batches.setdefault(line, set()).add(entry.backward.micro_batch)
            if entry.backward.computation is not None:
                computed.setdefault(line, set()).add(entry.backward.computation)
            for term in entry.backward.terms:
                if term.name not in names.setdefault(line, []):
                    names[line].append(term.name)
        stated = window.step is not None and (window.step.accumulation_steps or 1) > 1
        accumulated = len(seen) > 1 and (stated or is_divided_by(window, window.micro_batches, same))
        repeats |= {line for line, own in seen.items() if len(own) > 1 or accumulated}
        together |= {frozenset(pair) for pair in combinations(seen, 2)}
    groups: list[list[tuple[str, int]]] = []
    for line, own in batches.items():
        for group in groups:
            meets = [other for other in group if frozenset((line, other)) in together]
            meets = [other for other in meets if line not in computed or computed[line] != computed.get(other)]
            joined = all(not own & batches[other] for other in group) and (
                not meets or any({line, other} & repeats for other in meets)
            )
            if joined and set(names[line]) == set(names[group[0]]):
                group.append(line)
                break
        else:
            groups.append([line])
    return tuple(Series(frozenset(group), name) for group in groups for name in names[group[0]])


def _gathered(kind: str, terms: Sequence[Term]) -> Term:
    """The losses of samples as one sum, of as many units; a mean of them is a sum that is divided by their number."""
    first, number = terms[0], float(max(terms[0].samples, len(terms)))
    factors = tuple(
        replace(f, operation=Operation.DIVIDE, purpose=Purpose.UNKNOWN)
        if f.purpose is Purpose.OBJECTIVE and f.value is not None and math.isclose(f.value * number, 1.0)
        else f
        for f in first.factors
    )
    return Term(kind, Reduction.SUM, number, factors, number)


def _is_part_of(one: Series, whole: Series) -> bool:
    return one.lines == whole.lines and kind_in(one.name) == whole.name


def _is_nothing(series: Series, windows: Iterable[Window]) -> bool:
    backwards = (entry.backward for window in windows for own in window.by_rank() for entry in own)
    terms = [term for backward in backwards for term in backward.terms if series.holds(backward, term)]
    return all(any(factor.value == 0.0 for factor in term.factors) for term in terms)


def _steps_of(series: Series, every: Sequence[Series], windows: Iterable[Window], steps: int) -> int:
    """How many micro-batches of a full window have ``series``: all K of them, or a smaller, constant number.

    A penalty may have one backward in each window, and each of several tasks its own. Where another place runs the
    backward of losses of the same kind, both may be one series that was not recognized as one.
    """
    return steps if _of_its_kind(series, every) else _held_by_full(series, windows, steps)


def _of_its_kind(series: Series, every: Iterable[Series]) -> list[Series]:
    """The other series of losses of this kind, whose backward another place runs."""
    return [o for o in every if o.lines != series.lines and kind_in(o.name) == kind_in(series.name)]


def _held_by_full(series: Series, windows: Iterable[Window], steps: int) -> int:
    """How many micro-batches of each full window have ``series``; all of them where that is not the same number."""
    held = {len(_held(series, window.fresh())) for window in windows if window.micro_batches == steps} - {0}
    return min(steps, held.pop()) if len(held) == 1 else steps


def _once_a_window(every: Iterable[Series], windows: Iterable[Window]) -> frozenset[Series]:
    """The series that exactly one micro-batch has of each window of several."""
    several = [window.fresh() for window in windows if window.micro_batches > 1]
    return frozenset(one for one in every if several and all(len(_held(one, fresh)) == 1 for fresh in several))


def _points(series: Series, windows: Iterable[Window], steps: int, *, leaks: bool = False) -> list[Point]:
    points: list[Point] = []
    windows = list(windows)
    scaled = [e.grad_factors for w in windows for e in w.with_fate(Fate.LIVE) if e.grad_factors]
    parts = [(window, part) for window in windows for part in window.passes(steps, leaks=leaks)]
    for step, (window, part) in enumerate(parts):
        ranks = [[(e, t) for e in entries for t in series.terms_of(e.backward)] for entries in part]
        units = [total_of(t.units for _, t in own) for own in ranks]
        rows = [total_of(t.rows for _, t in own) for own in ranks]
        # Entries that no step used are treated as if they were live, and scaled like the others in the end.
        of_step = [e.grad_factors for e in window.with_fate(Fate.LIVE) if e.grad_factors]
        of_others = (of_step or scaled or [()])[-1]
        # What an earlier pass left over has a scaling of its own, but is part of the window that it is in.
        shared = units[0], rows[0]
        if len(part) > 1 or part != window.by_rank():
            held = [t for own in window.by_rank() for e in own for t in series.terms_of(e.backward)]
            shared = total_of(t.units for t in held), total_of(t.rows for t in held)
        divisor = window.divisor
        of_window = tuple(entry.backward for entries in part for entry in entries)
        over_ranks = divisor, _divided(shared[0], divisor), _divided(shared[1], divisor), step
        for own, own_units, own_rows in zip(ranks, units, rows, strict=True):
            for entry, term in own:
                unused = scaled and entry.fate in (Fate.WIPED, Fate.LEFT)
                scalings = of_others if unused else entry.grad_factors
                factors = (*term.factors, *(scaling.factor for scaling in scalings))
                points.append(
                    Point(entry.backward, term, factors, steps, len(own), own_units, own_rows, *over_ranks, of_window)
                )
    return points


def _all_entries(window: Window) -> list[Entry]:
    return [*window.entries, *(entry for own in window.elsewhere for entry in own)]


def _held(series: Series, entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if series.is_in(e.backward)]


def _divided(total: float | None, divisor: int) -> float | None:
    return None if total is None else total / divisor


def total_of(values: Iterable[float | None]) -> float | None:
    """The sum of several numbers, None where one of them is not known."""
    every = list(values)
    known = [value for value in every if value is not None]
    return math.fsum(known) if len(known) == len(every) else None

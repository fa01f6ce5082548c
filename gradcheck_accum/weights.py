"""What each entry of the ledger weighs, and what it was meant to weigh.

The gradient of a window is g = Σ_j c_j ∇L_j with L_j the mean loss of micro-batch j over n_j units, so one unit of it
has the weight w_j = c_j / n_j. The large batch of N = Σ n_j units, with the loss's intended coefficient a, gives each
unit a / N. The *relative weight* w_j N / a is therefore 1 everywhere if and only if the window is right.

c_j is read off the loop: the product of the factors between the reduction and ``backward``, and of those that scaled
the gradient afterwards. a is not written anywhere, so it is decided here from evidence, in this order: what the caller
states; what the source says a factor is for; a factor that equals 1/K, 1/m, n_j/N, or that divides by the units, is
the accumulation's, and any other belongs to the objective. A sum-reduced loss needs no scaling at all: its large
batch gives each unit the weight a.

Where gradients are averaged over d ranks, each unit has the weight w_j / d in the end, and N counts the units of all of
them: the relative weight is w_j (N / d) / a, that of one process whose window holds N / d units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gradcheck_accum.events import Backward, Operation, Purpose, Reduction, Term, product_of
from gradcheck_accum.factors import RELATIVE_TOLERANCE, Column, Evidence, Point, is_ambiguous
from gradcheck_accum.ledger import UNSEEN_SCALING, Entry, Fate, Ledger, Window, nominal_steps
from gradcheck_accum.ranks import left_local


@dataclass(frozen=True, slots=True)
class Series:
    """The term of a loop that one place in the source contributes, micro-batch after micro-batch."""

    lines: frozenset[tuple[str, int]]
    name: str

    def holds(self, backward: Backward, term: Term) -> bool:
        """Whether ``term`` of ``backward`` belongs to this series."""
        return term.name == self.name and backward.where.place in self.lines


@dataclass(frozen=True, slots=True)
class Weight:
    """One term of one entry.

    ``share`` is c_j / a, the part of the whole objective that the micro-batch got; ``relative`` is w_j N / a.
    Both count the entry as if it were live, and are None where a factor is unknown.
    """

    entry: Entry
    units: float | None
    share: float | None
    relative: float | None


@dataclass(slots=True)
class _Reading:
    """How one series' factors were read: per backward its coefficient, objective and units."""

    kind: Reduction
    coefficient: dict[int, float | None] = field(default_factory=dict)
    objective: dict[int, float] = field(default_factory=dict)
    units: dict[int, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class Readings:
    """The weights of every entry of a ledger, and ``notes`` on how the loss's scale was read."""

    precision: float
    series: dict[tuple[str, str], tuple[Series, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _read: dict[tuple[str, str, Series], _Reading] = field(default_factory=dict)
    _known: dict[tuple[int, Series], tuple[Window, tuple[Weight, ...]]] = field(default_factory=dict)
    """The weights that were asked for before, by the window's identity: every pattern asks for the same."""

    @property
    def tolerance(self) -> float:
        """The relative difference within which two weights are the same."""
        return max(RELATIVE_TOLERANCE, 4 * self.precision)

    def same(self, left: float, right: float) -> bool:
        """Whether two weights are the same number within the precision that they were read in."""
        return math.isclose(left, right, rel_tol=self.tolerance, abs_tol=1e-12)

    def series_of(self, window: Window) -> tuple[Series, ...]:
        """The series that have an entry in ``window``."""
        return tuple(
            series
            for series in self.series.get((window.optimizer, window.store), ())
            if any(series.holds(e.backward, t) for e in _all_entries(window) for t in e.backward.terms)
        )

    def kind(self, window: Window, series: Series) -> Reduction:
        """How the losses of ``series`` add up: a mean over units, a sum over units, or once per step."""
        return self._read[window.optimizer, window.store, series].kind

    def same_objective(self, window: Window, series: Series) -> bool:
        """Whether the objective weighs ``series`` the same in all micro-batches of ``window``."""
        own = self._read[window.optimizer, window.store, series].objective
        values = [own.get(id(entry.backward), 1.0) for entries in window.by_rank() for entry in entries]
        return all(self.same(value, values[0]) for value in values)

    def weights(self, window: Window, series: Series) -> tuple[Weight, ...]:
        """The weights of one series' entries in ``window``, in the window's order."""
        known = self._known.get((id(window), series))
        if known is None:
            known = self._known[id(window), series] = window, self._weights(window, series, window.entries)
        return known[1]

    def weights_elsewhere(self, window: Window, series: Series) -> tuple[Weight, ...]:
        """The weights of one series' entries of the same step on other ranks."""
        return tuple(w for own in window.elsewhere for w in self._weights(window, series, own))

    def _weights(self, window: Window, series: Series, entries: Sequence[Entry]) -> tuple[Weight, ...]:
        reading = self._read[window.optimizer, window.store, series]
        total = self._total(window, series)
        own = _held(series, entries)
        length = len([e for e in own if e.fate is not Fate.STALE] or own)
        return tuple(self._weight(reading, entry, total, length) for entry in own)

    def _total(self, window: Window, series: Series) -> float | None:
        """N / d: the units of all ranks, divided as the average over them is."""
        fresh = [e for own in window.by_rank() for e in _held(series, own)] or _held(series, window.entries)
        units = total_of(self._units(window, series, e) for e in fresh)
        return None if units is None else units / window.divisor

    def _units(self, window: Window, series: Series, entry: Entry) -> float | None:
        return self._read[window.optimizer, window.store, series].units.get(id(entry.backward))

    def rank_share(self, window: Window, series: Series, entry: Entry) -> float:
        """What the large batch of the micro-batches of one rank, ``entry``'s, counts in that of all ranks.

        1 where there is one rank; else its part of the units, or of the ranks where units do not count.
        """
        total = self._total(window, series)
        own = next((o for o in window.by_rank() if any(e.backward is entry.backward for e in o)), ())
        units = total_of(self._units(window, series, e) for e in _held(series, own))
        if not window.elsewhere or self.kind(window, series) is not Reduction.MEAN or not total or units is None:
            return 1.0 / window.divisor
        return units / total / window.divisor

    @staticmethod
    def _weight(reading: _Reading, entry: Entry, total: float | None, length: int) -> Weight:
        key = id(entry.backward)
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
        """What each entry of ``window`` weighs in the gradient that the step got: 1 is right, 0 is gone.

        Where a backward has several terms, it is the first term that counts units which is shown. The entries of
        other ranks follow the window's own. What no average has reached by the step weighs nothing on other ranks, and
        on its own what the average should have divided; nothing there either where it waits beside ``.grad``.
        """
        first: dict[int, float | None] = {}
        by_units = sorted(self.series_of(window), key=lambda s: self.kind(window, s) is Reduction.NONE)
        local = {id(e.backward) for e in left_local(window.fresh())}
        away = {id(e.backward) for own in window.elsewhere for e in left_local(own)}
        for series in by_units:
            for weight in (*self.weights(window, series), *self.weights_elsewhere(window, series)):
                key = id(weight.entry.backward)
                gone = weight.entry.fate in (Fate.WIPED, Fate.LEFT) or key in away
                relative = weight.relative
                if key in local and relative is not None:
                    relative *= 0.0 if weight.entry.backward.kept_apart else window.divisor
                first.setdefault(key, 0.0 if gone else relative)
        return tuple(first.get(id(entry.backward)) for entry in _all_entries(window))

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

    ``coefficient`` is the intended coefficient a of the loss where the caller states it; then every factor counts as
    the accumulation's.
    """
    readings = Readings(precision=ledger.trace.precision)
    for account in ledger.accounts():
        windows = [
            w
            for w in (*ledger.windows, *ledger.abandoned)
            # A step that the grad scaler skipped says nothing, nor does one that it should have: its losses overflowed.
            if (w.optimizer, w.store) == account
            and not (w.step is not None and w.step.skipped)
            and w.unknown not in UNSEEN_SCALING
        ]
        series = _find_series(windows)
        # What is always weighed with 0 (a sum over the outputs that keeps weights in use, say) is no part of the loss.
        series = tuple(s for s in series if not _is_nothing(s, windows)) or series
        readings.series[account] = series
        steps = nominal_steps(w for w in windows if w.step is not None) or 1
        backwards = [entry.backward for window in windows for entry in _all_entries(window)]
        for one in series:
            evidence = Evidence(_points(one, windows, steps), readings.same, backwards)
            readings._read[account[0], account[1], one] = _read_series(evidence, coefficient, readings)
    return readings


def _find_series(windows: Sequence[Window]) -> tuple[Series, ...]:
    """Group the backwards of an account by the part of the objective that they carry.

    Two places that run on the same batch of data are two terms. Two that never do, and of which one repeats within
    a window or whose losses are divided by their number, are the same term written twice (the last micro-batch of a
    window outside ``no_sync``, say); so are two that never share a window (a flush with a backward of its own).
    """
    batches: dict[tuple[str, int], set[int]] = {}
    repeats: set[tuple[str, int]] = set()
    together: set[frozenset[tuple[str, int]]] = set()
    names: dict[tuple[str, int], list[str]] = {}
    for window in windows:
        seen: dict[tuple[str, int], set[int]] = {}
        for entry in (e for own in window.by_rank() for e in own):
            line = entry.backward.where.place
            seen.setdefault(line, set()).add(entry.backward.micro_batch)
            batches.setdefault(line, set()).add(entry.backward.micro_batch)
            for term in entry.backward.terms:
                if term.name not in names.setdefault(line, []):
                    names[line].append(term.name)
        stated = window.step is not None and (window.step.accumulation_steps or 1) > 1
        accumulated = len(seen) > 1 and (stated or _divided_by(window, window.micro_batches))
        repeats |= {line for line, own in seen.items() if len(own) > 1 or accumulated}
        together |= {frozenset(pair) for pair in combinations(seen, 2)}
    groups: list[list[tuple[str, int]]] = []
    for line, own in batches.items():
        for group in groups:
            meets = [other for other in group if frozenset((line, other)) in together]
            joined = all(not own & batches[other] for other in group) and (
                not meets or any({line, other} & repeats for other in meets)
            )
            if joined and set(names[line]) == set(names[group[0]]):
                group.append(line)
                break
        else:
            groups.append([line])
    return tuple(Series(frozenset(group), name) for group in groups for name in names[group[0]])


def _divided_by(window: Window, count: int) -> bool:
    """Whether every loss of a window's own entries is divided by ``count``, more than one."""
    return count > 1 and all(
        any(f.operation is Operation.DIVIDE and f.value and math.isclose(f.value * count, 1.0) for f in term.factors)
        for entry in window.fresh()
        for term in entry.backward.terms
    )


def _is_nothing(series: Series, windows: Iterable[Window]) -> bool:
    backwards = (entry.backward for window in windows for own in window.by_rank() for entry in own)
    terms = [term for backward in backwards for term in backward.terms if series.holds(backward, term)]
    return all(any(factor.value == 0.0 for factor in term.factors) for term in terms)


def _points(series: Series, windows: Iterable[Window], steps: int) -> list[Point]:
    points: list[Point] = []
    windows = list(windows)
    scaled = [e.grad_factors for w in windows for e in w.with_fate(Fate.LIVE) if e.grad_factors]
    for step, window in enumerate(windows):
        ranks = [
            [(e, t) for e in entries for t in e.backward.terms if series.holds(e.backward, t)]
            for entries in window.by_rank()
        ]
        units = [total_of(t.units for _, t in own) for own in ranks]
        rows = [total_of(t.rows for _, t in own) for own in ranks]
        over_ranks = window.divisor, _shared(units, window.divisor), _shared(rows, window.divisor), step
        for own, own_units, own_rows in zip(ranks, units, rows, strict=True):
            for entry, term in own:
                # Those that no step got count as if they were live: scaled as the others are, in the end.
                scalings = scaled[-1] if scaled and entry.fate in (Fate.WIPED, Fate.LEFT) else entry.grad_factors
                factors = (*term.factors, *(scaling.factor for scaling in scalings))
                points.append(Point(entry.backward, term, factors, steps, len(own), own_units, own_rows, *over_ranks))
    return points


def _all_entries(window: Window) -> list[Entry]:
    return [*window.entries, *(entry for own in window.elsewhere for entry in own)]


def _held(series: Series, entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if any(series.holds(e.backward, t) for t in e.backward.terms)]


def _shared(totals: Sequence[float | None], divisor: int) -> float | None:
    total = total_of(totals)
    return None if total is None else total / divisor


def total_of(values: Iterable[float | None]) -> float | None:
    """The sum of several numbers, None where one of them is not known."""
    known = list(values)
    return None if None in known else math.fsum(v for v in known if v is not None)


def _read_series(evidence: Evidence, coefficient: float | None, readings: Readings) -> _Reading:
    points = evidence.points
    reading = _Reading(points[0].term.reduction if points else Reduction.NONE)
    for point in points:
        reading.coefficient[id(point.backward)] = product_of(point.factors)
        reading.units[id(point.backward)] = point.term.units
    if any(value is None for value in reading.coefficient.values()):
        return reading
    columns = evidence.columns()
    whole = evidence.of_the_whole_loss(columns)
    undone = evidence.undone_mean(whole, columns) if reading.kind is Reduction.MEAN else None
    if undone is not None:
        evidence, columns = _read_as_sum(reading, evidence, columns, undone)
    normalised = reading.kind is not Reduction.SUM
    if reading.kind is Reduction.SUM:
        columns, normalised = _read_sum(reading, evidence, columns)
    if coefficient is not None:
        reading.objective = {id(point.backward): coefficient for point in points}
        return reading
    # What the source leaves open, a run does not: each of its windows was really one micro-batch.
    idle = [c for c in columns if readings.precision and evidence.divides_for_nothing(c)]
    scaling = [c for c in columns if normalised and (evidence.is_scaling(c) or any(c is i for i in idle))]
    scaling = [c for c in scaling if not _is_of_its_term(evidence, whole, c, scaling)]
    objective = [c for c in columns if not any(c is other for other in scaling)]
    mixed = [c for c in objective if _is_of_its_term(evidence, whole, c, scaling)]
    uneven = [c for c in objective if evidence.varies_within_a_window(c) and not any(c is m for m in mixed)]
    if uneven and evidence.adds_up([*scaling, *uneven]):
        # Shares that add up to the whole are the accumulation's, whatever they were computed from.
        scaling, objective = [*scaling, *uneven], [c for c in objective if c not in uneven]
    elif uneven:
        reading.coefficient = dict.fromkeys(reading.coefficient)
        return reading
    # Where a sum is divided by the units of its window, nothing is left to scale.
    is_right = evidence.is_right_with if reading.kind is not Reduction.SUM else evidence.changes_nothing
    undoing = [c for c in objective if evidence.enlarges(c) and not any(c is m for m in mixed)]
    if normalised and undoing and is_right([*scaling, *undoing]) and not is_right(scaling):
        # What is multiplied by here undoes a division that is made elsewhere, by a framework say.
        scaling, objective = [*scaling, *undoing], [c for c in objective if not any(c is u for u in undoing)]
    # The other reading of coefficients that happen to equal 1/K: the objective's, if that makes the loop right and
    # something else scales already.
    doubtful = [c for c in scaling if c[0].value != 1.0 and evidence.may_be_objective(c)]
    for chosen in ([c] for c in doubtful) if len(doubtful) == 1 else (*([c] for c in doubtful), doubtful):
        rest = [c for c in scaling if not any(c is other for other in chosen)]
        if rest and chosen and is_right(rest):
            objective, scaling = [*objective, *chosen], rest
            readings.notes.extend(
                f"the factor {column[0].value:.6g} of {points[0].term.name} was read as part of the objective, "
                "because another factor already scales the window"
                for column in chosen
            )
            break
    together = _scaling_together(evidence, whole, scaling, objective)
    if together and reading.kind is not Reduction.SUM:
        scaling, objective = [*scaling, *together], [c for c in objective if not any(c is t for t in together)]
        readings.notes.append(
            f"the factors {', '.join(f'{c[0].value:.6g}' for c in scaling)} of {points[0].term.name} come to 1/K "
            "together and were read as loss scaling; if they are part of the objective, state --loss-coefficient"
        )
    if readings.precision and _is_in_the_dark(evidence, scaling, objective):
        readings.notes.append(
            f"what {points[0].term.name} is multiplied by may be the division by K or belong to the objective: state "
            "--loss-coefficient"
        )
        reading.coefficient = dict.fromkeys(reading.coefficient)
        return reading
    if len(scaling) == 1 and not objective and is_ambiguous(scaling[0]):
        readings.notes.append(
            f"the factor {scaling[0][0].value:.6g} of {points[0].term.name} equals 1/K and was read as loss scaling; "
            "if it is part of the objective, state --loss-coefficient"
        )
    for position, point in enumerate(points):
        key, own = id(point.backward), math.prod(c[position].value or 0.0 for c in objective)
        if not own:
            # What the objective weighs with 0 is scaled as the rest is, and adds nothing.
            own = math.prod(c[position].value or 1.0 for c in objective)
            reading.coefficient[key] = own * math.prod(c[position].value or 0.0 for c in scaling)
        reading.objective[key] = own
    return reading


def _is_in_the_dark(evidence: Evidence, scaling: Sequence[Column], objective: Sequence[Column]) -> bool:
    """Whether a run's graph does not tell what the one factor that may be the accumulation's is there for.

    Where it does not tell either what a loss was reduced over, each factor may be one over the units of a micro-batch
    or of the window; so that there has to be one that equals 1/K, and no other.
    """
    told = [column for column in scaling if any(factor.value != 1.0 for factor in column)]
    counting = [point for point in evidence.points if point.term.reduction is not Reduction.NONE and point.steps > 1]
    if any(point.term.units is None for point in counting) and (len(told) > 1 or (objective and not told)):
        return True
    means = [column for column in (*told, *objective) if evidence.may_be_a_mean_of_terms(column)]
    return len(told) == 1 and means == told


def _is_of_its_term(evidence: Evidence, whole: Sequence[Column], column: Column, scaling: Sequence[Column]) -> bool:
    """Whether ``column`` is one term's own and not the ``whole`` loss's, and weighs that term in the objective."""
    if len(evidence.points[0].backward.terms) < 2 or any(column is c for c in whole):
        return False
    scaled = any(c is s for c in whole for s in scaling if any(f.value != 1.0 for f in s))
    return evidence.belongs_to_its_term(column, scaled)


def _scaling_together(
    evidence: Evidence, whole: Sequence[Column], scaling: Sequence[Column], objective: Sequence[Column]
) -> list[Column]:
    """The factors of the ``whole`` loss that were taken for its objective's, and come to 1/K with the others.

    So do the rows of a micro-batch over those of the window.
    """
    open_ = [c for c in objective if any(c is w for w in whole) and all(f.purpose is Purpose.UNKNOWN for f in c)]
    divided = any(f.operation is Operation.DIVIDE for c in (*scaling, *open_) for f in c)
    several = len(open_) + len(scaling) > 1
    if not (several and divided) or evidence.is_right_with(scaling) or not evidence.is_right_with([*scaling, *open_]):
        return []
    return open_


def _read_as_sum(
    reading: _Reading, evidence: Evidence, columns: Sequence[Column], undone: Column
) -> tuple[Evidence, list[Column]]:
    """Take a mean that ``undone`` multiplies by its own number for a sum.

    Returns the evidence in that number's units, and the columns that are left.
    """
    reading.kind = Reduction.SUM
    for factor, point in zip(undone, evidence.points, strict=True):
        key = id(point.backward)
        reading.coefficient[key] = (reading.coefficient[key] or 0.0) / (factor.value or 1.0)
        reading.units[key] = factor.value
    return evidence.counted_by(undone), [column for column in columns if column is not undone]


def _read_sum(reading: _Reading, evidence: Evidence, columns: list[Column]) -> tuple[list[Column], bool]:
    """A sum divided by a count is a mean: over the micro-batch's units, or over the whole window's.

    Returns the columns that are left once the count has been taken out, and whether there was one. Where the count
    is the micro-batch's own the reading becomes a mean; where it is the window's, each unit already has the weight
    1/N; the units of a full window, as a constant, count a shorter one wrongly. A sum that nothing normalises is a
    sum objective, and its constant factors are its coefficient.
    """
    if evidence.averages_the_window(columns):
        reading.coefficient = dict.fromkeys(reading.coefficient, 1.0)
        return [], True
    undone = next((column for column in columns if evidence.undoes_the_average(column)), None)
    for column in columns:
        divides = all(factor.operation is Operation.DIVIDE and factor.value for factor in column)
        if not divides and not evidence.is_known_count(column):
            continue
        own = evidence.is_own_count(column)
        full = {} if own else evidence.full_window_counts(column)
        if not own and not full and not evidence.is_window_count(column):
            continue
        due = evidence.due_counts(column)
        for factor, point, count in zip(column, evidence.points, due, strict=True):
            key = id(point.backward)
            own_count = 1.0 / (factor.value or 1.0)
            count = full[key] if full else own_count if own else count
            reading.coefficient[key] = (reading.coefficient[key] or 0.0) * count
            if own:
                reading.units[key] = own_count
        if own:
            reading.kind = Reduction.MEAN
        return [other for other in columns if other is not column and other is not undone], True
    return columns, False

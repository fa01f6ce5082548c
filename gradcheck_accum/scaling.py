"""Which of the factors that a series' losses were multiplied by are the accumulation's, and which the objective's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradcheck_accum.events import Operation, Purpose, Reduction, product_of
from gradcheck_accum.factors import Column, Evidence, is_ambiguous


@dataclass(slots=True)
class SeriesReading:
    """How one series' factors were read: per backward its coefficient, objective and units.

    A coefficient is None where it is not known. ``notes`` tell what could have been read otherwise. ``normalised``
    says whether units count once however many there are: those of a mean, or of a sum that is divided by their number.
    ``doubted`` is another reading of factors whose numbers alone do not tell what they are there for.
    """

    kind: Reduction
    normalised: bool = False
    coefficient: dict[int, float | None] = field(default_factory=dict)
    objective: dict[int, float] = field(default_factory=dict)
    units: dict[int, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubted: SeriesReading | None = None

    @property
    def is_dark(self) -> bool:
        """Whether no coefficient is known."""
        return all(value is None for value in self.coefficient.values())

    def give_up(self) -> SeriesReading:
        """Nothing can be told of the coefficients."""
        self.coefficient = dict.fromkeys(self.coefficient)
        return self


def read_series(evidence: Evidence, coefficient: float | None, *, in_a_run: bool) -> SeriesReading:
    """Read the factors of a series.

    ``coefficient`` is the intended coefficient a of the loss where the caller states it; ``in_a_run`` says that they
    were seen in a run, which shows numbers and real windows, and not in a source, which shows names.
    """
    points = evidence.points
    reading = SeriesReading(points[0].term.reduction if points else Reduction.NONE)
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
        if reading.is_dark:
            return reading
    reading.normalised = normalised
    if coefficient is not None:
        reading.objective = {id(point.backward): coefficient for point in points}
        return reading
    sorted_ = _Sorted(evidence, whole, reading.kind, normalised)
    if not sorted_.sort(columns, in_a_run=in_a_run):
        return reading.give_up()
    reading.notes += sorted_.notes
    scaling, objective = sorted_.scaling, sorted_.objective
    if in_a_run and _is_in_the_dark(evidence, scaling, objective):
        reading.notes.append(
            f"what {points[0].term.name} is multiplied by may be the division by K or belong to the objective: state "
            "--loss-coefficient"
        )
        reading.doubted = _read_otherwise(reading, evidence, scaling, objective)
        return reading.give_up()
    if len(scaling) == 1 and not objective and is_ambiguous(scaling[0]):
        reading.notes.append(
            f"the factor {scaling[0][0].value:.6g} of {points[0].term.name} equals 1/K and was read as loss scaling; "
            "if it is part of the objective, state --loss-coefficient"
        )
    own = [c for c in scaling if reading.kind is Reduction.NONE and _may_be_a_coefficient(c, whole, evidence)]
    if in_a_run and own:
        reading.doubted = _read_otherwise(reading, evidence, _without(scaling, own), [*objective, *own])
        reading.doubted.notes = [
            f"the factor {column[0].value:.6g} of {points[0].term.name} equals 1/K, and was read as part of the "
            "objective: as the rest of its loss is scaled, the gradient is another one either way"
            for column in own
        ]
    _weigh(reading, evidence, scaling, objective)
    return reading


def _may_be_a_coefficient(column: Column, whole: Sequence[Column], evidence: Evidence) -> bool:
    """Whether a term's own factor is one number, and nothing but its equality with 1/K says what it is there for."""
    value = column[0].value
    unknown = all(factor.purpose is Purpose.UNKNOWN and factor.value == value for factor in column)
    return unknown and value != 1.0 and not _is_among(column, whole) and not evidence.is_named_after_steps(column)


def _read_otherwise(
    reading: SeriesReading, evidence: Evidence, scaling: Sequence[Column], objective: Sequence[Column]
) -> SeriesReading:
    other = replace(reading, coefficient=dict(reading.coefficient), objective={}, notes=[])
    _weigh(other, evidence, scaling, objective)
    return other


def _weigh(reading: SeriesReading, evidence: Evidence, scaling: Sequence[Column], objective: Sequence[Column]) -> None:
    """Note what the objective weighs each backward with, and what comes to it where that is 0."""
    products = zip(evidence.points, evidence.products(objective), evidence.products(scaling), strict=True)
    for position, (point, own, scaled) in enumerate(products):
        key = id(point.backward)
        if not own:
            # What the objective weighs with 0 is scaled as the rest is, and adds nothing.
            own = math.prod(c[position].value or 1.0 for c in objective)
            reading.coefficient[key] = own * scaled
        reading.objective[key] = own


@dataclass(slots=True)
class _Sorted:
    """The columns of a series, each the accumulation's (``scaling``) or the ``objective``'s.

    ``whole`` are those of the loss as a whole, ``normalised`` says whether units count once however many there are.
    """

    evidence: Evidence
    whole: Sequence[Column]
    kind: Reduction
    normalised: bool
    scaling: list[Column] = field(default_factory=list)
    objective: list[Column] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sort(self, columns: Sequence[Column], *, in_a_run: bool) -> bool:
        """Sort ``columns``; whether that could be done."""
        evidence = self.evidence
        scaling = [c for c in columns if self.normalised and evidence.is_scaling(c)]
        if in_a_run:
            self._note_what_may_be_steps(_without(columns, scaling))
        self.scaling = [c for c in scaling if not self._is_of_its_term(c, scaling)]
        self.objective = _without(columns, self.scaling)
        mixed = [c for c in self.objective if self._is_of_its_term(c, self.scaling)]
        uneven = [c for c in _without(self.objective, mixed) if evidence.varies_within_a_window(c)]
        if uneven and not evidence.adds_up([*self.scaling, *uneven]):
            return False
        # Shares that add up to the whole are the accumulation's, whatever they were computed from.
        self._count_as_scaling(uneven)
        self._count_what_undoes_a_division(mixed)
        self._give_back_what_is_not_needed()
        self._count_what_comes_to_it_together()
        return True

    def _note_what_may_be_steps(self, columns: Sequence[Column]) -> None:
        """Say how a divisor could be read otherwise where every micro-batch steps: it may be a K that never shows."""
        self.notes += [
            f"every window is one micro-batch, and the division of {self._name} by {1 / (c[0].value or 1.0):.6g} was "
            "read as part of the objective; if that is the accumulation steps, every micro-batch steps and each update "
            "is too short (GA304): state --loss-coefficient 1, and verify will say so"
            for c in columns
            if self.evidence.may_divide_for_nothing(c)
        ]

    def _count_as_scaling(self, columns: Sequence[Column]) -> None:
        self.scaling = [*self.scaling, *columns]
        self.objective = _without(self.objective, columns)

    def _is_right(self, columns: Sequence[Column]) -> bool:
        """Whether ``columns`` alone make every full window right."""
        if self.kind is Reduction.SUM:
            # Where a sum is divided by the units of its window, nothing is left to scale.
            return self.evidence.changes_nothing(columns)
        return self.evidence.is_right_with(columns)

    def _count_what_undoes_a_division(self, mixed: Sequence[Column]) -> None:
        """What is multiplied by may undo a division that is made elsewhere, by a framework say."""
        undoing = [c for c in _without(self.objective, mixed) if self.evidence.enlarges(c)]
        if not (self.normalised and undoing) or self._is_right(self.scaling):
            return
        if self._is_right([*self.scaling, *undoing]):
            self._count_as_scaling(undoing)

    def _give_back_what_is_not_needed(self) -> None:
        """Coefficients that happen to equal 1/K are the objective's, if something else scales the windows right."""
        doubtful = [c for c in self.scaling if c[0].value != 1.0 and self.evidence.may_be_objective(c)]
        for chosen in ([c] for c in doubtful) if len(doubtful) == 1 else (*([c] for c in doubtful), doubtful):
            rest = _without(self.scaling, chosen)
            if rest and chosen and self._is_right(rest):
                self.objective, self.scaling = [*self.objective, *chosen], rest
                self.notes += [
                    f"the factor {column[0].value:.6g} of {self._name} was read as part of the objective, because "
                    "another factor already scales the window"
                    for column in chosen
                ]
                return

    def _count_what_comes_to_it_together(self) -> None:
        """Several factors of the whole loss may come to 1/K: a micro-batch's rows over those of the window, say."""
        if self.kind is Reduction.SUM:
            return
        unknown = [c for c in self.objective if _is_among(c, self.whole)]
        unknown = [c for c in unknown if all(f.purpose is Purpose.UNKNOWN for f in c)]
        divided = any(f.operation is Operation.DIVIDE for c in (*self.scaling, *unknown) for f in c)
        if not (unknown and len(unknown) + len(self.scaling) > 1 and divided):
            return
        if self._is_right(self.scaling) or not self._is_right([*self.scaling, *unknown]):
            return
        self._count_as_scaling(unknown)
        self.notes.append(
            f"the factors {', '.join(f'{c[0].value:.6g}' for c in self.scaling)} of {self._name} come to 1/K together "
            "and were read as loss scaling; if they are part of the objective, state --loss-coefficient"
        )

    def _is_of_its_term(self, column: Column, scaling: Sequence[Column]) -> bool:
        """Whether ``column`` is one term's own and not the whole loss's, and weighs that term in the objective."""
        if len(self.evidence.points[0].backward.terms) < 2 or _is_among(column, self.whole):
            return False
        scaled = any(_is_among(c, scaling) and any(f.value != 1.0 for f in c) for c in self.whole)
        return self.evidence.belongs_to_its_term(column, scaled)

    @property
    def _name(self) -> str:
        return self.evidence.points[0].term.name


def _is_among(column: Column, columns: Sequence[Column]) -> bool:
    """Whether it is one of them; another with the same factors is not."""
    return any(column is other for other in columns)


def _without(columns: Sequence[Column], others: Sequence[Column]) -> list[Column]:
    return [column for column in columns if not _is_among(column, others)]


def _is_in_the_dark(evidence: Evidence, scaling: Sequence[Column], objective: Sequence[Column]) -> bool:
    """Whether a run's graph does not tell what the one factor that may be the accumulation's is there for.

    Where it does not tell either what a loss was reduced over, each factor may be one over the units of a micro-batch
    or of the window; so that there has to be one that equals 1/K, and no other.
    """
    told = [column for column in scaling if any(factor.value != 1.0 for factor in column)]
    accumulated = [point for point in evidence.points if point.steps > 1]
    if any(point.term.units is None for point in accumulated) and (len(told) > 1 or (objective and not told)):
        return True
    means = [column for column in (*told, *objective) if evidence.may_be_a_mean_of_terms(column)]
    return len(told) == 1 and means == told


def _read_as_sum(
    reading: SeriesReading, evidence: Evidence, columns: Sequence[Column], undone: Column
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


def _read_sum(reading: SeriesReading, evidence: Evidence, columns: list[Column]) -> tuple[list[Column], bool]:
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
        unlike = [] if own or full else evidence.unlike_counts(column)
        if unlike:
            # A mask leaves no more than there are, and weights mostly add up to broken numbers.
            whole = all(evidence.same(count, round(count)) for _, count in unlike)
            exceeds = whole and any(count > units for units, count in unlike)
            reading.notes.append(_of_unlike_counts(evidence.points[0].term.name, unlike, exceeds))
            if exceeds:
                reading.give_up()
                return [], True
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


def _of_unlike_counts(name: str, unlike: Sequence[tuple[float, float]], exceeds: bool) -> str:
    """What is to be said of a sum that is divided by other numbers than its windows hold units."""
    shown = unlike[:4]
    more = ", …" if len(unlike) > len(shown) else ""
    counts, units = (", ".join(f"{pair[i]:.6g}" for pair in shown) + more for i in (1, 0))
    read = (
        "that is neither their number nor a constant share of it, so what a unit should weigh is not known: divide by "
        "what the window holds, or compare with a run on large batches"
        if exceeds
        else "that was read as the number, or the weights, of those that count (a mask's, say)"
    )
    return f"{name} is summed over windows of {units} units and divided by {counts}: {read}"

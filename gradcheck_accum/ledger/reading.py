"""Reads what the factors of a series' losses are there for: which are the accumulation's, and which the objective's.

A *reading* gives each column of factors to one of the two. It is right if the accumulation's product adds up to the
whole in every full window, and nothing that the objective weighs whole losses with changes within a window. Evidence
comes in this order: what is stated; where a number comes from; that it changes with the window's length or its units;
that it equals what a role predicts. So a reading is made in three steps:

1. What its source, or a change, shows to be the accumulation's or the objective's is read as that, and so is a
   division by what a role predicts, where no source shows what the number is.
2. If that is not right, the other columns that a role allows for are tried, the fewest first: a right reading is taken.
3. If none is right, no further column is taken from the objective but divisions that a role predicts, if only in some
   window, or by a number that is K but for one.

A number that the source has another name for, or none, than what decides on a step is *contested* where it equals a
role's prediction. Then both readings are made. The one that is right holds if it is the one that does not need the
equality; if it needs it, nothing is known, and both are named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gradcheck_accum.ledger.column_split import ColumnSplit, is_from_elsewhere
from gradcheck_accum.ledger.events import Backward, Reduction, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.roles import (
    COUNTS,
    SHARES,
    Column,
    Evidence,
    Source,
)
from gradcheck_accum.ledger.stated_names import is_literal, is_place
from gradcheck_accum.ledger.unit_counts import counted_by, read_sum, undone_mean

Applied = tuple[Location, tuple[float, ...]]
"""A factor: where it was applied, and its numbers. It is one and the same for all terms of the loss."""


@dataclass(slots=True)
class SeriesReading:
    """How one series' factors were read: per backward its coefficient, objective and units.

    A coefficient is None where it is not known. ``notes`` tell what could have been read otherwise. ``normalised``
    says whether units count once however many there are: those of a mean, or of a sum that is divided by their number.
    """

    kind: Reduction
    normalised: bool = False
    coefficient: dict[Backward, float | None] = field(default_factory=dict)
    objective: dict[Backward, float] = field(default_factory=dict)
    units: dict[Backward, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    intended: float = 1.0
    """What the objective multiplies the whole loss by, at the first point."""
    scaled_at: frozenset[Location] = frozenset()
    """Where the factors were applied that are read as the accumulation's."""
    scaled_by: frozenset[Applied] = frozenset()
    """The factors of the whole loss, of all its terms, that are: those by which a sum's units are counted too."""
    weighed_by: frozenset[Applied] = frozenset()
    """Those that are read as the objective's."""

    @property
    def is_dark(self) -> bool:
        """Whether no coefficient is known."""
        return all(value is None for value in self.coefficient.values())

    def give_up(self, note: str = "") -> SeriesReading:
        """Nothing can be told of the coefficients."""
        self.coefficient = dict.fromkeys(self.coefficient)
        self.notes += [note] if note else []
        return self


def read_series(evidence: Evidence, coefficient: float | None, *, in_a_run: bool) -> SeriesReading:
    """Read the factors of a series.

    ``coefficient`` is the intended coefficient a of the whole loss where the caller states it; ``in_a_run`` says that
    they were seen in a run, which shows numbers and real windows, and not in a source.
    """
    dark = {point.step for point in evidence.points if product_of(point.factors) is None}
    if dark:
        return _read_apart_from(dark, evidence, coefficient, in_a_run)
    columns = evidence.columns()
    if coefficient is not None:
        return _read(evidence, columns, coefficient, in_a_run)
    contested: list[Column] = []
    without = _read(evidence, columns, None, in_a_run, contested)
    if is_right(without, evidence):
        return without
    undone = _undone_by_a_constant(evidence, columns)
    of_mean = [_as_objective(c) if c is undone else c for c in columns]
    if undone is not None:
        as_mean = _read(evidence, of_mean, None, in_a_run, [])
        if is_right(as_mean, evidence):
            return as_mean
    if not contested:
        return without
    if all(_is_of_another_constant(c, evidence) for c in contested):
        return without
    trusting = _read(evidence, columns, None, in_a_run)
    if undone is not None and not is_right(trusting, evidence):
        trusting = _read(evidence, of_mean, None, in_a_run)
    if not is_right(trusting, evidence):
        # Neither is right: of K, the mistake is what the reading says that leaves the objective the fewest divisions,
        # unless another division by K is in sight. A count of the batch is not what a loop without its scaling divides
        # by.
        if any(_divides_by_steps(column, evidence) for column in columns if column not in contested):
            return without
        by_steps = all(evidence.equals_any(column, SHARES[:2]) for column in contested)
        return trusting if by_steps else without
    return without.give_up(_two_readings(contested, evidence, trusting.intended, without.intended))


def _undone_by_a_constant(evidence: Evidence, columns: Sequence[Column]) -> Column | None:
    """The constant that makes a mean a sum because it equals a count: by that alone it is none."""
    undone = undone_mean(evidence, columns)
    return undone if undone is not None and evidence.is_constant(undone) and undone.source is not Source.SIZE else None


def _read_apart_from(
    dark: Collection[int], evidence: Evidence, coefficient: float | None, in_a_run: bool
) -> SeriesReading:
    """The reading of a series where a factor is not known: its windows ``dark`` say nothing of the others.

    Where they are all that there is, what is known of their backwards is all that can be told.
    """
    blank = _blank(evidence)
    others = [point for point in evidence.points if point.step not in dark]
    if not others:
        return blank
    reading = read_series(replace(evidence, points=others), coefficient, in_a_run=in_a_run)
    for key in blank.coefficient.keys() - reading.coefficient.keys():
        reading.coefficient[key], reading.units[key] = None, blank.units[key]
    return reading


def _blank(evidence: Evidence) -> SeriesReading:
    reading = SeriesReading(evidence.points[0].term.reduction if evidence.points else Reduction.NONE)
    for point in evidence.points:
        reading.coefficient[point.backward] = product_of(point.factors)
        reading.units[point.backward] = point.term.units
    return reading


def _read(
    evidence: Evidence,
    columns: Sequence[Column],
    coefficient: float | None,
    in_a_run: bool,
    contested: list[Column] | None = None,
) -> SeriesReading:
    """One reading; columns that are contested go to the objective, and are noted, where a list for them is given."""
    reading = _blank(evidence)
    every = columns
    normalised = reading.kind is not Reduction.SUM
    undone = undone_mean(evidence, columns) if reading.kind is Reduction.MEAN else None
    if undone is not None and contested is not None and _is_named_elsewhere(undone, evidence):
        contested.append(undone)
    elif undone is not None:
        reading.kind = Reduction.SUM
        for value, point in zip(undone.values, evidence.points, strict=True):
            key = point.backward
            reading.coefficient[key] = (reading.coefficient[key] or 0.0) / (value or 1.0)
            reading.units[key] = value
        columns = [column for column in columns if column is not undone]
        evidence = counted_by(evidence, undone)
    if reading.kind is Reduction.SUM:
        found = read_sum(evidence, columns)
        reading.notes += found.notes
        if found.is_unknown:
            return reading.give_up()
        columns, normalised = found.left, found.normalised
        for point, factor, own in zip(evidence.points, found.factors, found.own_counts, strict=True):
            key = point.backward
            reading.coefficient[key] = 1.0 if found.is_whole else (reading.coefficient[key] or 0.0) * factor
            reading.units[key] = reading.units[key] if own is None else own
        reading.kind = found.kind
    reading.normalised = normalised
    if coefficient is not None:
        _weigh(reading, evidence, [], [c for c in columns if not c.whole and c.source is not Source.STEPS], coefficient)
        return reading
    if contested is not None:
        contested += [c for c in columns if normalised and _is_contested(c, evidence)]
        columns = [_as_objective(c) if c in contested else c for c in columns]
    split = ColumnSplit(evidence, columns, reading.kind, normalised)
    split.make()
    reading.notes += split.notes
    if split.is_coincidence:
        return reading.give_up()
    if in_a_run:
        reading.notes += split.what_may_be_steps()
        if split.is_in_the_dark():
            return reading.give_up(
                f"the factor of {evidence.points[0].term.name} may be the division by K or part of the objective: "
                "state --loss-coefficient"
            )
    _weigh(reading, evidence, split.accumulation, split.objective)
    reading.intended = math.prod(column.values[0] for column in split.objective if column.whole)
    places = (factor.where for column in split.accumulation for factor in column.factors)
    reading.scaled_at = frozenset(place for place in places if place is not None)
    reading.weighed_by = _applied(split.objective)
    reading.scaled_by = _applied(every) - reading.weighed_by
    unsteady = set(split.unsteady())
    if unsteady and not split.is_right_without(unsteady):
        # What changes has no reading, and what is the same elsewhere has none either.
        return reading.give_up()
    reading.coefficient |= dict.fromkeys(evidence.points[i].backward for i in unsteady)
    return reading


def _applied(columns: Iterable[Column]) -> frozenset[Applied]:
    """The factors of whole losses in these columns, as far as it is known where they were applied."""
    whole = (column for column in columns if column.whole and not column.scales_nothing)
    return frozenset((column.factors[0].where, column.values) for column in whole if column.factors[0].where)


def _weigh(
    reading: SeriesReading,
    evidence: Evidence,
    accumulation: Sequence[Column],
    objective: Sequence[Column],
    coefficient: float = 1.0,
) -> None:
    """Note what the objective weighs each backward with, and what comes to it where that is 0."""
    products = zip(evidence.points, evidence.product(objective), evidence.product(accumulation), strict=True)
    for position, (point, own, scaled) in enumerate(products):
        key = point.backward
        if not own:
            # What the objective weighs with 0 is scaled as the rest is, and adds nothing.
            own = math.prod(c.values[position] or 1.0 for c in objective)
            reading.coefficient[key] = own * scaled
        reading.objective[key] = own * coefficient


def is_right(reading: SeriesReading, evidence: Evidence) -> bool:
    """Whether every full window of a series is its objective's, as far as ``reading`` knows."""
    for own in evidence.windows():
        points = [evidence.points[i] for i in own]
        if not any(point.is_full for point in points):
            continue
        shares = []
        for point in points:
            coefficient = reading.coefficient.get(point.backward)
            objective = reading.objective.get(point.backward, 1.0)
            if coefficient is None or not objective:
                return False
            shares.append(coefficient / objective)
        if reading.kind is Reduction.SUM:
            if not all(evidence.same(share, 1.0) for share in shares):
                return False
        elif not evidence.same(math.fsum(shares), float(points[0].divisor)):
            return False
    return True


def _divides_by_steps(column: Column, evidence: Evidence) -> bool:
    """Whether a column divides by K, or by what the window holds, by its source or by its number."""
    divides = column.divides and not column.scales_nothing
    return divides and (column.source is Source.STEPS or evidence.equals_any(column, SHARES[:2]))


def _is_contested(column: Column, evidence: Evidence) -> bool:
    """Whether a number has another source than what decides on a step, so that an equality says nothing of it.

    A literal beside a literal is how people write K without a name.
    """
    if column.scales_nothing or not evidence.is_constant(column) or not is_from_elsewhere(column, evidence):
        return False
    return any(evidence.matches(column, role) for role in (*SHARES[:2], *COUNTS))


def _is_named_elsewhere(column: Column, evidence: Evidence) -> bool:
    """Whether a constant has a name of its own; what changes as the units do is their count, whatever it is called."""
    named = column.source is Source.NAMED and evidence.is_constant(column)
    return named and is_from_elsewhere(column, evidence)


def _is_of_another_constant(column: Column, evidence: Evidence) -> bool:
    """Whether a number and what decides on a step are known to be two constants of the source, each with a name."""
    origins = frozenset[str]().union(*(factor.origins for factor in column.factors))
    if column.source is not Source.NAMED or is_literal(evidence.counter):
        return False
    if column.values[0] > 1.0:
        # It makes a mean a sum, together with a divisor: numbers of the batch may have names of any kind.
        return False
    return all(any(map(is_place, own)) for own in (origins, evidence.counter))


def _as_objective(column: Column) -> Column:
    return replace(column, source=Source.OBJECTIVE)


def _two_readings(contested: Sequence[Column], evidence: Evidence, as_accumulation: float, as_objective: float) -> str:
    """What is said of a number that may be either's, and the exact options that settle it."""
    column = next((c for c in contested if c.divides), contested[0])
    factor = column.factors[0]
    what = f"division by {1 / column.values[0]:.6g}" if column.divides else f"factor {column.values[0]:.6g}"
    where = f" (line {factor.where.line})" if factor.where is not None else ""
    names = sorted((o for o in evidence.counter if not is_place(o)), key=len)
    called = names[0] if names else "the accumulation steps"
    return (
        f"the {what} of {evidence.points[0].term.name}{where} equals {called}, or a count of the batch, but comes from "
        f"elsewhere in the source: if it belongs to the accumulation, state --loss-coefficient {as_accumulation:.6g}; "
        "if it "
        f"belongs to the objective, state --loss-coefficient {as_objective:.6g}"
    )

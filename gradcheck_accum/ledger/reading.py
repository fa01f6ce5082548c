"""Reads the roles of the factors of a series' losses: which belong to the accumulation, and which to the objective.

A *reading* assigns each column of factors to one of the two. It is right if the accumulation's products add up to 1 in
every full window, and no factor of the whole loss that belongs to the objective changes within a window. Evidence comes
in this order: what is stated; where a number comes from; that it changes with the window's length or its units; that it
equals what a role predicts. So a reading is made in three steps:

1. A column is read as what its source, or how it changes, shows it to be; so is a division by what a role predicts,
   where the source of the number is not known.
2. If that is not right, further columns that match a role are tried, the fewest first, until a reading is right.
3. If none is right, the accumulation gets only those further divisions that a role predicts, if only in some window, or
   that are by K off by one.

A number that equals a role's prediction, but whose name in the source is not that of the number which decides on a
step, or that has no name, is *contested*. Then both readings are made. If the one that does not depend on the equality
is right, it holds; if only the other is, nothing is known, and both are reported.
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
from gradcheck_accum.ledger.stated_names import is_literal, is_place, name_in
from gradcheck_accum.ledger.unit_counts import counted_by, read_sum, undone_mean

Applied = tuple[Location | None, tuple[float, ...]]
"""A factor: where it was applied, and its values. It is the same for all terms of the loss."""


@dataclass(slots=True)
class SeriesReading:
    """How the factors of one series were read: per backward its coefficient, its objective's factor and its units.

    A coefficient is None where it is not known. ``notes`` are the alternative readings. ``normalised`` is True if the
    loss does not grow with the number of units: a mean, or a sum that is divided by their number.
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
    """Where the factors that are read as the accumulation's were applied."""
    scaled_by: frozenset[Applied] = frozenset()
    """Those of them that multiply the whole loss, all of its terms, including those that count a sum's units."""
    objective_by: frozenset[Applied] = frozenset()
    """The factors of the whole loss that are read as the objective's."""
    is_of_one_term: bool = False
    """Whether what its notes leave open is the weight of one term, which no coefficient of the whole loss settles."""
    may_be_exchanged: bool = False
    """Whether a factor of the objective equals one of the accumulation's that is not K by its source."""

    @property
    def is_dark(self) -> bool:
        """Whether no coefficient is known."""
        return all(value is None for value in self.coefficient.values())

    def give_up(self, note: str = "") -> SeriesReading:
        """Make all coefficients unknown."""
        self.coefficient = dict.fromkeys(self.coefficient)
        self.notes += [note] if note else []
        return self


def read_series(evidence: Evidence, coefficient: float | None, *, in_a_run: bool) -> SeriesReading:
    """Read the factors of a series.

    ``coefficient`` is the intended coefficient a of the whole loss where the caller states it; ``in_a_run`` means that
    the factors were seen in a run, which shows numbers and real windows, and not in a source.
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
    if all(_is_of_another_constant(c, evidence) for c in contested):
        return without
    trusting = _read(evidence, columns, None, in_a_run)
    if undone is not None and not is_right(trusting, evidence):
        trusting = _read(evidence, of_mean, None, in_a_run)
    if not is_right(trusting, evidence):
        # Neither is right: where K is concerned, report the mistake of the reading that leaves the objective the fewest
        # divisions, unless there is another division by K. A loop that lacks its scaling does not divide by a count of
        # the batch instead.
        if any(_divides_by_steps(column, evidence) for column in columns if column not in contested):
            return without
        by_steps = all(evidence.equals_any(column, SHARES[:2]) for column in contested)
        return trusting if by_steps else without
    without.is_of_one_term = not _decisive(contested).whole
    return without.give_up(_two_readings(contested, evidence, trusting.intended, without.intended))


def read_as_weights(
    evidence: Evidence,
    columns: Iterable[Column],
    weights: Sequence[Column],
    coefficient: float | None,
    *,
    in_a_run: bool,
) -> SeriesReading:
    """The reading in which ``weights``, some of the columns, are the objective's."""
    own = [_as_objective(column) if column in weights else column for column in columns]
    return _read(evidence, own, coefficient, in_a_run, [])


def take_for_the_objective(reading: SeriesReading, evidence: Evidence) -> None:
    """Give all factors to the objective, also those that are not known: each window is its own large batch."""
    reading.coefficient = dict.fromkeys(reading.coefficient, 1.0)
    reading.objective = dict.fromkeys(reading.coefficient, 1.0)
    columns = evidence.columns()
    split = ColumnSplit(evidence, columns, reading.kind, normalised=True, objective=columns)
    reading.notes = split.what_may_be_steps()


def _undone_by_a_constant(evidence: Evidence, columns: Sequence[Column]) -> Column | None:
    """The constant that makes a mean a sum because it equals a count; equality alone does not make it that count."""
    undone = undone_mean(evidence, columns)
    return undone if undone is not None and evidence.is_constant(undone) and undone.source is not Source.SIZE else None


def _read_apart_from(
    dark: Collection[int], evidence: Evidence, coefficient: float | None, in_a_run: bool
) -> SeriesReading:
    """The reading of a series where a factor is unknown, without the windows ``dark`` where it is.

    If there are no others, the result is what is known of their backwards.
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
    """One reading; if a list ``contested`` is given, contested columns are added to it and read as the objective's."""
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
        _note_weights(
            reading, evidence, [], [c for c in columns if not c.whole and c.source is not Source.STEPS], coefficient
        )
        return reading
    if contested is not None:
        contested += [c for c in columns if normalised and _is_contested(c, evidence)]
        columns = [_as_objective(c) if c in contested else c for c in columns]
    if evidence.counter or any(c.source is Source.STEPS and c.divides for c in every):
        columns = [_as_objective(c) if _is_of_the_large_batch(c, evidence) else c for c in columns]
    split = ColumnSplit(evidence, columns, reading.kind, normalised)
    split.make()
    reading.notes += split.notes
    if split.is_coincidence:
        return reading.give_up()
    if in_a_run:
        unseen = split.of_unseen_number()
        if unseen:
            return reading.give_up(unseen)
        reading.notes += split.what_may_be_steps()
        if split.is_in_the_dark():
            return reading.give_up(
                f"the factor of {evidence.points[0].term.name} may be the division by K or part of the objective: "
                "state --loss-coefficient"
            )
    _note_weights(reading, evidence, split.accumulation, split.objective)
    reading.intended = math.prod(column.values[0] for column in split.objective if column.whole)
    places = (factor.where for column in split.accumulation for factor in column.factors)
    reading.scaled_at = frozenset(place for place in places if place is not None)
    reading.objective_by = _applied(split.objective)
    reading.scaled_by = _applied(every) - reading.objective_by
    reading.may_be_exchanged = any(
        not one.scales_nothing and one.source is not Source.STEPS and one.values == other.values
        for one in split.accumulation
        for other in split.objective
    )
    unsteady = set(split.unsteady())
    if unsteady and not split.is_right_without(unsteady):
        # The windows that change have no reading, and the others, not being right, have none either.
        return reading.give_up()
    reading.coefficient |= dict.fromkeys(evidence.points[i].backward for i in unsteady)
    return reading


def _applied(columns: Iterable[Column]) -> frozenset[Applied]:
    """The factors of the whole loss in these columns; what divided gradients is known by its values alone."""
    whole = (column for column in columns if column.whole and not column.scales_nothing)
    return frozenset((column.factors[0].where, column.values) for column in whole)


def _note_weights(
    reading: SeriesReading,
    evidence: Evidence,
    accumulation: Sequence[Column],
    objective: Sequence[Column],
    coefficient: float = 1.0,
) -> None:
    """Note the objective's factor of each backward, and the backward's coefficient where that factor is 0."""
    products = zip(evidence.points, evidence.product(objective), evidence.product(accumulation), strict=True)
    for position, (point, own, scaled) in enumerate(products):
        key = point.backward
        if not own:
            # What has weight 0 in the objective is scaled as the rest is, and adds nothing.
            own = math.prod(c.values[position] or 1.0 for c in objective)
            reading.coefficient[key] = own * scaled
        reading.objective[key] = own * coefficient


def is_right(reading: SeriesReading, evidence: Evidence, *, shorter: bool = False) -> bool:
    """Whether every full window of a series, and every ``shorter`` one, matches its objective in ``reading``."""
    for own in evidence.windows():
        points = [evidence.points[i] for i in own]
        if not shorter and not any(point.is_full for point in points):
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
    """Whether a column divides by K or by the window's length, according to its source or its value."""
    divides = column.divides and not column.scales_nothing
    return divides and (column.source is Source.STEPS or evidence.equals_any(column, SHARES[:2]))


def _is_contested(column: Column, evidence: Evidence) -> bool:
    """Whether a number has another source than the one that decides on a step, so that equality is no evidence.

    Two equal literals are not contested: this is how people write K without a name.
    """
    if column.scales_nothing or not evidence.is_constant(column) or not is_from_elsewhere(column, evidence):
        return False
    return any(evidence.matches(column, role) for role in (*SHARES[:2], *COUNTS))


def _is_of_the_large_batch(column: Column, evidence: Evidence) -> bool:
    """Whether a number is a constant size along another dimension than the first, which the large batch has too."""
    return column.source is Source.EXTENT and evidence.is_constant(column)


def _is_named_elsewhere(column: Column, evidence: Evidence) -> bool:
    """Whether a constant has a name of its own; a number that changes with the units is their count."""
    named = column.source is Source.NAMED and evidence.is_constant(column)
    return named and is_from_elsewhere(column, evidence)


def _is_of_another_constant(column: Column, evidence: Evidence) -> bool:
    """Whether a number and the one that decides on a step are known to be two named constants of the source."""
    origins = frozenset[str]().union(*(factor.origins for factor in column.factors))
    if column.source is not Source.NAMED or is_literal(evidence.known_steps):
        return False
    if column.values[0] > 1.0:
        # With a divisor it makes a mean a sum: sizes of the batch may have names of any kind.
        return False
    return all(any(map(is_place, own)) for own in (origins, evidence.known_steps))


def _as_objective(column: Column) -> Column:
    return replace(column, source=Source.OBJECTIVE)


def _decisive(contested: Sequence[Column]) -> Column:
    """The one of several contested numbers that is reported: a division, if there is any."""
    return next((column for column in contested if column.divides), contested[0])


def _two_readings(contested: Sequence[Column], evidence: Evidence, as_accumulation: float, as_objective: float) -> str:
    """The note on a number that may belong to either, with the exact options that settle it."""
    column = _decisive(contested)
    factor = column.factors[0]
    what = f"division by {1 / column.values[0]:.6g}" if column.divides else f"factor {column.values[0]:.6g}"
    where = f" (line {factor.where.line})" if factor.where is not None else ""
    names = sorted((name_in(o) for o in evidence.known_steps if not is_place(o)), key=len)
    called = names[0] if names else "the accumulation steps"
    if not column.whole:
        return (
            f"the {what} of {evidence.points[0].term.name}{where} equals {called}, or a count of the batch, but comes "
            f"from elsewhere in the source: if it belongs to the accumulation, divide by {called} itself; if it is the "
            f"weight of this term, the term is not divided by {called}, and should be"
        )
    return (
        f"the {what} of {evidence.points[0].term.name}{where} equals {called}, or a count of the batch, but comes from "
        f"elsewhere in the source: if it belongs to the accumulation, state --loss-coefficient {as_accumulation:.6g}; "
        "if it "
        f"belongs to the objective, state --loss-coefficient {as_objective:.6g}"
    )

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from gradcheck_accum.ledger.events import Backward, Reduction, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.roles import (
    COUNTS,
    COUNTS_OVER_RANKS,
    MISTAKEN,
    SHARES,
    Column,
    Evidence,
    Point,
    Source,
    is_mean_of_terms,
    others_have_the_like,
    over_steps,
)
from gradcheck_accum.ledger.stated_names import is_literal, is_place
from gradcheck_accum.ledger.unit_counts import counted_by, read_sum, undone_mean

_MOST_OPEN = 6
"""Columns that are tried together: no loss is scaled in more places."""


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
    if not contested or is_right(without, evidence):
        return without
    if all(_is_of_another_constant(c, evidence) for c in contested):
        return without
    trusting = _read(evidence, columns, None, in_a_run)
    if not is_right(trusting, evidence):
        # Neither is right: of K, the mistake is what the reading says that leaves the objective the fewest divisions,
        # unless another division by K is in sight. A count of the batch is not what a loop without its scaling divides
        # by.
        if any(_divides_by_steps(column, evidence) for column in columns if column not in contested):
            return without
        by_steps = all(evidence.equals_any(column, SHARES[:2]) for column in contested)
        return trusting if by_steps else without
    return without.give_up(_two_readings(contested, evidence, trusting.intended, without.intended))


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
    split = _Split(evidence, columns, reading.kind, normalised)
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
    if column.scales_nothing or not evidence.is_constant(column) or not _is_from_elsewhere(column, evidence):
        return False
    return any(evidence.matches(column, role) for role in (*SHARES[:2], *COUNTS))


def _is_from_elsewhere(column: Column, evidence: Evidence) -> bool:
    """Whether the source has a number from elsewhere than what decides on a step."""
    if not evidence.counter:
        return False
    named = not is_literal(evidence.counter)
    return column.source is Source.NAMED or (column.source is Source.LITERAL and named)


def _is_named_elsewhere(column: Column, evidence: Evidence) -> bool:
    return column.source is Source.NAMED and _is_from_elsewhere(column, evidence)


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


def _over_terms(point: Point) -> float:
    return 1.0 / len(point.backward.terms)


@dataclass(slots=True)
class _Split:
    """The columns of a series, each the ``accumulation``'s or the ``objective``'s.

    ``normalised`` says whether units count once however many there are: else there is nothing to scale.
    """

    evidence: Evidence
    columns: Sequence[Column]
    kind: Reduction
    normalised: bool
    accumulation: list[Column] = field(default_factory=list)
    objective: list[Column] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_coincidence: bool = False
    """Whether it is right by numbers alone that come to 1/K together, all of which have names of their own."""

    def make(self) -> None:
        """Split the columns."""
        if not self.normalised:
            self.objective = list(self.columns)
            return
        shown = [c for c in self.columns if self._is_shown(c)]
        self._take(shown)
        if self._is_right(shown):
            self._note_what_is_not_needed()
            return
        more = next(self._right_with(shown), None)
        if more is not None:
            self._take([*shown, *more])
            self._note_equality(more)
            return
        self._take([*shown, *(c for c in self.objective if self._is_mistaken(c))])

    def _take(self, columns: Sequence[Column]) -> None:
        self.accumulation = list(columns)
        self.objective = [c for c in self.columns if c not in columns]

    # What a column is by itself

    def _is_shown(self, column: Column) -> bool:
        """Whether a column is the accumulation's by its source, by a change, or by its role where no source shows."""
        evidence = self.evidence
        constant = evidence.is_constant(column)
        if column.scales_nothing or (column.source is Source.STEPS and constant):
            return True
        if column.source is Source.OBJECTIVE or (constant and evidence.is_plain_training):
            return False
        if column.source is Source.STEPS:
            # What is computed from K may be anything: which window it is, say.
            return self._is_predicted(column)
        if evidence.follows_units(column):
            return True
        if self._counts_a_mean_again(column):
            return True
        if self._is_of_its_term(column):
            return False
        if constant and column.source in (Source.LITERAL, Source.NAMED):
            # Where the source shows what K is, this is another number; else it may be K under its name.
            by_k = column.divides and evidence.equals_any(column, SHARES[:2])
            named = evidence.counter or any(map(self._is_division_by_steps, self.columns))
            return by_k and not named and not self._is_mean_of_terms(column)
        if not constant and evidence.equals_any(column, SHARES):
            return True
        return column.divides and not self._is_mean_of_terms(column) and self._is_predicted(column)

    def _counts_a_mean_again(self, column: Column) -> bool:
        """Whether a mean is divided by the size of its batch, which it has been divided by."""
        by_size = column.source is Source.SIZE and column.divides and column.whole
        return by_size and self.kind is Reduction.MEAN and not self._is_mean_of_terms(column)

    def _is_predicted(self, column: Column) -> bool:
        return any(self.evidence.matches(column, role) for role in (*SHARES, *COUNTS))

    def _is_of_its_term(self, column: Column) -> bool:
        """Whether a column weighs one of several terms that the others are not weighed alike."""
        if column.whole or len(self.evidence.points[0].backward.terms) < 2:
            return False
        return not (column.divides and others_have_the_like(column, self.evidence))

    def _is_mean_of_terms(self, column: Column) -> bool:
        """Whether a column is the division by the number of a loss's terms that makes their mean: the first such."""
        points = self.evidence.points
        if len(points[0].backward.terms) < 2:
            return False
        by_number = [c for c in self.columns if c.divides and self.evidence.equals(c, _over_terms)]
        by_number = [c for c in by_number if not self._counts_something_else(c)]
        return bool(by_number) and by_number[0] is column

    def _counts_something_else(self, column: Column) -> bool:
        """Whether the source says that a number which equals that of the terms counts micro-batches, or samples.

        The terms may be the losses of the samples: then all are of one kind.
        """
        if column.source is Source.STEPS:
            return True
        kinds = {term.kind for point in self.evidence.points for term in point.backward.terms}
        return column.source is Source.SIZE and len(kinds) > 1

    def _is_mistaken(self, column: Column) -> bool:
        """Whether a division of the whole loss is the accumulation's, though it makes nothing right.

        It divides by a number that a role predicts, if only in one of the full windows, or by one that is K but
        for one: a mistake about K.
        """
        open_ = column.whole and column.divides and column.source is not Source.OBJECTIVE
        if not open_ or self.evidence.is_plain_training or self._is_mean_of_terms(column):
            return False
        if self._is_predicted(column) or self._is_right_somewhere(column):
            return True
        unknown = any(point.term.units is None for point in self.evidence.points)
        if unknown or self._is_another_number(column):
            return False
        return self.evidence.equals_any(column, (*MISTAKEN, *COUNTS_OVER_RANKS))

    def _is_another_number(self, column: Column) -> bool:
        """Whether the source shows K, where it decides on a step or divides the loss, and this is not that number."""
        beside = column.source in (Source.LITERAL, Source.NAMED) and any(map(self._is_division_by_steps, self.columns))
        return beside or _is_from_elsewhere(column, self.evidence)

    def _may_be_needed(self, column: Column) -> bool:
        """Whether a column that its source does not explain may be the accumulation's, if that makes windows right."""
        evidence = self.evidence
        if column.source is Source.OBJECTIVE:
            return False
        if column.source is Source.SIZE and self._is_mean_of_terms(column):
            # Its terms are the losses of a batch's samples.
            return False
        roles = any(evidence.matches(column, role) for role in SHARES)
        if self._is_of_its_term(column):
            scaled = any(c.whole and not c.scales_nothing for c in self.accumulation)
            # A number that no source shows is what its role says, whatever the other terms are divided by.
            alone = column.source is Source.UNSEEN and column.divides
            return roles and not scaled and (alone or others_have_the_like(column, evidence, SHARES[:2]))
        return roles or self._undoes(column) or evidence.varies_within_a_window(column)

    @staticmethod
    def _undoes(column: Column) -> bool:
        """Whether the loss is multiplied by more than one, no number of its own: that may undo a division."""
        enlarges = not column.divides and all(value > 1.0 for value in column.values)
        return enlarges and column.source not in (Source.LITERAL, Source.NAMED)

    # What columns are together

    def _is_right(self, columns: Sequence[Column]) -> bool:
        left = [c for c in self.columns if c not in columns]
        if any(self._changes_within_a_window(c) and not self._is_worth(c) for c in left):
            return False
        if self.kind is Reduction.SUM:
            # Where a sum is divided by the units of its window, nothing is left to scale.
            return all(self.evidence.same(value, 1.0) for value in self.evidence.product(columns))
        return self.evidence.shares_add_up(columns)

    def _right_with(self, shown: Sequence[Column]) -> Iterator[Sequence[Column]]:
        """Further columns that make a right reading of those that are shown, the fewest and the likeliest first."""
        if self.evidence.is_plain_training:
            return
        open_ = [c for c in self.objective if c.source is not Source.OBJECTIVE][:_MOST_OPEN]
        likely = [c for c in open_ if self._may_be_needed(c)]
        likely.sort(key=lambda c: (not c.whole, not c.divides))
        for count in range(1, len(likely) + 1):
            yield from (own for own in combinations(likely, count) if self._is_right([*shown, *own]))
        together = [c for c in open_ if c.whole]
        divided = any(c.divides for c in (*shown, *together))
        if self.kind is Reduction.SUM or not divided or any(self._is_division_by_steps(c) for c in shown):
            return
        # Several factors of the whole loss may come to it: a micro-batch's rows over those of the window, say.
        for count in range(1, len(together) + 1):
            for own in combinations(together, count):
                several = [*shown, *own]
                if len([c for c in several if not c.scales_nothing]) < 2 or self._cancels_what_is_measured(several):
                    continue
                if self._is_right(several):
                    named = all(c.source is Source.NAMED for c in own)
                    self.is_coincidence = named and all(_is_from_elsewhere(c, self.evidence) for c in own)
                    self.notes.append(self._come_together(several))
                    yield own

    @staticmethod
    def _cancels_what_is_measured(columns: Sequence[Column]) -> bool:
        """Whether a constant of the source multiplies what a size divides.

        No one undoes what was measured by a number of its own: both are written out (8 and 32), or both are measured.
        """
        constants = [c for c in columns if c.source in (Source.LITERAL, Source.NAMED)]
        enlarges = any(not c.divides and all(value > 1.0 for value in c.values) for c in constants)
        return enlarges and any(c.divides and c.source is Source.SIZE for c in columns)

    def _is_right_somewhere(self, column: Column) -> bool:
        """Whether a column that changes is 1/K throughout a full window: others were scaled for other windows."""
        points = self.evidence.points
        return not self.evidence.is_constant(column) and any(
            all(self.evidence.same(column.values[i] * points[i].steps, 1.0) for i in own)
            for own in self.evidence.windows()
            if points[own[0]].is_full and points[own[0]].steps > 1
        )

    def _changes_within_a_window(self, column: Column) -> bool:
        return column.whole and self.evidence.varies_within_a_window(column)

    @staticmethod
    def _is_division_by_steps(column: Column) -> bool:
        return column.source is Source.STEPS and column.divides and not column.scales_nothing

    def _is_worth(self, column: Column) -> bool:
        """Whether a column is what data says that each micro-batch is worth, beside a division by K that shows."""
        divided = any(self._is_division_by_steps(c) and self.evidence.is_constant(c) for c in self.columns)
        return divided and column.source is Source.DATA

    def unsteady(self) -> Iterator[int]:
        """The positions of the points of windows in which whole losses are weighed unlike, for no reason that is known.

        What the large batch of such a window would weigh is not known.
        """
        unexplained = [c for c in self.accumulation if not self._is_shown(c) and self._is_right_somewhere(c)]
        weighing = [c for c in self.objective if not self._is_worth(c)]
        changing = [c for c in (*weighing, *unexplained) if self._changes_within_a_window(c)]
        for own in self.evidence.windows() if changing else ():
            if any(self.evidence.varies_in(own, column) for column in changing):
                yield from own

    def is_right_without(self, positions: Collection[int]) -> bool:
        """Whether all other full windows are right, and there is one."""
        product = self.evidence.product(self.accumulation)
        points = self.evidence.points
        others = [own for own in self.evidence.windows() if own[0] not in positions and points[own[0]].is_full]
        return bool(others) and all(
            self.evidence.same(math.fsum(product[i] for i in own), float(points[own[0]].divisor)) for own in others
        )

    # What is said of it

    @property
    def _name(self) -> str:
        return self.evidence.points[0].term.name

    def _come_together(self, columns: Iterable[Column]) -> str:
        factors = ", ".join(f"{c.values[0]:.6g}" for c in columns if not c.scales_nothing)
        if self.is_coincidence:
            product = math.prod(c.values[0] for c in columns)
            return (
                f"the factors {factors} of {self._name} multiply to 1/K, but come from elsewhere in the source: if "
                "they divide by the accumulation steps, state --loss-coefficient 1; if they belong to the objective, "
                "state "
                f"--loss-coefficient {product:.6g}"
            )
        return (
            f"the factors {factors} of {self._name} multiply to 1/K and were read as loss scaling; if they are "
            "part of the objective, state --loss-coefficient"
        )

    def _note_what_is_not_needed(self) -> None:
        self.notes += [
            f"the factor {column.values[0]:.6g} of {self._name} was read as part of the objective, because another "
            "factor already scales the window"
            for column in self.objective
            if column.source is not Source.OBJECTIVE and self.evidence.equals(column, over_steps)
        ]

    def _note_equality(self, needed: Sequence[Column]) -> None:
        told = [c for c in self.accumulation if not c.scales_nothing]
        if len(needed) == 1 and len(told) == 1 and not needed[0].divides and self.evidence.is_constant(needed[0]):
            self.notes.append(
                f"the factor {needed[0].values[0]:.6g} of {self._name} equals 1/K and was read as loss scaling; if it "
                "is part of the objective, state --loss-coefficient"
            )

    def what_may_be_steps(self) -> list[str]:
        """How a divisor could be read otherwise where every micro-batch steps: it may be a K that never shows."""
        if not self.normalised or not self.evidence.is_plain_training or len(self.evidence.points) < 2:
            return []
        return [
            f"every window is one micro-batch, and the division of {self._name} by {1 / c.values[0]:.6g} was "
            "read as part of the objective; if it is the accumulation steps, the optimizer steps at every micro-batch "
            "and each gradient is too small (GA304): state --loss-coefficient 1 to check this"
            for c in self.objective
            if self._may_divide_for_nothing(c)
        ]

    def _may_divide_for_nothing(self, column: Column) -> bool:
        """Whether the whole loss is divided by one whole number that is neither 2 nor the number of its terms."""
        if not column.divides or not column.whole or not self.evidence.is_constant(column):
            return False
        if column.source is Source.OBJECTIVE:
            return False
        count = round(1.0 / column.values[0])
        usual = count == 2 or any(count == len(point.backward.terms) for point in self.evidence.points)
        return count > 1 and not usual and self.evidence.same(column.values[0] * count, 1.0)

    def _others_are_undivided(self) -> bool:
        """Whether a penalty's loss has other terms, all of them means that nothing scales."""
        evidence = self.evidence
        for point in evidence.points:
            others = [t for t in point.backward.terms if t.reduction is not Reduction.NONE]
            ways = [n for role in SHARES[:2] if (n := role(point)) is not None]
            if not others or any(t.reduction is Reduction.SUM for t in others):
                return False
            if any(f.value is not None and evidence.same(f.value, n) for t in others for f in t.factors for n in ways):
                return False
        return True

    def is_in_the_dark(self) -> bool:
        """Whether a run's graph does not tell what the one factor that may be the accumulation's is there for.

        Where it does not tell either what a loss was reduced over, each factor may be one over the units of a
        micro-batch or of the window; so that there has to be one that is K, and no other of unknown source.
        """
        evidence = self.evidence
        told = [c for c in self.accumulation if not c.scales_nothing]
        unsure = [c for c in (*told, *self.objective) if c.source is not Source.STEPS]
        if self.kind is Reduction.NONE:
            # What a penalty is multiplied by may hold the division, unless nothing of its loss is divided, or the
            # source has every such number from elsewhere than K.
            accumulated = any(p.steps > 1 for p in evidence.points)
            unknown = [c for c in self.objective if not _is_from_elsewhere(c, evidence)]
            return accumulated and bool(unknown) and not told and not self._others_are_undivided()
        accumulated = any(p.steps > 1 and p.term.units is None for p in evidence.points)
        if accumulated and unsure and (len(told) > 1 or (self.objective and not told)):
            return True
        means = [c for c in unsure if is_mean_of_terms(c, evidence.points, evidence.same)]
        return len(told) == 1 and means == told

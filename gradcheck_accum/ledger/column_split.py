"""Splits the columns of a series' factors into those of the accumulation and those of the objective.

The page "How a loop is read" describes the steps, and what counts as evidence (docs/readings.md: Columns, A reading).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

from gradcheck_accum.ledger.events import Reduction
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
    terms_of_data,
)
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import is_literal

_MOST_OPEN = 6
"""The largest number of columns that are tried together: no real loss is scaled in more places."""

_LARGEST_RATIO = 64.0
"""The largest ratio of two counts of a window that is looked for in a number of unknown source."""


def is_from_elsewhere(column: Column, evidence: Evidence) -> bool:
    """Whether a number comes from elsewhere in the source than the one that is known to be K."""
    if not evidence.known_steps:
        return False
    named = not is_literal(evidence.known_steps)
    return column.source is Source.NAMED or (column.source is Source.LITERAL and named)


def _terms_of(point: Point) -> int:
    """The number of terms of a loss; a penalty counts only where there is no mean or sum over samples."""
    return terms_of_data(point) or len(point.backward.terms)


def _over_terms(point: Point) -> float:
    return 1.0 / _terms_of(point)


@dataclass(slots=True)
class ColumnSplit:
    """The columns of a series, each assigned to the ``accumulation`` or the ``objective``.

    ``normalised`` is True if the loss does not grow with the number of units; otherwise there is nothing to scale.
    """

    evidence: Evidence
    columns: Sequence[Column]
    kind: Reduction
    normalised: bool
    accumulation: list[Column] = field(default_factory=list)
    objective: list[Column] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_coincidence: bool = False
    """Whether the split is right only because numbers multiply to 1/K, each of which has a name of its own."""

    def make(self) -> None:
        """Split the columns."""
        if not self.normalised:
            self.objective = list(self.columns)
            return
        shown = [c for c in self.columns if self._is_shown(c)]
        self._take(shown)
        if self._is_divided_once_too_often(shown):
            return
        if self._is_right(shown):
            self._take([*shown, *self._completing(shown)])
            self._note_what_is_not_needed()
            return
        more = next(self._right_with(shown), None)
        if more is not None:
            self._take([*shown, *more])
            self._note_equality(more)
            return
        self._take([*shown, *(c for c in self.objective if self._is_mistaken(c))])

    def _is_divided_once_too_often(self, shown: Sequence[Column]) -> bool:
        """Whether the columns that are no batch size suffice, so that a size equal to K is one division too many.
        In that case all of them are taken as the accumulation's.
        """
        scaling = [c for c in shown if not self._counts_a_mean_again(c)]
        if len(scaling) == len(shown):
            return False
        more = () if self._is_right(scaling) else next(self._right_with(scaling), None)
        if more is None:
            return False
        self._take([*shown, *more])
        return True

    def _take(self, columns: Sequence[Column]) -> None:
        self.accumulation = list(columns)
        self.objective = [c for c in self.columns if c not in columns]

    # What a column is by itself

    def _is_shown(self, column: Column) -> bool:
        """Whether a column is the accumulation's by its source, its changes, or its role if the source is unknown."""
        evidence = self.evidence
        constant = evidence.is_constant(column)
        if column.scales_nothing or (column.source is Source.STEPS and constant):
            return True
        if column.source is Source.OBJECTIVE or (constant and evidence.is_plain_training):
            return False
        if column.source is Source.STEPS:
            # A number computed from K may be anything: the index of the window, say.
            return self._is_predicted(column)
        if evidence.follows_units(column):
            return True
        if self._counts_a_mean_again(column):
            return True
        if self._is_of_its_term(column):
            return False
        if evidence.is_constant_of_source(column):
            # Where the source shows what K is, this is another number; otherwise it may be K itself.
            by_k = column.divides and evidence.equals_any(column, SHARES[:2])
            named = evidence.counter or any(map(self._is_division_by_steps, self.columns))
            return by_k and not named and not self._is_mean_of_terms(column)
        if not constant and evidence.equals_any(column, SHARES):
            return True
        return column.divides and not self._is_mean_of_terms(column) and self._is_predicted(column)

    def _counts_a_mean_again(self, column: Column) -> bool:
        """Whether a mean is divided by the size of its batch a second time."""
        by_size = column.source is Source.SIZE and column.divides and column.whole
        return by_size and self.kind is Reduction.MEAN and not self._is_mean_of_terms(column)

    def _is_predicted(self, column: Column) -> bool:
        return any(self.evidence.matches(column, role) for role in (*SHARES, *COUNTS))

    def _is_of_its_term(self, column: Column) -> bool:
        """Whether a column is the weight of one of several terms, and the others have no factor like it."""
        if column.whole or len(self.evidence.points[0].backward.terms) < 2:
            return False
        return not (column.divides and others_have_the_like(column, self.evidence))

    def _is_mean_of_terms(self, column: Column) -> bool:
        """Whether a column is the first division by the number of a loss's terms: the one that makes their mean."""
        points = self.evidence.points
        if len(points[0].backward.terms) < 2:
            return False
        by_number = [c for c in self.columns if c.divides and self.evidence.equals(c, _over_terms)]
        by_number = [c for c in by_number if not self._counts_something_else(c)]
        return bool(by_number) and by_number[0] is column

    def _counts_something_else(self, column: Column) -> bool:
        """Whether, by its source, a number that equals the number of terms counts micro-batches or samples.

        The terms may be the samples' losses; these are all of one kind.
        """
        if column.source is Source.STEPS:
            return True
        kinds = {term.kind for point in self.evidence.points for term in point.backward.terms}
        return column.source is Source.SIZE and len(kinds) > 1

    def _is_mistaken(self, column: Column) -> bool:
        """Whether a division of the whole loss is the accumulation's although it makes no window right.

        It divides by a number that a role predicts, if only in one of the full windows, or by K off by one: a mistake
        about K.
        """
        open_ = column.whole and column.divides and column.source is not Source.OBJECTIVE
        if not open_ or self.evidence.is_plain_training or self._is_mean_of_terms(column):
            return False
        if self._is_predicted(column) or self._is_right_somewhere(column):
            # A constant that equals a count of the batch by chance is none.
            return not self.evidence.is_constant_of_source(column) or self.evidence.equals_any(column, SHARES)
        unknown = any(point.term.units is None for point in self.evidence.points)
        if unknown or self._is_another_number(column):
            return False
        if column.source in (Source.LITERAL, Source.NAMED) and not self.evidence.counter:
            # No test or bound shows that it is the number which decides on a step.
            return self.evidence.equals_any(column, COUNTS_OVER_RANKS)
        return self.evidence.equals_any(column, (*MISTAKEN, *COUNTS_OVER_RANKS))

    def _is_another_number(self, column: Column) -> bool:
        """Whether the source shows K, in the test of a step or a division of the loss, and this is another number."""
        is_next_to_k = column.source in (Source.LITERAL, Source.NAMED) and any(
            map(self._is_division_by_steps, self.columns)
        )
        return is_next_to_k or is_from_elsewhere(column, self.evidence)

    def _may_be_needed(self, column: Column) -> bool:
        """Whether a column that its source does not explain may be the accumulation's if that makes windows right."""
        evidence = self.evidence
        if column.source is Source.SIZE and self._is_mean_of_terms(column):
            # Its terms are the losses of a batch's samples.
            return False
        roles = any(evidence.matches(column, role) for role in SHARES)
        if self._is_of_its_term(column):
            scaled = any(c.whole and not c.scales_nothing for c in self.accumulation)
            # A number of unknown source is read by its role, whatever the other terms are divided by.
            alone = column.source is Source.UNSEEN and column.divides
            return roles and not scaled and (alone or others_have_the_like(column, evidence, SHARES[:2]))
        return roles or evidence.varies_within_a_window(column)

    # What columns are together

    def _is_right(self, columns: Sequence[Column]) -> bool:
        left = [c for c in self.columns if c not in columns]
        if any(self._changes_within_a_window(c) and not self._is_worth(c) for c in left):
            return False
        if self.kind is Reduction.SUM:
            # A sum that is divided by the units of its window needs no further scaling.
            return all(self.evidence.same(value, 1.0) for value in self.evidence.product(columns))
        return self.evidence.shares_add_up(columns)

    def _completing(self, shown: Sequence[Column]) -> Sequence[Column]:
        """A changing factor with which the shorter windows are right as well, if there is one.

        Together with the shown columns it follows the window's length, though neither does so alone where K changes
        too.
        """
        if self.kind is Reduction.SUM or self.evidence.adds_up_everywhere(shown):
            return ()
        changing = (c for c in self.objective if not self.evidence.is_constant(c) and c.source is not Source.OBJECTIVE)
        return next(([c] for c in changing if self.evidence.adds_up_everywhere([*shown, c])), ())

    def _right_with(self, shown: Sequence[Column]) -> Iterator[Sequence[Column]]:
        """Further columns that complete those shown to a right reading, the fewest and the likeliest first."""
        open_ = [c for c in self.objective if c.source is not Source.OBJECTIVE][:_MOST_OPEN]
        likely = [c for c in open_ if self._may_be_needed(c)]
        likely.sort(key=lambda c: (self._is_mean_of_terms(c), not c.whole, not c.divides))
        for count in range(1, len(likely) + 1):
            yield from (own for own in combinations(likely, count) if self._is_right([*shown, *own]))
        together = [c for c in open_ if c.whole]
        divided = any(c.divides for c in (*shown, *together))
        if self.kind is Reduction.SUM or not divided or any(self._is_division_by_steps(c) for c in shown):
            return
        # Several factors of the whole loss may make it right together: a micro-batch's rows over the window's, say.
        for count in range(1, len(together) + 1):
            for own in combinations(together, count):
                several = [*shown, *own]
                if len([c for c in several if not c.scales_nothing]) < 2 or self._cancels_what_is_measured(several):
                    continue
                if self._is_right(several):
                    named = all(c.source is Source.NAMED for c in own)
                    self.is_coincidence = named and all(is_from_elsewhere(c, self.evidence) for c in own)
                    self.notes.append(self._come_together(several))
                    yield own

    @staticmethod
    def _cancels_what_is_measured(columns: Sequence[Column]) -> bool:
        """Whether a constant of the source multiplies what a size divides.

        A measured size is not undone by a constant: both are written out (8 and 32), or both are measured.
        """
        constants = [c for c in columns if c.source in (Source.LITERAL, Source.NAMED)]
        enlarges = any(not c.divides and all(value > 1.0 for value in c.values) for c in constants)
        return enlarges and any(c.divides and c.source is Source.SIZE for c in columns)

    def _is_right_somewhere(self, column: Column) -> bool:
        """Whether a column that changes is 1/K throughout a full window: others were scaled for other windows."""
        return not self.evidence.is_constant(column) and self._is_in_a_full_window(column, operator.mul)

    def _is_in_a_full_window(self, column: Column, of: Callable[[float, int], float]) -> bool:
        """Whether ``of`` a column's value and K is 1 throughout a full window of several micro-batches."""
        points = self.evidence.points
        return any(
            all(self.evidence.same(of(column.values[i], points[i].steps), 1.0) for i in own)
            for own in self.evidence.windows()
            if points[own[0]].is_full and points[own[0]].steps > 1
        )

    def _changes_within_a_window(self, column: Column) -> bool:
        return column.whole and self.evidence.varies_within_a_window(column)

    @staticmethod
    def _is_division_by_steps(column: Column) -> bool:
        return column.source is Source.STEPS and column.divides and not column.scales_nothing

    def _is_worth(self, column: Column) -> bool:
        """Whether a column is a weight that the data gives each micro-batch, in addition to a visible division by K."""
        divided = any(self._is_division_by_steps(c) and self.evidence.is_constant(c) for c in self.columns)
        return divided and column.source is Source.DATA

    def of_unseen_number(self) -> str:
        """The note on a number of unknown source that may undo the division by K, or be it in some windows only."""
        name = self.evidence.points[0].term.name
        for column in self.accumulation:
            if self._divides_by_steps_unseen(column) and any(map(self._is_division_by_steps, self.accumulation)):
                return (
                    f"{name} is divided by K, and by a number that equals K and that the source does not show: whether "
                    "it belongs to the objective is unknown, so state --loss-coefficient"
                )
        by_steps = any(c.divides and self.evidence.matches(c, over_steps) for c in self.accumulation)
        for column in self.objective if by_steps else ():
            if column.source is not Source.UNSEEN or not column.whole:
                continue
            if (self._is_steps(column) and not column.divides) or (column.is_put_in and self._is_steps_in_one(column)):
                return (
                    f"{name} is divided by K, and multiplied by a number that equals K and that the source does not "
                    "show: whether that undoes the division is unknown, so state --loss-coefficient"
                )
        for column in self.columns:
            if column.is_put_in and self._is_right_somewhere(column) and not self._is_predicted(column):
                return (
                    f"what the loop puts into .grad is a multiple of {name}'s gradients that changes from window to "
                    "window, 1/K in some: whether it is due to the accumulation is unknown, so divide the losses by K"
                )
        for column in self.objective if self.evidence.points[0].term.reduction is Reduction.SUM else ():
            if column.is_put_in and self.evidence.is_constant(column) and not column.scales_nothing:
                return (
                    f"what the loop puts into .grad is a multiple of {name}'s gradients whose number the source does "
                    "not show, and which is no count of the window: whether a sum or a mean is meant is unknown, so "
                    "divide the losses"
                )
        for column in self.objective:
            if column.is_put_in and column.whole and self._counts_in_some_full_windows(column):
                return (
                    f"what the loop puts into .grad is a multiple of {name}'s gradients that changes from window to "
                    "window, and the source does not show its number: whether the large batch would have it is "
                    "unknown, so put in the sum of the gradients, and scale .grad after that"
                )
        return ""

    def _divides_by_steps_unseen(self, column: Column) -> bool:
        """Whether a constant divisor that the source does not show equals K, and no count of units or rows."""
        if column.source is not Source.UNSEEN or not column.divides or not self.evidence.is_constant(column):
            return False
        if not self.evidence.counter:
            # What decides on a step is not shown either (a framework does): it may be this very number.
            return False
        return self.evidence.matches(column, over_steps) and not any(
            self.evidence.matches(column, role) for role in COUNTS
        )

    def _counts_in_some_full_windows(self, column: Column) -> bool:
        """Whether a column differs between full windows of several micro-batches, and counts something in one.

        A ratio of small whole numbers does; a limit over a norm is none.
        """
        points, same = self.evidence.points, self.evidence.same
        full = {column.values[i] for i, point in enumerate(points) if point.is_full and point.length > 1}
        counts = any(_is_small_ratio(value, same) for value in full if not same(value, 1.0))
        return counts and any(not same(value, min(full)) for value in full)

    def _is_steps(self, column: Column) -> bool:
        return self.evidence.matches(column, lambda point: float(point.steps) if point.steps > 1 else None)

    def _is_steps_in_one(self, column: Column) -> bool:
        """Whether a column is K throughout a full window: what the loop computes from gradients differs in others."""
        return self._is_in_a_full_window(column, operator.truediv)

    def unsteady(self) -> Iterator[int]:
        """The positions of the points of windows in which whole losses have different weights for no known reason.

        The weights in the large batch of such a window are not known.
        """
        guessed = [c for c in self.accumulation if c.source is not Source.STEPS and not self._is_shown(c)]
        unexplained = [c for c in guessed if self._is_right_somewhere(c)]
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

    # Notes

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
        scaling = [c for c in self.accumulation if not c.scales_nothing]
        if len(needed) == 1 and len(scaling) == 1 and not needed[0].divides and self.evidence.is_constant(needed[0]):
            self.notes.append(
                f"the factor {needed[0].values[0]:.6g} of {self._name} equals 1/K and was read as loss scaling; if it "
                "is part of the objective, state --loss-coefficient"
            )

    def what_may_be_steps(self) -> list[str]:
        """Other readings of a divisor where every micro-batch steps: it may be a K that nothing else shows."""
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
        """Whether the whole loss is divided by a constant integer that is neither 2 nor the number of its terms."""
        if not column.divides or not column.whole or not self.evidence.is_constant(column):
            return False
        if column.source is Source.OBJECTIVE:
            return False
        count = round(1.0 / column.values[0])
        usual = count == 2 or any(count == _terms_of(point) for point in self.evidence.points)
        return count > 1 and not usual and self.evidence.same(column.values[0] * count, 1.0)

    def _others_are_undivided(self) -> bool:
        """Whether the loss of a penalty has other terms, all of them unscaled means."""
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
        """Whether a run's graph does not show the role of the one factor that may be the accumulation's.

        Where it does not show the units of a loss either, each factor may be 1 over the units of a micro-batch or of
        the window; so exactly one factor has to be K, and no other may have an unknown source.
        """
        evidence = self.evidence
        scaling = [c for c in self.accumulation if not c.scales_nothing]
        # The sign of a loss (`-log_probs[target]`) counts nothing.
        objective = [c for c in self.objective if not all(value == -1.0 for value in c.values)]
        unsure = [c for c in (*scaling, *objective) if c.source is not Source.STEPS]
        if self.kind is Reduction.NONE:
            # The factor of a penalty may include the division, unless nothing of its loss is divided, or all of its
            # factors come from elsewhere in the source than K.
            accumulated = any(p.steps > 1 for p in evidence.points)
            unknown = [c for c in objective if not is_from_elsewhere(c, evidence)]
            return accumulated and bool(unknown) and not scaling and not self._others_are_undivided()
        accumulated = any(p.steps > 1 and p.term.units is None for p in evidence.points)
        if accumulated and unsure and (len(scaling) > 1 or (objective and not scaling)):
            return True
        means = [c for c in unsure if is_mean_of_terms(c, evidence.points, evidence.same)]
        return len(scaling) == 1 and means == scaling


def _is_small_ratio(value: float, same: Same) -> bool:
    """Whether a number is a ratio of whole numbers, of which the smaller has one digit."""
    larger = max(value, 1.0 / value) if value > 0.0 else math.inf
    # Among greater numbers almost all are near such a ratio.
    return larger <= _LARGEST_RATIO and same(float(Fraction(larger).limit_denominator(9)), larger)

"""What the factors between a loss's reduction and ``backward`` are there for, as far as their numbers tell.

A number says nothing alone: 0.25 is an objective's coefficient or a division by K = 4. Beside the counts of its window
(micro-batches, units, rows), and beside the same factor of the other micro-batches, it mostly does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gradcheck_accum.events import Backward, Factor, Operation, Purpose, Reduction, Term, product_of
from gradcheck_accum.stated import names_steps

RELATIVE_TOLERANCE = 1e-5
"""Two factors read in float32 or better are the same number within this."""

Column = tuple[Factor, ...]
"""The factors that stand at one position between reduction and backward, one for each point of a series."""


@dataclass(frozen=True, slots=True)
class Point:
    """One term of one backward with the numbers that its factors may turn out to be.

    ``steps`` is K, ``length`` how many points the window holds on the point's rank, ``window_units`` and
    ``window_rows`` their sums. ``divisor`` is what gradients are divided by when they are averaged over the ranks, and
    ``shared_units`` and ``shared_rows`` are the sums over all ranks divided by it. ``step`` tells windows apart.
    """

    backward: Backward
    term: Term
    factors: tuple[Factor, ...]
    steps: int
    length: int
    window_units: float | None
    window_rows: float | None
    divisor: int
    shared_units: float | None
    shared_rows: float | None
    step: int


def aligned(points: Sequence[Point]) -> list[Point]:
    """The points with a factor of 1 where others were multiplied by one at a place which they did not come by.

    A loss that is divided in one branch, and not in another, so keeps its columns: each is what one place applied.
    Nothing is changed where a place is not known, or where the points do not come by their places in one order.
    """
    if len({len(point.factors) for point in points}) < 2:
        return list(points)
    keys = [_places(point.factors) for point in points]
    longest = max(range(len(points)), key=lambda i: len(points[i].factors))
    order, own = keys[longest], points[longest].factors
    if any(not _is_within(key, order) for key in keys):
        return list(points)
    found = []
    for point, key in zip(points, keys, strict=True):
        factors = dict(zip(key, point.factors, strict=True))
        filled = (factors.get(k, replace(f, value=1.0)) for k, f in zip(order, own, strict=True))
        found.append(replace(point, factors=tuple(filled)))
    return found


def _places(factors: Sequence[Factor]) -> list[tuple[object, int]]:
    """Where each factor was applied, and which of those of that place it is; None stands for what is not known."""
    counted: Counter[object] = Counter()
    keys: list[tuple[object, int]] = []
    for factor in factors:
        place = factor.where.place if factor.where is not None else None
        keys.append((place, counted[place]))
        counted[place] += 1
    return keys


def _is_within(keys: Sequence[tuple[object, int]], order: Sequence[tuple[object, int]]) -> bool:
    """Whether all places are known, and come in this order."""
    following = iter(order)
    return all(key[0] is not None and key in following for key in keys)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The points of one series, and what their columns of factors can be told to be by them.

    ``same`` says whether two numbers are equal within the precision that they were read in, ``beside`` are all
    backwards whose gradients go where those of the series go. ``states_steps`` says that the loop, or its caller,
    states K.
    """

    points: Sequence[Point]
    same: Callable[[float, float], bool]
    beside: Sequence[Backward] = ()
    states_steps: bool = False

    def columns(self) -> list[Column]:
        """Align the factors of a series; where their number changes they are taken as one product.

        What gradients are scaled by shows nowhere where it is 1: that is a product of its own, and the loss's factors
        stay what they are.
        """
        if len({len(point.factors) for point in self.points}) == 1:
            return self._aligned(len(self.points[0].factors))
        own = {len(point.term.factors) for point in self.points}
        shared = own.pop() if len(own) == 1 else 0
        return [*self._aligned(shared), tuple(_product(point.factors[shared:]) for point in self.points)]

    def _aligned(self, count: int) -> list[Column]:
        """The first ``count`` columns."""
        return [tuple(point.factors[i] for point in self.points) for i in range(count)]

    def of_the_whole_loss(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Those of the columns that stand at all terms of their backwards: factors of the loss as a whole."""
        if len({len(point.factors) for point in self.points}) != 1:
            # The product, and those of the loss's own that all terms share where these are aligned.
            shared = 1 + (min(_shared_factors(p.backward) for p in self.points) if len(columns) > 1 else 0)
            return columns[len(columns) - shared :]
        shared = min(_shared_factors(p.backward) + len(p.factors) - len(p.term.factors) for p in self.points)
        return columns[len(columns) - shared :]

    def undone_mean(self, whole: Sequence[Column], columns: Sequence[Column]) -> Column | None:
        """The factor of the whole loss that makes its mean a sum: the number of units, or rows, that it was taken over.

        A number that is the same in every micro-batch may be a coefficient. Where the loss is divided by such a number
        too, the micro-batch's or the window's, it is not.
        """
        for column in whole:
            counts = all(f.operation is Operation.MULTIPLY and f.purpose is not Purpose.OBJECTIVE for f in column)
            if not counts or all(f.value == 1.0 for f in column) or not self._matches_count(column):
                continue
            others = [c for c in columns if c is not column and all(f.operation is Operation.DIVIDE for f in c)]
            if not self._is_constant(column) or any(self._is_exact_count(other) for other in others):
                return column
        return None

    def counted_by(self, column: Column) -> Evidence:
        """The same points, whose units are what ``column`` multiplies them by."""
        if self._matches(column, lambda p: p.term.units):
            return self
        points = [
            replace(
                point,
                term=replace(point.term, units=point.term.rows),
                window_units=point.window_rows,
                shared_units=point.shared_rows,
            )
            for point in self.points
        ]
        return replace(self, points=points)

    def _matches_count(self, column: Column) -> bool:
        if self._matches(column, lambda p: p.term.units):
            return True
        # As many elements in every row: else the rows' number does not undo a mean over the elements.
        each = [p.term.units / p.term.rows if p.term.units and p.term.rows else math.nan for p in self.points]
        return self._matches(column, lambda p: p.term.rows) and all(self.same(one, each[0]) for one in each)

    def _is_exact_count(self, column: Column) -> bool:
        return self._matches_any(column, _EVERY_COUNT) or bool(self.full_window_counts(column))

    def is_own_count(self, column: Column) -> bool:
        """Whether a divisor counts the micro-batch's units: all of them, its rows, or those that a mask left."""
        if self._matches(column, _over_own_units):
            return True
        if self._matches(column, _over_window_units):
            # Where targets are ignored, a window may hold as many units as each of its micro-batches has rows.
            return False
        if self._matches(column, _over_own_rows):
            return True
        if self._matches(column, _over_window_rows):
            # The rows of a window may be fewer than the elements of one micro-batch's sum.
            return False
        if self._matches_any(column, _COUNTS_OVER_RANKS):
            return False
        return (self.varies_within_a_window(column) and not self._opens_short()) or all(
            self._is_count(f, p, 1.0, p.term.units) for f, p in zip(column, self.points, strict=True)
        )

    def is_window_count(self, column: Column) -> bool:
        """Whether a divisor counts the units of the whole window."""
        return (
            self._matches_any(column, (_over_window_units, _over_window_rows, *_COUNTS_OVER_RANKS))
            or self._follows_the_window(column)
            or all(self._is_count(f, p, p.term.units, p.window_units) for f, p in zip(column, self.points, strict=True))
        )

    def is_known_count(self, column: Column) -> bool:
        """Whether a factor that changes is one over a count that is known, be it multiplied by and not divided."""
        if self._is_constant(column):
            # Half of a sum of squares is no mean over two.
            return False
        return self._matches_any(column, _EVERY_COUNT)

    def products(self, columns: Sequence[Column]) -> list[float]:
        """What ``columns`` come to together, at every point."""
        return [math.prod(column[i].value or 0.0 for column in columns) for i in range(len(self.points))]

    def averages_the_window(self, columns: Sequence[Column]) -> bool:
        """Whether all factors together divide by the units, or the rows, of the window, whatever each is there for."""
        together = tuple(Factor(value) for value in self.products(columns))
        if self._matches(together, _over_own_units):
            # A micro-batch may have as many elements as its window has rows.
            return False
        return self._matches_any(together, _SHARED_COUNTS)

    def due_counts(self, column: Column) -> list[float]:
        """What the divisors of `is_window_count` should have been: the units of all ranks, divided by their number.

        Where a number is no count that is known, the ranks' own are averaged.
        """
        if all(point.divisor == 1 for point in self.points):
            return [1.0 / (factor.value or 1.0) for factor in column]
        units = [point.shared_units for point in self.points]
        if self._matches_any(column, (_over_window_units, _over_units_of_all_ranks)):
            return [count or 0.0 for count in units]
        rows = [point.shared_rows for point in self.points]
        if self._matches_any(column, (_over_window_rows, _over_rows_of_all_ranks)):
            return [count or 0.0 for count in rows]
        sums: dict[int, float] = {}
        for window in self._windows():
            first = self.points[window[0]]
            sums[first.step] = sums.get(first.step, 0.0) + 1.0 / (column[window[0]].value or 1.0)
        return [sums[point.step] / point.divisor for point in self.points]

    def unlike_counts(self, column: Column) -> list[tuple[float, float]]:
        """The units of each window with what a divisor makes of them, where it follows neither them nor their share.

        Empty where it does, and where units are not known or are shared by several ranks.
        """
        firsts = [window[0] for window in self._windows()]
        known = [
            (self.points[i].window_units or 0.0, 1.0 / (column[i].value or 1.0))
            for i in firsts
            if self.points[i].divisor == 1
        ]
        if len(known) < len(firsts) or not all(units for units, _ in known) or self._matches_any(column, _EVERY_COUNT):
            return []
        shares = [count / units for units, count in known]
        return [] if all(self.same(share, shares[0]) for share in shares) else known

    def undoes_the_average(self, column: Column) -> bool:
        """Whether the loss is multiplied by the number of ranks, which the average will divide by."""
        return all(
            point.divisor > 1 and factor.operation is Operation.MULTIPLY and factor.value == point.divisor
            for factor, point in zip(column, self.points, strict=True)
        )

    def full_window_counts(self, column: Column) -> dict[int, float]:
        """Each point's window units (or rows), shared over the ranks, where a divisor counts those of full windows.

        Empty where it does not.
        """
        full = [i for i, p in enumerate(self.points) if p.length == p.steps > 1]
        for totals, shared in (
            ([p.window_units for p in self.points], [p.shared_units for p in self.points]),
            ([p.window_rows for p in self.points], [p.shared_rows for p in self.points]),
        ):
            known = {id(p.backward): total for p, total in zip(self.points, totals, strict=True) if total}
            counted = full if len(known) == len(self.points) else []
            own = [known[id(self.points[i].backward)] for i in counted]
            if own and all(self.same(n, 1.0 / (column[i].value or 1.0)) for n, i in zip(own, counted, strict=True)):
                return {id(p.backward): total or 0.0 for p, total in zip(self.points, shared, strict=True)}
        return {}

    def is_scaling(self, column: Column) -> bool:
        """Whether the factors at one position are the accumulation's rather than the objective's."""
        purposes = {factor.purpose for factor in column}
        if len(purposes) == 1 and Purpose.UNKNOWN not in purposes:
            return Purpose.ACCUMULATION in purposes
        if all(factor.value is not None and self.same(factor.value, 1.0) for factor in column):
            return True
        if self.may_be_a_mean_of_terms(column) and not self._matches(column, _one_over_k):
            return False
        if self._is_a_constant_of_plain_training(column):
            return self.is_named_after_steps(column)
        candidates: list[Callable[[Point], float | None]] = [
            _one_over_k,
            lambda p: 1.0 / p.length,
            lambda p: p.term.units / p.window_units if p.term.units and p.window_units else None,
            lambda p: p.term.rows / p.window_rows if p.term.rows and p.window_rows else None,
            lambda p: p.term.units / p.shared_units if p.term.units and p.shared_units else None,
            lambda p: p.term.rows / p.shared_rows if p.term.rows and p.shared_rows else None,
        ]
        if all(factor.operation is Operation.DIVIDE for factor in column):
            candidates += [
                *_COUNTS,
                # K off by one is a mistake about K, not a coefficient; or a count, where it is not known what counts.
                *(_OFF_BY_ONE if all(point.term.units is not None for point in self.points) else ()),
            ]
            candidates += [lambda p: 1.0 / (p.steps * p.divisor) if p.steps > 1 else None, *_COUNTS_OVER_RANKS]
        return self._matches_any(column, candidates) or self._depends_on_units(column)

    def _is_a_constant_of_plain_training(self, column: Column) -> bool:
        """Whether nothing shows what a factor is there for: it never changes, nor does the window's one micro-batch.

        What equals K, or a count of units, may be the objective's coefficient as well: no number of micro-batches can
        be held against a loop that adds none up.
        """
        alone = all(point.length == point.steps == 1 for point in self.points)
        return alone and not self.states_steps and self._is_constant(column)

    def is_named_after_steps(self, column: Column) -> bool:
        """Whether the source names a divisor as K is named, and not as the number of a loss's terms (their mean)."""
        return all(
            factor.value is not None
            and names_steps(factor.origins)
            and not self.same(factor.value * len(point.backward.terms), 1.0)
            for factor, point in zip(column, self.points, strict=True)
        )

    def may_divide_for_nothing(self, column: Column) -> bool:
        """Whether each of several micro-batches is a window of its own, and its loss divided by the same whole number.

        Half of a mean square and the mean of several terms are objectives that people write so.
        """
        value = column[0].value
        if not value or any(f.operation is not Operation.DIVIDE or f.value != value for f in column):
            return False
        count = round(1.0 / value)
        usual = count == 2 or any(count == len(point.backward.terms) for point in self.points)
        whole = all(self._is_shared(backward, column[0]) for backward in self.beside)
        constant = len(self.points) > 1 and self._is_a_constant_of_plain_training(column)
        return constant and whole and not usual and count > 1 and self.same(value * count, 1.0)

    def _is_shared(self, backward: Backward, factor: Factor) -> bool:
        """Whether all terms that count units have the like of ``factor``: it is no coefficient of one of them."""
        counting = (term for term in backward.terms if term.reduction is not Reduction.NONE)
        value = factor.value or 0.0
        return all(any(f.value is not None and self.same(f.value, value) for f in t.factors) for t in counting)

    def belongs_to_its_term(self, column: Column, loss_is_scaled: bool) -> bool:
        """Whether a factor that stands at one of several terms weighs that term, and not the micro-batch.

        It does where the loss as a whole is scaled, where no other term has the like (a coefficient that happens to
        equal 1/K), or where the terms' factors make up the same sum in every micro-batch (samples that are mixed). A
        division by K at one term is more often a division that others lack; but half of a penalty is a penalty.
        """
        constant = self._is_constant(column)
        if self._depends_on_units(column):
            return False
        if constant and column[0].operation is Operation.DIVIDE:
            penalty = loss_is_scaled and all(p.term.reduction is Reduction.NONE for p in self.points)
            by_k = self._matches(column, _one_over_k) or self._matches(column, lambda p: 1.0 / p.length)
            return penalty or (not by_k and not all(self._is_shared(p.backward, column[0]) for p in self.points))
        if loss_is_scaled:
            return True
        if constant:
            return any(not self._scales_otherwise(p) for p in self.points)
        sums = [math.fsum(math.prod(f.value or 0.0 for f in own) for own in inner) for inner in self._inner_factors()]
        return all(self.same(total, sums[0]) for total in sums)

    def _inner_factors(self) -> list[list[tuple[Factor, ...]]]:
        """For each point, what the terms of its backward are multiplied by before they are added up.

        Two terms may happen to have the same coefficient in one micro-batch: it is the loop that tells.
        """
        shared = min(_shared_factors(point.backward) for point in self.points)
        return [[t.factors[: len(t.factors) - shared] for t in point.backward.terms] for point in self.points]

    def _scales_otherwise(self, point: Point) -> bool:
        """Whether every other term that counts units has a factor of 1/K too."""
        others = [t for t in point.backward.terms if t is not point.term and t.reduction is not Reduction.NONE]
        counts = (point.steps, point.length)
        return all(any(f.value and self.same(f.value * n, 1.0) for f in t.factors for n in counts) for t in others)

    def may_be_a_mean_of_terms(self, column: Column) -> bool:
        """Whether a factor may be one over the number of a loss's terms, all of one kind: their mean.

        They may be the samples of a micro-batch, each with a loss of its own, or the micro-batches of a window that are
        sent back together. Two terms of each of several micro-batches are more often added up, and terms with
        coefficients of their own (a difference, say) are no mean.
        """
        if any(len(point.backward.terms) < 2 for point in self.points):
            return False
        return all(
            len(point.backward.terms) > (2 if point.length > 1 else 1)
            and len({term.kind for term in point.backward.terms}) == 1
            and len({product_of(own) for own in inner}) == 1
            and factor.value is not None
            and self.same(factor.value * len(point.backward.terms), 1.0)
            for factor, point, inner in zip(column, self.points, self._inner_factors(), strict=True)
        )

    def may_be_objective(self, column: Column) -> bool:
        """A multiplication, or a division by the number of terms (the mean of two losses), may be the objective's.

        So may a division that is not by K, though by nearly as much, and that counts nothing.
        """
        value = column[0].value or 0.0
        if self.same(value, 1.0):
            # Neither: it scales nothing.
            return False
        if any(factor.purpose is not Purpose.UNKNOWN or factor.value != column[0].value for factor in column):
            return False
        if column[0].operation is Operation.MULTIPLY or math.isclose(value * len(self.points[0].backward.terms), 1.0):
            return True
        return self._matches_any(column, _OFF_BY_ONE) and not self._matches_any(column, _EVERY_COUNT)

    def is_right_with(self, columns: Sequence[Column]) -> bool:
        """Whether these columns make every full window right by themselves."""
        full = [i for i, point in enumerate(self.points) if point.length == point.steps]
        products = self.products(columns)
        return bool(full) and all(self.same(products[i] * self.points[i].steps, 1.0) for i in full)

    @staticmethod
    def enlarges(column: Column) -> bool:
        """Whether the loss is multiplied by more than one."""
        return all(f.operation is Operation.MULTIPLY and f.value is not None and f.value > 1.0 for f in column)

    def changes_nothing(self, columns: Sequence[Column]) -> bool:
        """Whether these columns cancel each other everywhere."""
        return all(self.same(product, 1.0) for product in self.products(columns))

    def adds_up(self, columns: Sequence[Column]) -> bool:
        """Whether the products of ``columns`` add up to 1 in every full window."""
        full = [w for w in self._windows() if len(w) == self.points[w[0]].steps]
        products = self.products(columns)
        return bool(full) and all(self.same(math.fsum(products[i] for i in window), 1.0) for window in full)

    def varies_within_a_window(self, column: Column) -> bool:
        """Whether the micro-batches of one window have different factors."""
        windows = ([column[i].value or 0.0 for i in window] for window in self._windows())
        return any(not self.same(value, values[0]) for values in windows for value in values)

    def _windows(self) -> list[range]:
        """The positions of the points of each window."""
        windows: list[range] = []
        start = 0
        while start < len(self.points):
            windows.append(range(start, start + self.points[start].length))
            start = windows[-1].stop
        return windows

    def _follows_the_window(self, column: Column) -> bool:
        """Whether a divisor is constant within windows and changes between them, as a window's own total does."""
        return not self.varies_within_a_window(column) and not self._is_constant(column)

    def _opens_short(self) -> bool:
        """Whether the first window is cut short: then what was computed for a window may lie in two of them."""
        return self.points[0].length < self.points[0].steps

    def _depends_on_units(self, column: Column) -> bool:
        """Whether a factor changes, and only ever with the micro-batch's units or the window's length."""
        values: dict[tuple[float | None, float | None, int], float] = {}
        for factor, point in zip(column, self.points, strict=True):
            key = (point.term.units, point.window_units, point.length)
            if not self.same(values.setdefault(key, factor.value or 0.0), factor.value or 0.0):
                return False
        return any(not self.same(v, column[0].value or 0.0) for v in values.values())

    def _is_constant(self, column: Column) -> bool:
        return all(self.same(factor.value or 0.0, column[0].value or 0.0) for factor in column)

    def _matches_any(self, column: Column, values: Iterable[Callable[[Point], float | None]]) -> bool:
        """Whether a column equals one of ``values`` at every point."""
        return any(self._matches(column, value) for value in values)

    def _matches(self, column: Column, value: Callable[[Point], float | None]) -> bool:
        """Whether a column equals ``value`` at every point."""
        for factor, point in zip(column, self.points, strict=True):
            expected = value(point)
            if expected is None or factor.value is None or not self.same(factor.value, expected):
                return False
        return True

    @staticmethod
    def _is_count(factor: Factor, point: Point, more_than: float | None, up_to: float | None) -> bool:
        """Whether 1/factor is a whole number in the range of a count, and not the number of micro-batches."""
        if not factor.value or more_than is None or up_to is None:
            return False
        count = 1.0 / factor.value
        whole = math.isclose(count, round(count), rel_tol=RELATIVE_TOLERANCE)
        return whole and more_than < count <= up_to and round(count) not in (point.steps, point.length)


def is_ambiguous(column: Column) -> bool:
    """Whether the accumulation's factors could as well be the objective's."""
    return all(
        factor.purpose is Purpose.UNKNOWN and factor.operation is Operation.MULTIPLY and factor.value != 1.0
        for factor in column
    )


def _product(factors: Sequence[Factor]) -> Factor:
    value = math.prod(f.value or 1.0 for f in factors)
    return Factor(value, Operation.DIVIDE if value < 1 or not factors else Operation.MULTIPLY)


def _shared_factors(backward: Backward) -> int:
    """How many factors all terms of a backward end with."""
    if len(backward.terms) == 1:
        return len(backward.terms[0].factors)
    ways = [term.factors[::-1] for term in backward.terms]
    return next((i for i, own in enumerate(zip(*ways, strict=False)) if len(set(own)) > 1), min(map(len, ways)))


def _one_over_k(point: Point) -> float | None:
    return 1.0 / point.steps if point.steps > 1 else None


def _one_over(count: int, point: Point) -> float | None:
    return 1.0 / count if count != len(point.backward.terms) else None


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None


def _over_own_units(point: Point) -> float | None:
    return _inverse(point.term.units)


def _over_own_rows(point: Point) -> float | None:
    return _inverse(point.term.rows)


def _over_window_units(point: Point) -> float | None:
    return _inverse(point.window_units)


def _over_window_rows(point: Point) -> float | None:
    return _inverse(point.window_rows)


def _over_units_of_all_ranks(point: Point) -> float | None:
    return _inverse(point.shared_units and point.shared_units * point.divisor)


def _over_rows_of_all_ranks(point: Point) -> float | None:
    return _inverse(point.shared_rows and point.shared_rows * point.divisor)


def _over_shared_units(point: Point) -> float | None:
    return _inverse(point.shared_units)


def _over_shared_rows(point: Point) -> float | None:
    return _inverse(point.shared_rows)


_COUNTS = (_over_own_units, _over_own_rows, _over_window_units, _over_window_rows)
"""Divisors that count the units, or the rows, of a micro-batch or of its window."""

_SHARED_COUNTS = (_over_shared_units, _over_shared_rows)
"""Divisors that count one rank's part of the units, or the rows, of all ranks together."""

_COUNTS_OVER_RANKS = (_over_units_of_all_ranks, _over_rows_of_all_ranks, *_SHARED_COUNTS)
"""Divisors that count the units, or the rows, of all ranks together, or one rank's part of them."""

_EVERY_COUNT = (*_COUNTS, *_COUNTS_OVER_RANKS)

_OFF_BY_ONE: tuple[Callable[[Point], float | None], ...] = (
    lambda p: _one_over(p.steps + 1, p) if p.steps > 1 else None,
    lambda p: _one_over(p.steps - 1, p) if p.steps > 2 else None,
)
"""Divisors that are K but for one, and not the number of a loss's terms: their mean."""

"""The roles that the factors between a loss's reduction and ``backward`` may have.

Each factor is part of a *column*: what one place applied, micro-batch after micro-batch. A column belongs to the
accumulation (it gives a window of micro-batches the weight of its large batch) or to the objective (the large batch has
it too). Its *source*, what the number was bound to, is the better evidence, where the engine can tell it. Its values
are the other: the accumulation's are those that a role predicts at every point, from K, the window's length or its
units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from gradcheck_accum.ledger.events import Backward, Factor, Operation, Purpose, Quotient, Reduction, Term, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import (
    DATA,
    LOSSES,
    PUT_IN,
    WHAT_REMAINS,
    is_computed,
    is_extent,
    is_length,
    is_place,
    is_total,
    is_written_out,
    names_size,
    names_steps,
    origin_of_total,
)

_same = Same()


@dataclass(frozen=True, slots=True)
class Point:
    """One term of one backward, with the numbers that its factors are compared with.

    ``steps`` is K, ``length`` how many points the window holds on the point's rank, ``window_units`` and
    ``window_rows`` their sums. ``divisor`` is what gradients are divided by when they are averaged over the ranks, and
    ``shared_units`` and ``shared_rows`` are the sums over all ranks, including what an earlier pass left in the window,
    divided by it. ``step`` identifies the window, and ``of_window`` are all of its backwards.
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
    of_window: Sequence[Backward] = field(repr=False)

    @property
    def is_full(self) -> bool:
        """Whether its window holds K micro-batches."""
        return self.length == self.steps


class Source(Enum):
    """Where a factor's number comes from, as far as the engine has seen."""

    STEPS = "K: the number that decides on a step, or one that is named as K is"
    SIZE = "the size of a batch, by its name"
    EXTENT = "the size of a tensor along another dimension than its first"
    OBJECTIVE = "the objective, for certain"
    LITERAL = "a literal number"
    NAMED = "something that the source has another name for"
    DATA = "a tensor, which data or what was computed of it gave"
    UNSEEN = "what no source shows, or a computation"


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """What one place applied to the losses of a series: one factor for each of its points.

    ``whole`` means that it was applied to the loss as a whole, and not to one of its terms.
    """

    factors: tuple[Factor, ...]
    whole: bool = True
    source: Source = Source.UNSEEN
    values: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(factor.value or 0.0 for factor in self.factors))

    @property
    def divides(self) -> bool:
        """Whether losses are divided by it, wherever it is not 1: a product with 1 divides as well."""
        divided = [factor.operation is Operation.DIVIDE for factor in self.factors]
        return any(divided) and all(
            value and (is_divided or value == 1.0) for value, is_divided in zip(self.values, divided, strict=True)
        )

    def comes_from(self, origins: frozenset[str], *, divides: bool) -> bool:
        """Whether all factors divide, or all multiply, by a number that shares one of these origins."""
        operation = Operation.DIVIDE if divides else Operation.MULTIPLY
        return all(f.operation is operation and not origins.isdisjoint(f.origins) for f in self.factors)

    @property
    def scales_nothing(self) -> bool:
        """Whether it is 1 everywhere."""
        return all([value == 1.0 or _same(value, 1.0) for value in self.values])

    @property
    def is_put_in(self) -> bool:
        """Whether it was measured in what the loop put into ``.grad``."""
        return any(PUT_IN in factor.origins for factor in self.factors)


Role = Callable[[Point], float | None]
"""The value of a factor of this role at a point, None where it is not known; it depends only on what `_kind_of` has."""


def over_steps(point: Point) -> float | None:
    """1/K."""
    return 1.0 / point.steps if point.steps > 1 else None


def _over_length(point: Point) -> float | None:
    return 1.0 / point.length


def _over_steps_of_ranks(point: Point) -> float | None:
    return 1.0 / (point.steps * point.divisor) if point.steps > 1 else None


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


def over_own_units(point: Point) -> float | None:
    """1/n."""
    return _inverse(point.term.units)


def over_own_rows(point: Point) -> float | None:
    """The same of rows."""
    return _inverse(point.term.rows)


def over_window_units(point: Point) -> float | None:
    """1/N."""
    return _inverse(point.window_units)


def over_window_rows(point: Point) -> float | None:
    """The same of rows."""
    return _inverse(point.window_rows)


def over_units_of_all_ranks(point: Point) -> float | None:
    """1 over the units of all ranks together."""
    return _inverse(point.shared_units and point.shared_units * point.divisor)


def over_rows_of_all_ranks(point: Point) -> float | None:
    """The same of rows."""
    return _inverse(point.shared_rows and point.shared_rows * point.divisor)


def over_shared_units(point: Point) -> float | None:
    """1 over one rank's part of them."""
    return _inverse(point.shared_units)


def over_shared_rows(point: Point) -> float | None:
    """The same of rows."""
    return _inverse(point.shared_rows)


SHARES: tuple[Role, ...] = (
    over_steps,
    _over_length,
    lambda p: _ratio(p.term.units, p.window_units),
    lambda p: _ratio(p.term.rows, p.window_rows),
    lambda p: _ratio(p.term.units, p.shared_units),
    lambda p: _ratio(p.term.rows, p.shared_rows),
)
"""A micro-batch's shares of its window: 1/K, 1/m, n/N."""

OWN_COUNTS: tuple[Role, ...] = (over_own_units, over_own_rows)
WINDOW_COUNTS: tuple[Role, ...] = (over_window_units, over_window_rows)
COUNTS_OVER_RANKS: tuple[Role, ...] = (
    over_units_of_all_ranks,
    over_rows_of_all_ranks,
    over_shared_units,
    over_shared_rows,
)
COUNTS: tuple[Role, ...] = (*OWN_COUNTS, *WINDOW_COUNTS, *COUNTS_OVER_RANKS)
"""1 over the units, or the rows, of a micro-batch, of its window, or of all ranks."""

MISTAKEN: tuple[Role, ...] = (
    lambda p: 1.0 / (p.steps + 1) if p.steps > 1 else None,
    lambda p: 1.0 / (p.steps - 1) if p.steps > 2 else None,
    _over_steps_of_ranks,
)
"""What is divided by mistakenly in place of K: K ± 1, or K of all ranks where these are averaged."""


def aligned(points: Sequence[Point]) -> list[Point]:
    """The points, with a factor of 1 wherever other points were multiplied at a place that they did not pass.

    So a loss that is divided in one branch, and not in another, keeps its columns: each is what one place applied.
    Nothing is changed where a place is not known, or where the points do not pass their places in one order.
    """
    if len({len(point.factors) for point in points}) < 2:
        return list(points)
    keys = [_places(point.factors) for point in points]
    order = _merged(dict.fromkeys(keys))
    if order is None:
        return list(points)
    usual: dict[Place, Factor] = {}
    for key, point in zip(keys, points, strict=True):
        usual |= dict(zip(key, point.factors, strict=True))
    found = []
    for key, point in zip(keys, points, strict=True):
        own = dict(zip(key, point.factors, strict=True))
        filled = (own.get(place, replace(usual[place], value=1.0)) for place in order)
        found.append(replace(point, factors=tuple(filled)))
    return found


Place = tuple[object, int]
"""Where a factor was applied, None if that is not known, and its number among those of that place."""


def _places(factors: Sequence[Factor]) -> tuple[Place, ...]:
    counted: Counter[object] = Counter()
    keys: list[Place] = []
    for factor in factors:
        place = factor.where.place if factor.where is not None else None
        keys.append((place, counted[place]))
        counted[place] += 1
    return tuple(keys)


def _merged(ways: Iterable[tuple[Place, ...]]) -> list[Place] | None:
    """All places in an order that agrees with every way; None where there is none, or a place is not known."""
    left = [list(way) for way in ways]
    order: list[Place] = []
    while any(left):
        heads = [way[0] for way in left if way]
        free = next((h for h in heads if all(h not in way[1:] for way in left)), None)
        if free is None or free[0] is None:
            return None
        order.append(free)
        for way in left:
            if way and way[0] == free:
                del way[0]
    return order


@dataclass(frozen=True, slots=True)
class CountOfWindows:
    """A number that counts what the windows of one term hold: where it divides, its origins, and 1 over it by step."""

    where: Location | None
    origins: frozenset[str]
    values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The points of one series, and what is known about where their factors come from.

    ``same`` says whether two numbers are equal within the precision that they were read in. ``counter`` are the origins
    of the number that decides on a step, where the source shows one, ``lengths`` those of the lengths of the lists that
    are windows; ``states_steps`` means that K is stated. ``quotients`` are what K is computed from. ``counts`` are the
    numbers that count the windows of another term of the loss, ``held`` the origins of a count that comes to K, and
    ``named``, where nothing counts to K, those of what divides a loss, or a term of one, and is called K.
    """

    points: Sequence[Point]
    same: Same
    counter: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()
    states_steps: bool = False
    quotients: frozenset[Quotient] = frozenset()
    counts: Sequence[CountOfWindows] = ()
    held: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    _kinds: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """For each point, the first that looks the same to all roles, so that equal points are evaluated once."""

    def __post_init__(self) -> None:
        first: dict[object, int] = {}
        kinds = (first.setdefault(_kind_of(point), at) for at, point in enumerate(self.points))
        object.__setattr__(self, "_kinds", tuple(kinds))

    @property
    def known_steps(self) -> frozenset[str]:
        """The origins of the number that is known to be K: what decides on a step, or else what is called K."""
        return self.counter or self.named

    def _distinct(self, column: Column) -> list[tuple[float, Point]]:
        """The values of a column, each with its point; equal pairs once, in the order of their first."""
        return [
            (value, self.points[kind]) for value, kind in dict.fromkeys(zip(column.values, self._kinds, strict=True))
        ]

    def columns(self) -> list[Column]:
        """The columns of the series, from the reduction to the gradient.

        Where their number changes, and places do not align them, the factors after those of the loss are one product.
        """
        counts = {len(point.factors) for point in self.points}
        if len(counts) == 1:
            count = counts.pop()
            shared = min(_shared_factors(p.backward) + len(p.factors) - len(p.term.factors) for p in self.points)
            every = [tuple(point.factors[i] for point in self.points) for i in range(count)]
            columns = [self._column(factors, i >= count - shared) for i, factors in enumerate(every)]
            return self._with_quotients(columns)
        own = {len(point.term.factors) for point in self.points}
        kept = own.pop() if len(own) == 1 else 0
        # Those of them that all terms share belong to the whole loss.
        shared = min(_shared_factors(p.backward) for p in self.points) if kept else 0
        every = [tuple(point.factors[i] for point in self.points) for i in range(kept)]
        columns = [self._column(factors, i >= kept - shared) for i, factors in enumerate(every)]
        return [*columns, Column(tuple(_product(point.factors[kept:]) for point in self.points))]

    def _with_quotients(self, columns: list[Column]) -> list[Column]:
        """The columns, with one division by K in place of those that write 1/K out as what K is computed from.

        A quotient that was rounded is not K, and stays as it is written.
        """
        for quotient in self.quotients:
            found: list[Column] = []
            wanted = [*((own, True) for own in quotient.above), *((own, False) for own in quotient.below)]
            for origins, divides in wanted:
                like = (c for c in columns if c not in found and c.whole and c.comes_from(origins, divides=divides))
                found += [column] if (column := next(like, None)) is not None else []
            if len(found) < len(wanted):
                continue
            values = self.product(found)
            if all(self.same(v * p.length, 1.0) for v, p in zip(values, self.points, strict=True) if p.is_full):
                last = max(found, key=columns.index)
                merged = [
                    replace(factor, value=value, operation=Operation.DIVIDE)
                    for factor, value in zip(last.factors, values, strict=True)
                ]
                by_steps = Column(tuple(merged), last.whole, Source.STEPS)
                return [by_steps if c is last else c for c in columns if c is last or c not in found]
        return columns

    def _column(self, factors: tuple[Factor, ...], whole: bool) -> Column:
        applied = {
            (id(factor), kind): (factor, self.points[kind])
            for factor, kind in zip(factors, self._kinds, strict=True)
            if factor.value != 1.0
        }
        sources = {self._source(factor, point) for factor, point in applied.values()}
        return Column(factors, whole, sources.pop() if len(sources) == 1 else Source.UNSEEN)

    def _source(self, factor: Factor, point: Point) -> Source:
        if factor.purpose is not Purpose.UNKNOWN:
            return Source.STEPS if factor.purpose is Purpose.ACCUMULATION else Source.OBJECTIVE
        if not factor.origins or PUT_IN in factor.origins:
            return Source.UNSEEN
        # The terms that are added up may be the losses of K micro-batches: then all are of one kind.
        terms = point.backward.terms
        one_kind = len({term.kind for term in terms}) == 1
        may_be_mean = one_kind and factor.value is not None and self.same(factor.value * len(terms), 1.0)
        turns = self._turns(factor, point)
        if any(map(is_length, factor.origins)) and point.steps == 1 and 0 < turns < terms_of_data(point):
            # The losses of a list, of several terms each.
            return Source.OBJECTIVE
        if names_steps(factor.origins) and not may_be_mean:
            return Source.STEPS
        if not factor.origins.isdisjoint(self.counter) and not turns:
            return Source.STEPS
        if not factor.origins.isdisjoint(self.lengths):
            return Source.STEPS
        if not factor.origins.isdisjoint(self.held) and self._is_over_window(factor, point):
            return Source.STEPS
        if LOSSES in factor.origins and not one_kind and self._counts_the_terms(factor, point):
            return Source.OBJECTIVE
        if DATA in factor.origins and all(origin == DATA or is_total(origin) for origin in factor.origins):
            return Source.DATA
        if names_size(factor.origins):
            return Source.SIZE
        if any(map(is_extent, factor.origins)):
            return Source.EXTENT
        if WHAT_REMAINS in factor.origins:
            # A bound on what remains counts micro-batches, or rows of a batch: its value tells which.
            return Source.STEPS if self._counts_the_window(factor, point) else Source.UNSEEN
        if is_written_out(factor.origins):
            return Source.LITERAL
        # A name for which no constant and no setting is found may be anything, including K.
        named = [o for o in factor.origins if not (is_length(o) or is_total(o))]
        found = any(is_place(o) or is_computed(o) or "." in o or "[" in o for o in named)
        return Source.NAMED if found and not all(map(is_computed, factor.origins)) else Source.UNSEEN

    def _turns(self, factor: Factor, point: Point) -> int:
        """How many turns may have gathered the terms of a window's only backward, if a factor divides by them, or 0."""
        if point.length != 1 or factor.value is None:
            return 0
        numbers = range(2, len(point.backward.terms) + 1)
        turns = next((n for n in numbers if self.same(factor.value * n, 1.0)), 0)
        return turns if point.backward.gathers(turns) else 0

    def _counts_the_terms(self, factor: Factor, point: Point) -> bool:
        """Whether a factor is 1 over the number of the loss's terms, penalties included or not."""
        numbers = len(point.backward.terms), terms_of_data(point)
        return any(self.same((factor.value or 0.0) * number, 1.0) for number in numbers)

    def _counts_the_window(self, factor: Factor, point: Point) -> bool:
        """Whether a factor is 1 over the micro-batches of the window, or K, and not over the rows of the batch."""
        of_rows = point.term.rows is not None and self.same((factor.value or 0.0) * point.term.rows, 1.0)
        return not of_rows and self._is_over_window(factor, point)

    def _is_over_window(self, factor: Factor, point: Point) -> bool:
        return any(self.same((factor.value or 0.0) * count, 1.0) for count in (point.steps, point.length))

    def matches(self, column: Column, role: Role) -> bool:
        """Whether a column is what ``role`` predicts in all full windows, or 1 where its place did not apply a factor.

        The other windows are judged by it later, so they are no evidence here. Where no window is full, all are used.
        """
        fits = False
        distinct = self._distinct(column)
        only_full = any(point.is_full for _, point in distinct)
        for value, point in distinct:
            if only_full and not point.is_full:
                continue
            expected = role(point)
            if value == 1.0 and expected is not None and not self.same(expected, 1.0):
                continue
            if expected is None or not self.same(value, expected):
                return False
            fits = True
        return fits

    def equals(self, column: Column, role: Role) -> bool:
        """Whether a column is what ``role`` predicts at every point."""
        expected = ((value, role(point)) for value, point in self._distinct(column))
        return all(number is not None and self.same(value, number) for value, number in expected)

    def equals_any(self, column: Column, roles: Iterable[Role]) -> bool:
        """Whether a column is what one of ``roles`` predicts at every point."""
        return any(self.equals(column, role) for role in roles)

    def is_constant(self, column: Column) -> bool:
        """Whether a column has the same value everywhere."""
        return all(self.same(value, column.values[0]) for value in set(column.values))

    def is_constant_of_source(self, column: Column) -> bool:
        """Whether a column is one number of the source, written out or with a name that is neither K's nor a size's."""
        return column.source in (Source.LITERAL, Source.NAMED) and self.is_constant(column)

    def is_total_of_window(self, column: Column) -> bool:
        """Whether a column divides by a number that was summed over the list which is the window."""
        totals = frozenset(map(origin_of_total, self.lengths))
        return bool(totals) and column.comes_from(totals, divides=True) and all(p.divisor == 1 for p in self.points)

    def is_count_of_others(self, column: Column) -> bool:
        """Whether a column divides by a number that counts the windows of another term: one number, by its origins.

        Numbers whose origins are not known, or that have K in them, are not known to be a count alone.
        """
        first = column.factors[0]
        if not first.origins or not first.origins.isdisjoint(self.counter):
            return False
        return any(
            first.where == known.where
            and first.origins == known.origins
            and all(
                self.same(value, known.values.get(point.step, value))
                for value, point in zip(column.values, self.points, strict=True)
            )
            for known in self.counts
        )

    @property
    def is_mean_of_window(self) -> bool:
        """Whether all factors together divide by the units of the window, and by nothing else."""
        whole = Column(tuple(Factor(product_of(point.factors)) for point in self.points))
        return self.equals(whole, over_window_units) and all(point.divisor == 1 for point in self.points)

    def windows(self) -> list[list[int]]:
        """The positions of the points of each window, over all ranks."""
        found: dict[int, list[int]] = {}
        for position, point in enumerate(self.points):
            found.setdefault(point.step, []).append(position)
        return list(found.values())

    def varies_within_a_window(self, column: Column) -> bool:
        """Whether the micro-batches of one window have different factors."""
        return any(self.varies_in(own, column) for own in self.windows_of_a_rank())

    def varies_in(self, window: Sequence[int], column: Column) -> bool:
        """Whether the points at these positions have different factors."""
        return any(not self.same(column.values[i], column.values[window[0]]) for i in window)

    def windows_of_a_rank(self) -> list[range]:
        """The positions of the points of each window, separately for every rank."""
        windows: list[range] = []
        start = 0
        while start < len(self.points):
            windows.append(range(start, start + self.points[start].length))
            start = windows[-1].stop
        return windows

    def follows_units(self, column: Column) -> bool:
        """Whether a factor changes, and only with the units of the micro-batch or window, or the window's length."""
        values: dict[tuple[float | None, float | None, int], float] = {}
        for value, point in self._distinct(column):
            key = (point.term.units, point.window_units, point.length)
            if not self.same(values.setdefault(key, value), value):
                return False
        return not self.is_constant(column)

    def product(self, columns: Iterable[Column]) -> list[float]:
        """The product of ``columns`` at every point."""
        every = [column.values for column in columns]
        if len(every) == 1:
            return list(every[0])
        return [math.prod(values[i] for values in every) for i in range(len(self.points))]

    @property
    def is_plain_training(self) -> bool:
        """Whether every window is one micro-batch, and nothing states that it should be more.

        Such a loop has no number of micro-batches that a constant could be compared with.
        """
        return not self.states_steps and all(point.length == point.steps == 1 for point in self.points)

    @property
    def is_its_own_large_batch(self) -> bool:
        """Whether each window is one backward over one batch, and no number that divides it shows a K.

        One that is the same in most windows as in their next, and not in all, may count what several of them hold.
        """
        columns = self.columns()
        return (
            self.is_plain_training
            and all(len(p.of_window) == 1 and p.divisor == 1 and p.backward.of_one_batch for p in self.points)
            and not any(c.source is Source.STEPS and not c.scales_nothing for c in columns)
            and not any(self._counts_several_windows(c) for c in columns)
        )

    def _counts_several_windows(self, column: Column) -> bool:
        goes_on = [self.same(one, other) for one, other in pairwise(column.values)]
        return column.divides and not self.is_constant(column) and 2 * sum(goes_on) > len(goes_on)

    def shares_add_up(self, columns: Iterable[Column]) -> bool:
        """Whether the products of ``columns`` add up to 1 (times the ranks) in every full window.

        Where no window holds as many as the stated K, every product has to be 1/K.
        """
        product = self.product(columns)
        full = [own for own in self.windows() if any(self.points[i].is_full for i in own)]
        if not full:
            return all(self.same(value * p.steps, 1.0) for value, p in zip(product, self.points, strict=True))
        return all(self._is_whole(own, product) for own in full)

    def adds_up_everywhere(self, columns: Iterable[Column]) -> bool:
        """Whether they do so in the shorter windows as well."""
        product = self.product(columns)
        return all(self._is_whole(own, product) for own in self.windows())

    def _is_whole(self, window: Sequence[int], product: Sequence[float]) -> bool:
        return self.same(math.fsum(product[i] for i in window), float(self.points[window[0]].divisor))


def terms_of_data(point: Point) -> int:
    """How many terms a loss has, without penalties."""
    return sum(term.reduction is not Reduction.NONE for term in point.backward.terms)


def _kind_of(point: Point) -> object:
    """Everything about a point that a role may depend on."""
    over_ranks = point.divisor, point.shared_units, point.shared_rows
    own = point.steps, point.length, point.window_units, point.window_rows
    return id(point.term), len(point.backward.terms), *own, *over_ranks


def _product(factors: Sequence[Factor]) -> Factor:
    value = math.prod(f.value or 1.0 for f in factors)
    return Factor(value, Operation.DIVIDE if value < 1 or not factors else Operation.MULTIPLY)


def _shared_factors(backward: Backward) -> int:
    """The number of last factors that all terms of a backward share."""
    if len(backward.terms) == 1:
        return len(backward.terms[0].factors)
    ways = [term.factors[::-1] for term in backward.terms]
    return next((i for i, own in enumerate(zip(*ways, strict=False)) if len(set(own)) > 1), min(map(len, ways)))


def inner_factors(points: Sequence[Point]) -> list[list[tuple[Factor, ...]]]:
    """For each point, the factors of the terms of its backward before they are added up.

    Two terms may happen to have the same coefficient in one micro-batch, so all points of the loop are compared.
    """
    shared = min(_shared_factors(point.backward) for point in points)
    return [[t.factors[: len(t.factors) - shared] for t in point.backward.terms] for point in points]


def others_have_the_like(column: Column, evidence: Evidence, roles: Sequence[Role] = ()) -> bool:
    """Whether all other terms of each backward, except penalties, have a factor of the same value, or of ``roles``."""
    for value, point in zip(column.values, evidence.points, strict=True):
        wanted = [value] if not roles else [n for role in roles if (n := role(point)) is not None]
        for term in point.backward.terms:
            if term is point.term or term.reduction is Reduction.NONE:
                continue
            if not any(f.value is not None and evidence.same(f.value, n) for f in term.factors for n in wanted):
                return False
    return True


def is_mean_of_terms(column: Column, points: Sequence[Point], same: Same) -> bool:
    """Whether a factor may be 1 over the number of a loss's terms, all of one kind, which makes their mean.

    The terms may be the samples of a micro-batch, each with a loss of its own, or the micro-batches of a window that
    share one backward. Two terms in each of several micro-batches are more often a sum, and terms with coefficients of
    their own (a difference, say) are no mean.
    """
    if any(len(point.backward.terms) < 2 for point in points):
        return False
    return all(
        len(point.backward.terms) > (2 if point.length > 1 else 1)
        and len({term.kind for term in point.backward.terms}) == 1
        and len({product_of(own) for own in inner}) == 1
        and same(value * len(point.backward.terms), 1.0)
        for value, point, inner in zip(column.values, points, inner_factors(points), strict=True)
    )

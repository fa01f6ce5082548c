"""What a sum-reduced loss is divided by: the units of its micro-batch, of its window, of a full window, or nothing.

A sum that is divided by its micro-batch's units is a mean; one that is divided by its window's gives each unit the
weight 1/N; the units of a full window, as a constant, count a shorter one wrongly. A sum that is divided by no count is
a sum objective, and constants are its coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from gradcheck_accum.ledger.events import Factor, Operation, Reduction, Term
from gradcheck_accum.ledger.roles import (
    COUNTS,
    COUNTS_OVER_RANKS,
    Column,
    Evidence,
    Source,
    over_own_rows,
    over_own_units,
    over_rows_of_all_ranks,
    over_shared_rows,
    over_shared_units,
    over_units_of_all_ranks,
    over_window_rows,
    over_window_units,
)


@dataclass(slots=True)
class Counted:
    """What is left of a sum's columns after its count is removed.

    ``factors`` are what each point's coefficient is to be multiplied by, ``own_counts`` its units where the divisor
    gives them. ``is_whole`` means that all factors together divide by the window's units: nothing is left.
    ``is_unknown`` means that the weights are unknown.
    """

    kind: Reduction
    left: list[Column]
    normalised: bool
    factors: list[float]
    own_counts: list[float | None]
    is_whole: bool = False
    is_unknown: bool = False
    notes: list[str] = field(default_factory=list)


def undone_mean(evidence: Evidence, columns: Sequence[Column]) -> Column | None:
    """The factor that makes a mean a sum: the number of units, or rows, that it was taken over.

    A number that is the same in every micro-batch may be a coefficient. It is not where its name is that of a batch's
    size, or where the loss is also divided by a number of that kind, which counts units or rows, as it does, of the
    micro-batch or the window. Of a constant that only one of several terms has, its name alone shows it.
    """
    for column in columns:
        multiplies = all(f.operation is Operation.MULTIPLY for f in column.factors)
        if not multiplies or column.source is Source.OBJECTIVE or column.scales_nothing:
            continue
        if not _is_number_of_units(column, evidence):
            continue
        if not evidence.is_constant(column) or column.source is Source.SIZE:
            return column
        if not column.whole:
            continue
        # A constant is a coefficient, unless the divisor is one of that kind too: 8 and 32, written out.
        sources = {column.source} if column.source in (Source.LITERAL, Source.NAMED) else {*Source} - {Source.STEPS}
        others = [c for c in columns if c is not column and c.divides and c.source in sources]
        alike = _in_units(evidence) if _is_number_in_units(column, evidence) else _in_rows(evidence)
        if any(alike.equals_any(c, COUNTS) or _full_window_counts(c, alike) for c in others):
            return column
    return None


def _in_units(evidence: Evidence) -> Evidence:
    """The same points, with units in place of rows."""
    points = [
        replace(p, term=replace(p.term, rows=p.term.units), window_rows=p.window_units, shared_rows=p.shared_units)
        for p in evidence.points
    ]
    return replace(evidence, points=points)


def _in_rows(evidence: Evidence) -> Evidence:
    """The same points, with rows in place of units."""
    points = [
        replace(p, term=replace(p.term, units=p.term.rows), window_units=p.window_rows, shared_units=p.shared_rows)
        for p in evidence.points
    ]
    return replace(evidence, points=points)


def counted_by(evidence: Evidence, column: Column) -> Evidence:
    """The same points, with what ``column`` multiplies by, units or rows, as their units."""
    return evidence if _is_number_in_units(column, evidence) else _in_rows(evidence)


def _is_number_in_units(column: Column, evidence: Evidence) -> bool:
    return evidence.equals(column, lambda p: p.term.units)


def _is_number_of_units(column: Column, evidence: Evidence) -> bool:
    if _is_number_in_units(column, evidence):
        return True
    # All rows need the same number of elements: otherwise the number of rows does not undo a mean over elements.
    each = [p.term.units / p.term.rows if p.term.units and p.term.rows else math.nan for p in evidence.points]
    return evidence.equals(column, lambda p: p.term.rows) and all(evidence.same(one, each[0]) for one in each)


def read_sum(evidence: Evidence, columns: Sequence[Column]) -> Counted:
    """Remove the count from a sum's columns, if there is one.

    A sum of sums is one sum: its divisor may count the elements, or the numbers that were summed into each. In the
    latter case 1 over how many there are in each element belongs to the objective.
    """
    found = _read_sum(evidence, columns)
    summed = {point.term.summed for point in evidence.points}
    if summed == {1} or len(summed) > 1 or (found.normalised and not found.is_unknown):
        return found
    (each,) = summed
    for position, column in enumerate(columns):
        if not column.divides:
            continue
        counting = _with_values(column, [value * each for value in column.values])
        again = _read_sum(evidence, [*columns[:position], counting, *columns[position + 1 :]])
        if again.normalised and not again.is_unknown and counting not in again.left:
            share = _with_values(column, [1.0 / each] * len(column.values))
            return replace(again, left=[replace(share, source=Source.OBJECTIVE), *again.left])
    return found


def _with_values(column: Column, values: Sequence[float]) -> Column:
    """The column with other values."""
    factors = zip(column.factors, values, strict=True)
    return replace(column, factors=tuple(replace(factor, value=value) for factor, value in factors))


def _read_sum(evidence: Evidence, columns: Sequence[Column]) -> Counted:
    points = evidence.points
    nothing = Counted(Reduction.SUM, list(columns), False, [1.0] * len(points), [None] * len(points))
    if _averages_the_window(columns, evidence):
        return Counted(Reduction.SUM, [], True, nothing.factors, nothing.own_counts, is_whole=True)
    undone = next((c for c in columns if _undoes_the_average(c, evidence)), None)
    # A constant that equals a count is none where another number counts.
    for column in sorted(columns, key=evidence.is_constant_of_source):
        if column.source is Source.OBJECTIVE or not _may_count(column, evidence):
            continue
        divisors = [1.0 / (value or 1.0) for value in column.values]
        left = [c for c in columns if c is not column and c is not undone]
        if evidence.is_total_of_window(column) and not _is_of_others(column, evidence):
            return Counted(Reduction.SUM, left, True, divisors, nothing.own_counts)
        counts_window = evidence.is_count_of_others(column)
        if not counts_window and _is_count_of_either(column, evidence):
            note = _of_either(points[0].term.name, divisors[0])
            return Counted(Reduction.MEAN, left, True, divisors, list(divisors), is_unknown=True, notes=[note])
        if not counts_window and _is_own_count(column, evidence):
            return Counted(Reduction.MEAN, left, True, divisors, list(divisors))
        full = _full_window_counts(column, evidence) or _intended_window_counts(column, evidence)
        if full:
            return Counted(Reduction.SUM, left, True, full, nothing.own_counts)
        if _is_window_count(column, evidence):
            found = Counted(Reduction.SUM, left, True, _due_counts(column, evidence), nothing.own_counts)
            unlike = _unlike_counts(column, evidence)
            if column.is_put_in and not evidence.equals_any(column, COUNTS):
                # It may be the number of samples that vmap went through in several parts, or a share of it.
                found.is_unknown = True
                found.notes.append(_of_put_in(points[0].term.name, 1.0 / (column.values[0] or 1.0)))
            elif unlike and not evidence.is_count_of_others(column):
                # A mask keeps no more units than there are, and the sum of weights is rarely an integer.
                whole = all(evidence.same(count, round(count)) for _, count in unlike)
                exceeds = whole and any(count > units for units, count in unlike)
                found.is_unknown = exceeds or _counts_others(unlike, evidence)
                found.notes.append(_of_unlike_counts(points[0].term.name, unlike, found.is_unknown))
            elif not column.is_put_in and _may_hold_steps(column, evidence):
                found.is_unknown = True
                found.notes.append(_of_count_with_steps(points[0].term.name, column, points[0].steps))
            return found
        so_far = _counts_so_far(column, evidence)
        if so_far:
            return Counted(Reduction.SUM, left, True, so_far, nothing.own_counts)
        if _counts_otherwise(column, evidence):
            note = _of_unlike_counts(points[0].term.name, _with_own_counts(column, evidence), True)
            return Counted(Reduction.SUM, left, True, divisors, nothing.own_counts, is_unknown=True, notes=[note])
    return nothing


def _may_count(column: Column, evidence: Evidence) -> bool:
    """Whether a column divides by something else than K, or multiplies by 1 over a known, changing count."""
    if column.source is Source.STEPS and evidence.is_constant(column):
        return False
    # Half a sum of squares is no mean over two.
    return column.divides or (not evidence.is_constant(column) and evidence.equals_any(column, COUNTS))


def _averages_the_window(columns: Sequence[Column], evidence: Evidence) -> bool:
    """Whether all factors together divide by the units, or the rows, of the window, whatever the role of each."""
    if any(column.source is Source.OBJECTIVE for column in columns) or _undoes_steps(columns, evidence):
        return False
    together = Column(tuple(Factor(value) for value in evidence.product(columns)))
    if evidence.equals(together, over_own_units):
        # A micro-batch may have as many elements as its window has rows.
        return False
    if evidence.equals_any(together, (over_shared_units, over_shared_rows)):
        return True
    totals = _units_of_like_terms(evidence)
    return bool(totals) and all(
        evidence.same(value * total, 1.0) for value, total in zip(together.values, totals, strict=True)
    )


def _units_of_like_terms(evidence: Evidence) -> list[float]:
    """For each point, the units of its window in all terms of its kind: a loss at every step of a sequence, say.

    These are the terms that the same places scaled, whether or not each micro-batch has as many. Empty where no
    backward has several, where units are not known, and over several ranks.
    """
    return _totals_of_like_terms(evidence, lambda term: term.units)


def _totals_of_like_terms(evidence: Evidence, count: Callable[[Term], float | None]) -> list[float]:
    ways = {_way_of(point.term) for point in evidence.points}
    held: dict[int, list[list[Term]]] = {}
    for point in evidence.points:
        if point.step not in held:
            held[point.step] = [
                [term for term in backward.terms if _way_of(term) in ways] for backward in point.of_window
            ]
    terms = [term for window in held.values() for own in window for term in own]
    several = any(len(own) > 1 for window in held.values() for own in window)
    if not several or not all(map(count, terms)) or any(point.divisor > 1 for point in evidence.points):
        return []
    totals = {step: math.fsum(count(term) or 0.0 for own in window for term in own) for step, window in held.items()}
    return [totals[point.step] for point in evidence.points]


def _way_of(term: Term) -> tuple[object, ...]:
    """The kind of a term, and the places that scaled it, in order; terms that are multiplied by 0 are of another."""
    places = (factor.where.place if factor.where is not None else None for factor in term.factors)
    return term.kind, *places, any(factor.value == 0.0 for factor in term.factors)


def _undoes_steps(columns: Sequence[Column], evidence: Evidence) -> bool:
    """Whether constants of the source multiply by what K divides: other numbers, though their product equals K."""
    steps = [c for c in columns if c.source is Source.STEPS and c.divides and not c.scales_nothing]
    constants = [
        c
        for c in columns
        if evidence.is_constant_of_source(c) and not (c.divides or c.scales_nothing or _undoes_the_average(c, evidence))
    ]
    if not steps or not constants:
        return False
    return all(evidence.same(value, 1.0) for value in evidence.product([*steps, *constants]))


def _is_own_count(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor counts the micro-batch's units: all of them, its rows, or those that a mask keeps."""
    # Where targets are ignored, a window may hold as many units as each of its micro-batches has rows; and a window may
    # have fewer rows than one micro-batch's sum has elements. So the order of these roles matters.
    for role, is_own in (
        (over_own_units, True),
        (over_window_units, False),
        (over_own_rows, True),
        (over_window_rows, False),
    ):
        if evidence.equals(column, role):
            return is_own
    if evidence.equals_any(column, COUNTS_OVER_RANKS):
        return False
    if _changes_with_micro_batches(column, evidence) and not _exceeds_own(column, evidence):
        return True
    return column.source is Source.UNSEEN and all(
        _is_count(value, evidence, i, 1.0, evidence.points[i].term.units) for i, value in enumerate(column.values)
    )


def _is_count_of_either(column: Column, evidence: Evidence) -> bool:
    """Whether a constant of the source is as many as the micro-batch's elements, and as the rows of its window."""
    if not evidence.is_constant_of_source(column) or evidence.equals(column, over_own_rows):
        return False
    return evidence.equals(column, over_own_units) and evidence.equals(column, over_window_rows)


def _of_either(name: str, count: float) -> str:
    """The note on such a divisor."""
    return (
        f"{name} is divided by {count:.6g}, the number of each micro-batch's elements, and of its window's rows: this "
        "makes a mean of each micro-batch, to be divided by the accumulation steps as well, or is all that a sum over "
        "the window needs; divide by what is counted, len(x) or y.numel()"
    )


def _changes_with_micro_batches(column: Column, evidence: Evidence) -> bool:
    return evidence.varies_within_a_window(column) and not _opens_short(evidence)


def _counts_otherwise(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor changes within a window, and counts neither the micro-batch's units nor the window's."""
    return _changes_with_micro_batches(column, evidence) and _exceeds_own(column, evidence)


def _exceeds_own(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor exceeds, in some micro-batch, the units that it holds: a mask keeps no more than there are.

    Only integers count, since the sum of weights is rarely one.
    """
    counts = [1.0 / (value or 1.0) for value in column.values]
    units = [point.term.units for point in evidence.points]
    whole = all(evidence.same(count, round(count)) for count in counts)
    return whole and any(own is not None and count > own for own, count in zip(units, counts, strict=True))


def _is_window_count(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor counts the units of the whole window."""
    if evidence.equals_any(column, (over_window_units, over_window_rows, *COUNTS_OVER_RANKS)):
        return True
    if not evidence.varies_within_a_window(column) and not evidence.is_constant(column):
        # Constant within windows and different between them, as a window's total is.
        return True
    if _changes_with_micro_batches(column, evidence):
        # A window has one total.
        return False
    return column.source is Source.UNSEEN and all(
        _is_count(value, evidence, i, evidence.points[i].term.units, evidence.points[i].window_units)
        for i, value in enumerate(column.values)
    )


def _is_count(value: float, evidence: Evidence, position: int, more_than: float | None, up_to: float | None) -> bool:
    """Whether 1/value is an integer in the range of a count, and not the number of micro-batches."""
    if not value or more_than is None or up_to is None:
        return False
    count, point = 1.0 / value, evidence.points[position]
    whole = evidence.same(count, round(count))
    return whole and more_than < count <= up_to and round(count) not in (point.steps, point.length)


def _opens_short(evidence: Evidence) -> bool:
    """Whether the first window is short: then numbers computed for one window may be spread over two."""
    return evidence.points[0].length < evidence.points[0].steps


def _undoes_the_average(column: Column, evidence: Evidence) -> bool:
    """Whether the loss is multiplied by the number of ranks, which the average will divide by."""
    return all(
        point.divisor > 1 and factor.operation is Operation.MULTIPLY and factor.value == point.divisor
        for factor, point in zip(column.factors, evidence.points, strict=True)
    )


def _due_counts(column: Column, evidence: Evidence) -> list[float]:
    """What a window's divisors should have been: the units of all ranks, divided by the number of ranks.

    This includes what an earlier pass has left in the window, though its divisor did not include the others. Where the
    count is not a known one, the average of the ranks' own divisors is used.
    """
    points = evidence.points
    if evidence.equals_any(column, (over_window_units, over_units_of_all_ranks)):
        return [point.shared_units or 0.0 for point in points]
    if evidence.equals_any(column, (over_window_rows, over_rows_of_all_ranks)):
        return [point.shared_rows or 0.0 for point in points]
    if all(point.divisor == 1 for point in points):
        return [1.0 / (value or 1.0) for value in column.values]
    sums: dict[int, float] = {}
    for own in evidence.windows_of_a_rank():
        step = points[own[0]].step
        sums[step] = sums.get(step, 0.0) + 1.0 / (column.values[own[0]] or 1.0)
    return [sums[point.step] / point.divisor for point in points]


def _full_window_counts(column: Column, evidence: Evidence) -> list[float]:
    """What each point's window should be divided by, shared over the ranks, where a divisor counts full windows.

    It counts their units, their rows, or the same share of these in every full window. Empty where it does not.
    """
    points = evidence.points
    full = [i for i, point in enumerate(points) if point.length == point.steps > 1]
    for totals, shared in (
        ([p.window_units for p in points], [p.shared_units for p in points]),
        ([p.window_rows for p in points], [p.shared_rows for p in points]),
    ):
        if not full or not all(totals):
            continue
        shares = [1.0 / (column.values[i] or 1.0) / (totals[i] or 1.0) for i in full]
        if all(evidence.same(share, 1.0) for share in shares):
            return [total or 0.0 for total in shared]
        is_shown = not (column.is_put_in or evidence.is_constant(column))
        has_one_share = is_shown and all(evidence.same(share, shares[0]) for share in shares)
        if has_one_share and not _may_hold_steps(column, evidence):
            # The same share in all full windows: it counts a part of their units, or more than them (labels of tokens
            # that are never predicted), and would count the same share of the others.
            return [(total or 0.0) * shares[0] for total in shared]
    return []


def _counts_so_far(column: Column, evidence: Evidence) -> list[float]:
    """What each point's window should be divided by, where a divisor has counted only what of it ran until then.

    It counts the window's units, or its rows, before they are all there: the last micro-batch alone is divided by all.
    Empty where it does not.
    """
    points = evidence.points
    if not evidence.varies_within_a_window(column) or any(point.divisor > 1 for point in points):
        return []
    for own_counts, totals in (
        ([p.term.units for p in points], [p.window_units for p in points]),
        ([p.term.rows for p in points], [p.window_rows for p in points]),
    ):
        if not all(own_counts) or not all(totals):
            continue
        reached = [
            (i, count)
            for own in evidence.windows()
            for i, count in zip(own, accumulate(own_counts[i] or 0.0 for i in own), strict=True)
        ]
        if all(evidence.same(column.values[i] * count, 1.0) for i, count in reached):
            return [total or 0.0 for total in totals]
    return []


def _intended_window_counts(column: Column, evidence: Evidence) -> list[float]:
    """What each point's window should be divided by, where the first step comes too early for the windows counted.

    The divisor then counts the units, or the rows, of K micro-batches from the beginning of the pass. Empty where it
    does not.
    """
    points = evidence.points
    if not _opens_short(evidence) or any(point.divisor > 1 for point in points):
        return []
    numbers: dict[int | None, dict[int, int]] = {}
    for point in sorted(points, key=lambda p: p.backward.micro_batch):
        of_pass = numbers.setdefault(point.backward.epoch, {})
        of_pass.setdefault(point.backward.micro_batch, len(of_pass))
    intended = [(p.backward.epoch, numbers[p.backward.epoch][p.backward.micro_batch] // p.steps) for p in points]
    for counts, windows in (
        ([p.term.units for p in points], [p.window_units for p in points]),
        ([p.term.rows for p in points], [p.window_rows for p in points]),
    ):
        totals: dict[tuple[int | None, int], float] = {}
        for window, count in zip(intended, counts, strict=True):
            totals[window] = totals.get(window, 0.0) + (count or math.nan)
        if all(
            evidence.same(value * totals[window], 1.0) for value, window in zip(column.values, intended, strict=True)
        ):
            return [total or 0.0 for total in windows]
    return []


def _unlike_counts(column: Column, evidence: Evidence) -> list[tuple[float, float]]:
    """The units of each window with its divisor, where that is neither their number nor a constant share of it.

    Empty where it is, of these units or of those of all terms of this kind, and where units are not known or are shared
    by several ranks.
    """
    firsts = [own[0] for own in evidence.windows()]
    known = [
        (evidence.points[i].window_units or 0.0, 1.0 / (column.values[i] or 1.0))
        for i in firsts
        if evidence.points[i].divisor == 1
    ]
    if len(known) < len(firsts) or not all(units for units, _ in known) or evidence.equals_any(column, COUNTS):
        return []
    together = _units_of_like_terms(evidence)
    for totals in ([units for units, _ in known], [together[i] for i in firsts] if together else []):
        shares = [count / total for (_, count), total in zip(known, totals, strict=False)]
        if shares and all(evidence.same(share, shares[0]) for share in shares):
            return []
    return known


def _may_hold_steps(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor is K times, or 1/K of, the units or the rows of every window: K may have been put into it.

    Any other share of them is what a loop counts (pairs, tokens with several elements each), and has no K in it.
    """
    points = evidence.points
    steps = points[0].steps
    if steps < 2 or evidence.equals_any(column, COUNTS):
        return False
    every: list[list[float | None] | list[float]] = [
        [point.window_units for point in points],
        [point.window_rows for point in points],
        _units_of_like_terms(evidence),
        _totals_of_like_terms(evidence, lambda term: term.rows),
    ]
    shares = [
        [1.0 / ((value or 1.0) * (total or 1.0)) for value, total in zip(column.values, totals, strict=True)]
        for totals in every
        if totals and all(totals)
    ]

    def is_everywhere(number: float) -> bool:
        return any(all(evidence.same(share, number) for share in own) for own in shares)

    return not is_everywhere(1.0) and (is_everywhere(steps) or is_everywhere(1.0 / steps))


def _counts_others(unlike: Sequence[tuple[float, float]], evidence: Evidence) -> bool:
    """Whether the divisors in ``unlike`` count what the window before held, or only a part of their own window.

    A part is the first or the last few of its micro-batches, as many in every window.
    """
    counts = [count for _, count in unlike]
    points = evidence.points
    for held in (
        [[points[i].term.units or 0.0 for i in own] for own in evidence.windows()],
        [[points[i].term.rows or 0.0 for i in own] for own in evidence.windows()],
    ):
        if len(counts) > 1 and _are(counts[1:], [math.fsum(own) for own in held[:-1]], evidence):
            return True
        for left_out in range(1, max(map(len, held))):
            beginnings = [math.fsum(own[:-left_out]) for own in held]
            ends = [math.fsum(own[left_out:]) for own in held]
            firsts = [math.fsum(own[:left_out]) for own in held]
            lasts = [math.fsum(own[-left_out:]) for own in held]
            if any(_are(counts, part, evidence) for part in (beginnings, ends, firsts, lasts)):
                return True
    return False


def _is_of_others(column: Column, evidence: Evidence) -> bool:
    """Whether a divisor counts what the window before held, or a part of its own: a name may hold other lists."""
    unlike = _unlike_counts(column, evidence)
    return bool(unlike) and _counts_others(unlike, evidence)


def _are(counts: Sequence[float], totals: Sequence[float], evidence: Evidence) -> bool:
    return all(evidence.same(count, total) for count, total in zip(counts, totals, strict=True))


def _with_own_counts(column: Column, evidence: Evidence) -> list[tuple[float, float]]:
    """The units of each window with the first of its divisors that differs from its last, or its only one."""
    found = []
    for own in evidence.windows():
        odd = next((i for i in own if not evidence.same(column.values[i], column.values[own[-1]])), own[0])
        found.append((evidence.points[odd].window_units or 0.0, 1.0 / (column.values[odd] or 1.0)))
    return found


def _of_count_with_steps(name: str, column: Column, steps: int) -> str:
    """The note on a sum whose divisors are K times a count of its windows, or 1/K of one."""
    counts = ", ".join(f"{1.0 / (value or 1.0):.6g}" for value in [*dict.fromkeys(column.values)][:4])
    return (
        f"{name} is divided by {counts}, ...: {steps} times as many as its windows have units or rows, or 1/{steps} of "
        f"these, and each window holds {steps} micro-batches. Whether this counts something, or {steps} was multiplied "
        "into a count, is unknown: divide by the units of the window alone, or compare with a run on large batches"
    )


def _of_put_in(name: str, count: float) -> str:
    """The note on a sum whose gradients the loop divides by a number that no source shows, and that is no count."""
    return (
        f"what the loop puts into .grad are gradients of sums of {name} divided by {count:.6g}, which the source does "
        "not show, and which is no count of the window: whether a sum or a mean is meant is unknown, so divide the "
        "losses"
    )


def _of_unlike_counts(name: str, unlike: Sequence[tuple[float, float]], exceeds: bool) -> str:
    """The note on a sum whose divisors are not the units of its windows."""
    shown = unlike[:4]
    more = ", …" if len(unlike) > len(shown) else ""
    counts, units = (", ".join(f"{pair[i]:.6g}" for pair in shown) + more for i in (1, 0))
    read = (
        "which is neither their number nor a constant share of it, so the intended weight of a unit is unknown: divide "
        "by the units of the window, or compare with a run on large batches"
        if exceeds
        else "which was read as the number, or total weight, of the units that count (those of a mask, for example)"
    )
    return f"{name} is summed over windows of {units} units and divided by {counts}: {read}"

"""Reads the losses of a loop window by window, where together they make no sense.

A loop may divide its loss in most windows, or at one place, and not in another (a branch, a first epoch, a flush). Then
the factors of a series are no columns any more. But each window can be read by its own factors: those that divide by K,
or most of them where they only multiply by 1/K, are right by themselves, and show what the objective is. A window that
is not is the odd one, and is judged by the objective that the others show, and so is a window in which some losses lack
just the division. Of a window whose losses have other factors than the others', nothing is known.

This is asked only where all windows read together leave a full one wrong or unknown: factors that change with the
window, or with its units, are understood together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gradcheck_accum.events import Factor, Operation, Purpose, Reduction, product_of
from gradcheck_accum.factors import Evidence, Point
from gradcheck_accum.scaling import SeriesReading, read_series

_Same = Callable[[float, float], bool]


def is_right(reading: SeriesReading, evidence: Evidence) -> bool:
    """Whether every full window of a series adds up to its objective, as far as ``reading`` knows."""
    return all(
        _adds_up(reading, own, evidence.same)
        for own in _windows(evidence.points)
        if any(point.length == point.steps for point in own)
    )


def _adds_up(reading: SeriesReading, points: Sequence[Point], same: _Same) -> bool:
    shares = []
    for point in points:
        coefficient = reading.coefficient.get(id(point.backward))
        objective = reading.objective.get(id(point.backward), 1.0)
        if coefficient is None or not objective:
            return False
        shares.append(coefficient / objective)
    return same(math.fsum(shares), float(points[0].divisor))


@dataclass(frozen=True, slots=True)
class _Kind:
    """The windows whose losses all have the same factors."""

    factors: tuple[Factor, ...]
    windows: list[list[Point]]

    @property
    def points(self) -> list[Point]:
        return [point for window in self.windows for point in window]

    @property
    def full(self) -> int:
        """How many of them are as long as K."""
        return sum(all(point.length == point.steps for point in window) for window in self.windows)


def read_by_windows(evidence: Evidence, *, in_a_run: bool) -> SeriesReading | None:
    """The reading of a mean whose odd windows are judged by the others; None where no window is right by itself."""
    means = _as_means(evidence) if evidence.points and evidence.points[0].steps > 1 else None
    if means is None:
        return None
    evidence, windows = means, _windows(means.points)
    kinds, mixed = _kinds(windows, evidence.same)
    full = sum(kind.full for kind in kinds) + sum(own[0].length == own[0].steps for own in mixed)
    right: list[tuple[_Kind, SeriesReading]] = []
    for kind in kinds:
        if not kind.full or not (_divides(kind, evidence.same) or 2 * kind.full > full):
            continue
        alone = replace(evidence, points=kind.points)
        reading = read_series(alone, None, in_a_run=in_a_run)
        if reading.kind is not Reduction.SUM and is_right(reading, alone):
            right.append((kind, reading))
    if not right:
        return None
    usual, shown = max(right, key=lambda pair: pair[0].full)
    result = SeriesReading(shown.kind, shown.normalised, notes=[note for _, reading in right for note in reading.notes])
    objective = shown.objective[id(usual.points[0].backward)]
    for point in evidence.points:
        result.coefficient[id(point.backward)] = product_of(point.factors)
        result.objective[id(point.backward)] = objective
        result.units[id(point.backward)] = point.term.units
    for _, reading in right:
        result.objective |= reading.objective
    for own in mixed:
        if not all(any(_is_alike(point, kind, evidence.same) for kind, _ in right) for point in own):
            result.coefficient |= dict.fromkeys(id(point.backward) for point in own)
    return result


def _as_means(evidence: Evidence) -> Evidence | None:
    """The losses as means: sums that are divided by their own number are; None where they are sums."""
    if evidence.points[0].term.reduction is not Reduction.SUM:
        return evidence
    for position, column in enumerate(evidence.columns()):
        divides = all(factor.operation is Operation.DIVIDE and factor.value for factor in column)
        if divides and evidence.is_own_count(column):
            counts = tuple(replace(factor, value=1.0 / (factor.value or 1.0)) for factor in column)
            counted = evidence.counted_by(counts)
            return replace(counted, points=[_without(point, position) for point in counted.points])
    return None


def _without(point: Point, position: int) -> Point:
    """A sum that is divided by its own number, at this position, as a mean."""
    factors = point.factors[:position] + point.factors[position + 1 :]
    return replace(point, term=replace(point.term, reduction=Reduction.MEAN), factors=factors)


def _windows(points: Sequence[Point]) -> list[list[Point]]:
    return [list(own) for _, own in groupby(points, key=lambda point: point.step)]


def _kinds(windows: Sequence[list[Point]], same: _Same) -> tuple[list[_Kind], list[list[Point]]]:
    """The windows by the factors of their losses, and those whose losses have not all the same."""
    kinds: dict[tuple[tuple[Operation, str], ...], _Kind] = {}
    mixed = []
    for window in windows:
        factors = window[0].factors
        if any(not _are_same(point.factors, factors, same) for point in window):
            mixed.append(window)
        else:
            key = tuple((f.operation, f"{f.value:.5g}" if f.value else "") for f in factors if f.value != 1.0)
            kinds.setdefault(key, _Kind(factors, [])).windows.append(window)
    return list(kinds.values()), mixed


def _are_same(left: Sequence[Factor], right: Sequence[Factor], same: _Same) -> bool:
    # A factor of 1 stands where others come by a place that applies one.
    left, right = ([factor for factor in own if factor.value != 1.0] for own in (left, right))
    return len(left) == len(right) and all(
        one.operation is other.operation
        and (one.value is other.value or None not in (one.value, other.value))
        and same(one.value or 0.0, other.value or 0.0)
        for one, other in zip(left, right, strict=True)
    )


def _divides(kind: _Kind, same: _Same) -> bool:
    """Whether losses are divided by K, or by what the source calls so."""
    return any(
        factor.purpose is Purpose.ACCUMULATION or factor.operation is Operation.DIVIDE
        for factor in kind.factors
        if _is_one_over_k(factor, kind.points[0].steps, same)
    )


def _is_one_over_k(factor: Factor, steps: int, same: _Same) -> bool:
    return factor.value is not None and same(factor.value * steps, 1.0)


def _is_alike(point: Point, kind: _Kind, same: _Same) -> bool:
    """Whether a loss has the factors of a kind, or all of them but the division by K."""
    ways = [kind.factors]
    for position, factor in enumerate(kind.factors):
        if _is_one_over_k(factor, point.steps, same):
            ways.append(kind.factors[:position] + kind.factors[position + 1 :])
    return any(_are_same(point.factors, way, same) for way in ways)

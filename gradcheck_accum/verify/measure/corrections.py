"""Joins what was measured with the weight that each entry should have had according to the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradcheck_accum.ledger.events import Backward, Reduction, product_of
from gradcheck_accum.ledger.weights import Readings, Series, Weight, total_of
from gradcheck_accum.ledger.windows import Entry, Fate, Ledger, Window

if TYPE_CHECKING:
    from gradcheck_accum.verify.book.records import Measured, Replay


def entry_corrections(measured: Measured, ledger: Ledger, readings: Readings) -> list[float] | None:
    """For each record of a step, the factor that makes its own gradient its part of the large batch's.

    The part is a n_j / N ∇L_j and the gradient c_j ∇L_j, so the factor is the inverse of the relative weight (before
    the gradient was scaled by hand). What is in no window of this step, a discarded remainder or a gradient that was
    meant for another optimizer, gets 0, and so does what is stale in it. None where a weight is not known, or where the
    terms of one backward would need different factors.
    """
    weights: dict[Backward, list[tuple[Window, Weight]]] = {record.event: [] for record in measured.records}
    for window in ledger.closed_by(measured.step):
        for series in readings.series_of(window):
            for weight in _all_weights(window, series, readings):
                if weight.entry.backward in weights and weight.entry.fate is not Fate.STALE:
                    weights[weight.entry.backward].append((window, weight))
    corrections: list[float] = []
    for record in measured.records:
        found: list[float] = []
        for window, weight in weights[record.event]:
            value = _correction(window, weight, readings)
            if value is None:
                return None
            found.append(value)
        if not found:
            corrections.append(0.0)
        elif any(not readings.same(value, found[0]) for value in found):
            return None
        else:
            corrections.append(found[0])
    return corrections


def term_corrections(measured: Measured, ledger: Ledger, readings: Readings) -> list[float] | None:
    """For each of a step's gradients of single terms, the factor that makes it its part of the large batch's.

    None where a weight is not known, or where there is no gradient for a term that has one.
    """
    found: dict[tuple[Backward, str], float] = {}
    for window in ledger.closed_by(measured.step):
        for series in readings.series_of(window):
            for weight in _all_weights(window, series, readings):
                value = _correction(window, weight, readings)
                if weight.entry.fate is not Fate.LIVE or value is None:
                    return None
                found[weight.entry.backward, series.name] = value
    corrections: list[float] = []
    for own in measured.terms:
        values = [found.pop((measured.records[i].event, own.name), None) for i in own.records]
        if values[0] is None or any(value is None or not readings.same(value, values[0]) for value in values):
            return None
        corrections.append(values[0])
    return None if found else corrections


def common_multiple(measured: Measured, ledger: Ledger, readings: Readings) -> float | None:
    """The number that times a step's gradient is the reference; None if there is none, or it is 1.

    There is one where the gradient holds only this step's own micro-batches, and all of them have equal weight.
    """
    windows = ledger.closed_by(measured.step)
    weights = [weight for window in windows for weight in readings.relative_weights(window)]
    if not weights or any(e.fate is not Fate.LIVE for window in windows for e in window.entries):
        return None
    first = weights[0]
    if not first or readings.same(first, 1.0) or any(w is None or not readings.same(w, first) for w in weights):
        return None
    return 1 / first


def in_vectors(measured: Measured, corrections: Sequence[float]) -> list[tuple[int, float]] | None:
    """The corrections of a step's records as corrections of the vectors that hold them: (vector, factor).

    None where records of one part would need different factors, which the definition of a part should rule out.
    """
    found: dict[int, float] = {}
    for vector, correction in zip(measured.own_vectors, corrections, strict=True):
        if not math.isclose(found.setdefault(vector, correction), correction, rel_tol=1e-9):
            return None
    return list(found.items())


def replay_correction(measured: Measured, replay: Replay, ledger: Ledger, readings: Readings) -> list[float] | None:
    """For each vector of a replay, the factor that makes it the large batch's gradient.

    A large batch was run with the first micro-batch's factors: it needs a / c_0, and n_0 / N where the count that its
    sum is divided by is the micro-batch's own. Where a factor was computed again for the large batch, it has c instead
    of c_0.
    """
    if len(replay.vectors) > 1:
        corrections = entry_corrections(measured, ledger, readings)
        return None if corrections is None else [corrections[i] for i in replay.records]
    first = measured.records[replay.records[0]].event
    again = _changes(first, replay)
    found: list[float] = []
    for window in ledger.closed_by(measured.step):
        own = {measured.records[i].event for i in replay.records}
        for series, weight in _weights_of(first, window, readings):
            ranks = ({e.backward for e in entries} for entries in window.by_rank())
            rank = next((entries for entries in ranks if first in entries), set[Backward]())
            weights = [w for w in _all_weights(window, series, readings) if w.entry.backward in rank]
            whole = {w.entry.backward for w in weights}
            position, term = next((i, t) for i, t in enumerate(first.terms) if series.holds(first, t))
            change = again[position] if again else None
            if change == 0.0 and all(_is_left_out(series, w.entry.backward) for w in weights):
                # No micro-batch has the term: its coefficient is still 0 in a warm-up, say.
                continue
            if not weight.share or not change or whole != own or not readings.same_objective(window, series):
                return None
            if term.units is None and not readings.same(change, 1.0):
                # It is not known whether that was the count of a mean or a coefficient.
                return None
            factor = _manual_factor(weight.entry) / weight.share / change
            kind = readings.kind(window, series)
            if Reduction.NONE not in (term.reduction, kind) and term.reduction is not kind:
                # A sum that was divided by its number of units, or a mean that was multiplied by it.
                units = total_of(w.units for w in weights)
                if not weight.units or not units:
                    return None
                factor *= weight.units / units if kind is Reduction.MEAN else units / weight.units
            factor *= readings.rank_share(window, series, weight.entry)
            found.append(1.0 if readings.same(factor, 1.0) else factor)
    if any(not readings.same(value, found[0]) for value in found):
        return None
    return [found[0]] if found else None


def _changes(first: Backward, replay: Replay) -> list[float | None]:
    """Each coefficient of a replayed loss divided by the first micro-batch's; empty where their terms differ.

    0 where both coefficients are 0, so that the term adds nothing.
    """
    if not replay.coefficients:
        return [1.0] * len(first.terms)
    if len(replay.coefficients) != len(first.terms):
        return []
    own = (product_of(term.factors) for term in first.terms)
    return [_change(coefficient, before) for coefficient, before in zip(replay.coefficients, own, strict=True)]


def _is_left_out(series: Series, event: Backward) -> bool:
    """Whether the terms of ``series`` are multiplied by 0 in a loss."""
    return all(product_of(term.factors) == 0.0 for term in event.terms if series.holds(event, term))


def _change(coefficient: float | None, before: float | None) -> float | None:
    if coefficient == before == 0.0:
        return 0.0
    return coefficient / before if coefficient and before else None


def _weights_of(event: Backward, window: Window, readings: Readings) -> Sequence[tuple[Series, Weight]]:
    return [
        (series, weight)
        for series in readings.series_of(window)
        for weight in _all_weights(window, series, readings)
        if weight.entry.backward is event
    ]


def _all_weights(window: Window, series: Series, readings: Readings) -> Sequence[Weight]:
    return (*readings.weights(window, series), *readings.weights_elsewhere(window, series))


def _correction(window: Window, weight: Weight, readings: Readings) -> float | None:
    """The factor that gives an entry its intended weight; None where its weight is 0, or not known."""
    if not weight.relative:
        return None
    value = _manual_factor(weight.entry) / weight.relative / window.divisor
    return 1.0 if readings.same(value, 1.0) else value


def _manual_factor(entry: Entry) -> float:
    return math.prod(scaling.factor.value or 1.0 for scaling in entry.grad_factors)

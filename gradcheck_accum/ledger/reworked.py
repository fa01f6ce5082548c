"""What a loop does by hand to whole gradients, as far as it may make up for a wrong scale.

A change of a window's whole gradient is the objective's: the large batch's gradient would be changed in the same way.
So a gradient that was right before it is right. One that had a wrong scale before it may be right afterwards, if it was
normalized, say, or each layer's was multiplied by a number of its own; or if the script's own code makes the update,
and scales it there. No change makes up for uneven weights.

Neither is known of a change, or of a step by hand, that uses K itself: of the large batch, K is 1.

One factor for all gradients is a part of the loss, unless it changes from window to window and may be computed from
gradients that the loop read between micro-batches: a large batch has none of these.

A step by hand and the optimizer's next are two halves of one, where they run on the same data (sharpness-aware
minimization): of the large batch, both would use all.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from gradcheck_accum.ledger.events import Cause, Reason, Reduction, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import is_place, names_steps
from gradcheck_accum.ledger.weights import Readings
from gradcheck_accum.ledger.windows import Fate, Ledger, Window

READ_BETWEEN = Reason(
    "gradients are multiplied by a number that changes from step to step, perhaps computed from gradients that the "
    "loop, or a hook, read between the micro-batches of the window: compute it from .grad after the last backward",
    Cause.USED_BY_HAND,
)


def with_doubts(ledger: Ledger, readings: Readings) -> Ledger:
    """The ledger in which windows are unknown whose scale is wrong, but may be made up for by a change by hand."""
    doubts = {window: reason for window in ledger.windows if (reason := _doubt(window, readings)) is not None}
    doubts = {**_of_halves(ledger), **_of_factors(ledger, readings), **doubts}
    if not doubts:
        return ledger
    return replace(ledger, windows=tuple(replace(w, unknown=doubts[w]) if w in doubts else w for w in ledger.windows))


def _doubt(window: Window, readings: Readings) -> Reason | None:
    where = _may_be_made_up_for(window)
    if where is None or window.unknown is not None:
        return None
    if window.step is not None and window.step.rates_alone:
        # Nothing in it makes up for anything; a sum may be meant.
        return _of_sums(where) if _is_undivided_sum(window, readings) else None
    weights = readings.relative_weights(window)
    first = weights[0] if weights else None
    if first is None or any(weight is None or not readings.same(weight, first) for weight in weights):
        return None
    if readings.same(first, 1.0):
        if _uses_steps(window):
            return _of_steps(where)
        return _of_sums(where) if _is_undivided_sum(window, readings) else None
    return Reason(
        f"each micro-batch is weighted {first:.4g}x in .grad, and whether what is done by hand, at line {where.line}, "
        "makes up for it is unknown: scale the losses, or all gradients by one factor, before it",
        Cause.BY_HAND,
    )


def _of_factors(ledger: Ledger, readings: Readings) -> dict[Window, Reason]:
    """The windows whose gradients were multiplied by a number that may depend on single micro-batches.

    A number that is the same in all windows of a length, or follows their units, does not.
    """
    alike: dict[tuple[str, str, int], list[tuple[Window, float]]] = {}
    for window in ledger.windows:
        live = window.with_fate(Fate.LIVE)
        factors = [scaling.factor for scaling in live[-1].grad_factors if scaling.read_between] if live else []
        product = product_of(factors)
        if factors and product is not None and window.unknown is None:
            alike.setdefault((window.optimizer, window.store, window.micro_batches), []).append((window, product))
    found: dict[Window, Reason] = {}
    for own in alike.values():
        values = [value for _, value in own]
        totals = [value * (readings.units(window) or 1.0) for window, value in own]
        if all(any(not readings.same(n, numbers[0]) for n in numbers) for numbers in (values, totals)):
            found |= dict.fromkeys((window for window, _ in own), READ_BETWEEN)
    return found


def _uses_steps(window: Window) -> bool:
    """Whether K is among the numbers that a change, or a step, by hand uses."""
    if window.step is None or window.micro_batches == 1:
        return False
    used = window.step.used | (window.rework.origins if window.rework is not None else frozenset())
    bound = window.step.counted_by
    counted = frozenset(o for o in bound.origins if not is_place(o)) if bound is not None else frozenset[str]()
    return names_steps(used) or not used.isdisjoint(counted)


def _of_steps(where: Location) -> Reason:
    return Reason(
        f"each micro-batch is weighted 1x in .grad, and what is done by hand, at line {where.line}, uses the number of "
        "micro-batches again: whether each still counts once is unknown, so scale the losses, or all gradients by one "
        "factor, before it",
        Cause.USED_BY_HAND,
    )


def _is_undivided_sum(window: Window, readings: Readings) -> bool:
    """Whether a step by hand uses gradients of sums that nothing has divided so far."""
    if window.step is None or not window.step.by_hand or window.micro_batches == 1:
        return False
    series = readings.series_of(window)
    return any(
        readings.kind(window, own) is Reduction.SUM and not readings.is_normalised(window, own) for own in series
    )


def _of_sums(where: Location) -> Reason:
    return Reason(
        f"the losses are sums, and what the update by hand, at line {where.line}, divides their gradients by is not "
        "seen: divide the losses, or all gradients, by the window's count before it",
        Cause.USED_BY_HAND,
    )


def _of_halves(ledger: Ledger) -> dict[Window, Reason]:
    """The windows of a step by hand and of the optimizer's next, if one runs on a part of the other's data."""
    found: dict[Window, Reason] = {}
    by_store: dict[str, list[Window]] = {}
    for window in sorted(ledger.windows, key=lambda w: w.index):
        by_store.setdefault(window.store, []).append(window)
    for own in by_store.values():
        for first, second in pairwise(own):
            if first.step is None or second.step is None or not first.step.by_hand or second.step.by_hand:
                continue
            data = [{entry.backward.batch for entry in w.with_fate(Fate.LIVE)} for w in (first, second)]
            if None in data[0] | data[1] or data[0].isdisjoint(data[1]) or data[0] == data[1]:
                continue
            reason = Reason(
                f"the step at line {second.step.where.line} and the one by hand before it, at line "
                f"{first.step.where.line}, use different micro-batches of one window ({len(data[1])} and "
                f"{len(data[0])}): of a large batch, both would use all rows, so run both passes over the whole window",
                Cause.USED_BY_HAND,
            )
            found |= {w: reason for w in (first, second) if w.unknown is None}
    return found


def _may_be_made_up_for(window: Window) -> Location | None:
    """Where a wrong scale of the window's gradient may be made up for, None where it is not."""
    if window.step is not None and window.step.by_hand:
        return window.step.where
    rework = window.rework
    return rework.where if rework is not None and not (rework.only_adds and not _uses_steps(window)) else None

"""What a loop does by hand to whole gradients, as far as it may make up for a wrong scale.

A change of a window's whole gradient is the objective's: the large batch's gradient would be changed in the same way.
So a gradient that was right before it is right. One that had a wrong scale before it may be right afterwards, if it was
normalized, say, or each layer's was multiplied by a number of its own; or if the script's own code makes the update,
and scales it there. No change makes up for uneven weights.

A step by hand and the optimizer's next are two halves of one, where they run on the same data (sharpness-aware
minimization): of the large batch, both would use all.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from gradcheck_accum.ledger.events import Cause, Reason
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Readings
from gradcheck_accum.ledger.windows import Fate, Ledger, Window


def with_doubts(ledger: Ledger, readings: Readings) -> Ledger:
    """The ledger in which windows are unknown whose scale is wrong, but may be made up for by a change by hand."""
    doubts = {window: reason for window in ledger.windows if (reason := _doubt(window, readings)) is not None}
    doubts = {**_of_halves(ledger), **doubts}
    if not doubts:
        return ledger
    return replace(ledger, windows=tuple(replace(w, unknown=doubts[w]) if w in doubts else w for w in ledger.windows))


def _doubt(window: Window, readings: Readings) -> Reason | None:
    where = _may_be_made_up_for(window)
    if where is None or window.unknown is not None:
        return None
    weights = readings.relative_weights(window)
    first = weights[0] if weights else None
    if first is None or readings.same(first, 1.0):
        return None
    if any(weight is None or not readings.same(weight, first) for weight in weights):
        return None
    return Reason(
        f"each micro-batch is weighted {first:.4g}x in .grad, and whether what is done by hand, at line {where.line}, "
        "makes up for it is unknown: scale the losses, or all gradients by one factor, before it",
        Cause.BY_HAND,
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
    return window.rework.where if window.rework is not None and not window.rework.only_adds else None

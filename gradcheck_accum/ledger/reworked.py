"""What a loop does by hand to whole gradients, as far as it may make up for a wrong scale.

A change of a window's whole gradient is the objective's: the large batch's gradient would be changed in the same way.
So a gradient that was right before it is right. One that had a wrong scale before it may be right afterwards, if it was
normalized, say, or each layer's was multiplied by a number of its own. No change makes up for uneven weights.
"""

from __future__ import annotations

from dataclasses import replace

from gradcheck_accum.ledger.events import Cause, Reason
from gradcheck_accum.ledger.weights import Readings
from gradcheck_accum.ledger.windows import Ledger, Window


def with_doubts(ledger: Ledger, readings: Readings) -> Ledger:
    """The ledger in which windows are unknown whose scale is wrong, but may be made up for by a change by hand."""
    doubts = {window: reason for window in ledger.windows if (reason := _doubt(window, readings)) is not None}
    if not doubts:
        return ledger
    return replace(ledger, windows=tuple(replace(w, unknown=doubts[w]) if w in doubts else w for w in ledger.windows))


def _doubt(window: Window, readings: Readings) -> Reason | None:
    if window.rework is None or window.rework.only_adds or window.unknown is not None:
        return None
    weights = readings.relative_weights(window)
    first = weights[0] if weights else None
    if first is None or readings.same(first, 1.0):
        return None
    if any(weight is None or not readings.same(weight, first) for weight in weights):
        return None
    return Reason(
        f"each micro-batch is weighted {first:.4g}x until the gradients are modified manually, at line "
        f"{window.rework.where.line}, and whether that makes up for it is unknown: scale the losses, or all gradients "
        "by one factor, before they are modified",
        Cause.BY_HAND,
    )

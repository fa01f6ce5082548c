"""The verdict on one window: its gradient compared with its micro-batches' own, and with the large batch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradcheck_accum.engine.tolerance import CLIP_ROUNDINGS, CONFIDENCE, Bounds, sum_tolerance, unit_roundoff
from gradcheck_accum.ledger.events import Cause, product_of
from gradcheck_accum.ledger.weights import TERMS_OR_MICRO_BATCHES, Readings
from gradcheck_accum.ledger.windows import Fate, Ledger, Window
from gradcheck_accum.results.verdict import Verdict, WindowReport
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.judge.distances import (
    MeasuredWindow,
    Reference,
    ReplayDistance,
    compare,
    difference,
    is_as_presumed,
    quotient,
    reference_of,
    replay_distance,
)
from gradcheck_accum.verify.judge.judged_window import JudgedWindow, Numbers
from gradcheck_accum.verify.judge.large_batch import (
    by_large_batch,
    coupling_of_loss,
    is_one_batch,
    needs_large_batch,
)
from gradcheck_accum.verify.judge.options import Options


def judge_window(
    index: int, measured: Measured, ledger: Ledger, readings: Readings, options: Options, *, replays: bool
) -> tuple[WindowReport, JudgedWindow]:
    """The report on the ``index``-th step, ``measured``; ``replays`` says whether large batches were requested."""
    window = MeasuredWindow(measured, ledger, readings)
    shown = max(window.parts, key=lambda w: (_oddity(readings.relative_weights(w)), len(w.entries)), default=None)
    judged = _judge(window, options, replays)
    error, ratio, tolerance = judged.numbers
    report = WindowReport(
        index=index,
        optimizer=measured.step.optimizer,
        micro_batches=shown.micro_batches_over_ranks if shown is not None else 0,
        units=readings.units(shown) if shown is not None else None,
        weights=readings.relative_weights(shown) if shown is not None else (),
        grad_rel_error=error,
        grad_norm_ratio=ratio,
        tolerance=tolerance,
        param_rel_error=_update_error(window),
        drift=measured.drift,
        within=None if judged.within is None else (judged.within.low, judged.within.high),
        verdict=judged.verdict,
        reason=judged.reason,
        path=measured.step.where.path,
        line=measured.step.where.line,
        by_parameter=measured.by_parameter if _is_taken_apart(judged, measured, ledger, readings) else None,
    )
    return report, judged


def _is_taken_apart(judged: JudgedWindow, measured: Measured, ledger: Ledger, readings: Readings) -> bool:
    """Whether the error of this verdict is the one that was broken down by parameters."""
    return (
        measured.by_parameter is not None
        and judged.verdict is Verdict.DEVIATES
        and is_read_as_presumed(measured, ledger, readings)
    )


def is_read_as_presumed(measured: Measured, ledger: Ledger, readings: Readings) -> bool:
    """Whether the reference that was presumed when a step was made is the one that the whole run gives."""
    products = measured.products
    reference = None if products is None else reference_of(MeasuredWindow(measured, ledger, readings), products)
    return reference is not None and is_as_presumed(measured, reference, readings)


def _judge(window: MeasuredWindow, options: Options, replays: bool) -> JudgedWindow:
    measured = window.measured
    if measured.step.skipped:
        return JudgedWindow(Verdict.EQUIVALENT, measured.unmeasured)
    if measured.products is None:
        return JudgedWindow(Verdict.INCONCLUSIVE, measured.unmeasured)
    uncompared = next(filter(None, map(window.unknown, (Cause.UNSHARED, Cause.USED_BY_HAND, Cause.UNREAD))), "")
    if uncompared:
        return JudgedWindow(Verdict.INCONCLUSIVE, uncompared)
    if measured.is_zero and not any(measured.own_norms) and window.unknown(Cause.ZERO):
        # Whatever the weights of its micro-batches, they add up to zero.
        return JudgedWindow(Verdict.EQUIVALENT, "", (0.0, 1.0, 0.0))
    reference = reference_of(window, measured.products)
    if reference is None:
        return JudgedWindow(Verdict.INCONCLUSIVE, _why_unknown(window))
    if not math.isfinite(sum(reference.addends.contributions)) or not math.isfinite(measured.products.norm(0)):
        return JudgedWindow(Verdict.INCONCLUSIVE, "the norm of a micro-batch's gradient is not finite")
    apart = replay_distance(window, reference) if replays else None
    judged = _by_micro_batches(window, reference, apart, options)
    if judged.verdict is Verdict.DEVIATES and replays:
        return replace(judged, coupling=coupling_of_loss(window, reference, apart, options))
    if judged.verdict is not Verdict.EQUIVALENT:
        return judged
    if replays:
        return replace(by_large_batch(window, reference, apart, options, judged.numbers), within=judged.within)
    open_question = needs_large_batch(window)
    if open_question and not is_one_batch(measured):
        return JudgedWindow(Verdict.INCONCLUSIVE, f"{open_question}, and no large batch was run", judged.numbers)
    return judged


def _update_error(window: MeasuredWindow) -> float | None:
    """The error of the step's update, with the reference that its gradient is compared with.

    None where that is unknown, or not what was presumed when the step was made: the whole run may show more of how a
    loop scales than what had been seen by then. If the gradient equals the reference, so does the update, and the error
    is 0 in any case.
    """
    measured = window.measured
    update, products = measured.update, measured.products
    if update is None or products is None:
        return None
    reference = reference_of(window, products)
    if reference is None:
        return None
    if update.multiple is None:
        if is_as_presumed(measured, reference, window.readings):
            return update.error
        is_the_gradient = products.combined_norm(difference(reference.terms)) == 0
        return 0.0 if is_the_gradient and not _compare_clipped(measured) else None
    if not reference.addends.total:
        return None
    apart = products.combined_norm(difference(reference.terms, update.multiple)) / reference.addends.total
    return update.error if apart <= sum_tolerance(reference.addends, measured.dtype).worst else None


def _by_micro_batches(
    window: MeasuredWindow, reference: Reference, apart: ReplayDistance | None, options: Options
) -> JudgedWindow:
    """The verdict from the ledger reference, before and after the loop's clips."""
    measured = window.measured
    compared = compare(measured, reference.terms, reference.addends, options)
    if compared is None:
        return JudgedWindow(Verdict.INCONCLUSIVE, "the reference gradient is zero")
    error, ratio, allowed, within = compared.error, compared.ratio, compared.allowed, compared.within
    even = all(_is_even(part, window.readings) for part in window.parts)
    # Where every micro-batch has the right weight, a difference within the worst case of rounding is rounding.
    tolerance = allowed.worst if even and within.high > allowed.usual else allowed.usual
    numbers = error, ratio, tolerance
    replayed = apart.distance if apart is not None and apart.is_rounding(options) else None
    off, room = abs(ratio - 1.0), compared.ratio_room
    is_only_rounding = even and within.high <= allowed.worst
    if within.low > tolerance:
        reason = f"the gradient differs from the reference by {error:.3g} of its norm ({tolerance:.1e} is allowed)"
    elif off - room > allowed.norm and not is_only_rounding:
        reason = (
            f"the gradient's norm is {ratio:.6g}x the reference's (a relative difference of {allowed.norm:.1e} is "
            "allowed)"
        )
    elif within.high > tolerance or (off + room > allowed.norm and not is_only_rounding):
        return JudgedWindow(Verdict.INCONCLUSIVE, _within(within, tolerance), numbers, within=within)
    else:
        clipped = _compare_clipped(measured)
        if clipped is None:
            return JudgedWindow(Verdict.EQUIVALENT, "", numbers, replayed, within=_shown(measured, within))
        return JudgedWindow(clipped.verdict, clipped.reason, clipped.numbers, replayed)
    by_hand = window.unknown(Cause.BY_HAND)
    if by_hand:
        return JudgedWindow(Verdict.INCONCLUSIVE, by_hand, numbers)
    return JudgedWindow(Verdict.DEVIATES, reason, numbers, replayed, within=_shown(measured, within))


def _shown(measured: Measured, within: Bounds) -> Bounds | None:
    """The bounds of an error where only these are known."""
    return within if measured.products is not None and measured.products.sampled else None


def _within(within: Bounds, tolerance: float) -> str:
    """The reason that a sketch cannot tell whether an error is rounding."""
    return (
        f"the gradient differs from the reference by {within.low:.3g} to {within.high:.3g} of its norm with "
        f"{CONFIDENCE:.1%} confidence, and {tolerance:.1e} is allowed: the sketch cannot tell whether this is "
        "rounding, so set the tolerance (--rtol and --atol)"
    )


def _oddity(weights: Sequence[float | None]) -> float:
    return max((abs(w - 1.0) for w in weights if w is not None), default=0.0)


def _why_unknown(whole: MeasuredWindow) -> str:
    reasons = [w.unknown.words for w in whole.parts if w.unknown]
    if reasons:
        return reasons[0]
    readings = whole.readings
    weights = (w for part in whole.parts for s in readings.series_of(part) for w in readings.weights(part, s))
    if all(weight.relative for weight in weights):
        return "the terms of a loss are scaled differently, and their gradients cannot be separated"
    terms = [term for part in whole.parts for entry in part.fresh() for term in entry.backward.terms]
    if any(term.may_be_batches for term in terms):
        return TERMS_OR_MICRO_BATCHES
    if terms and all(product_of(term.factors) is not None for term in terms):
        return "it is not known which factors of a loss scale the accumulation, and which belong to the objective"
    return "the weight of a loss could not be read from its graph"


def _is_even(window: Window, readings: Readings) -> bool:
    """Whether every entry of a window is this step's own and has the right weight."""
    weights = readings.relative_weights(window)
    return all(e.fate is Fate.LIVE for e in window.entries) and all(w and readings.same(w, 1.0) for w in weights)


@dataclass(frozen=True, slots=True)
class _AfterClip:
    """The distance of the clipped gradient from the clipped reference."""

    verdict: Verdict
    reason: str
    numbers: Numbers


def _compare_clipped(measured: Measured) -> _AfterClip | None:
    """How the gradient that was used differs from the gradient itself after the clips, None where it does not.

    Called only where the gradient before the clips equals the reference, so that the reference is not needed here.
    """
    products, expected = measured.products, measured.after_clip
    if products is None or expected is None:
        return None
    norm = products.norm(expected)
    error = products.combined_norm([(1, 1.0), (expected, -1.0)])
    # A norm, a quotient and a product, each rounded in the loop and in the check.
    allowed = CLIP_ROUNDINGS * unit_roundoff(measured.dtype)
    within = quotient(products, error, norm) if norm else Bounds(error, error)
    if within.high <= allowed * (1.0 if norm else 0.0):
        return None
    distance = f"{error / norm:.3g} of its norm" if norm else f"{error:.3g}, but the reference is zero"
    numbers: Numbers = (error / norm, products.norm(1) / norm, allowed) if norm else (None, None, None)
    reason = f"after clipping, the gradient differs from the clipped reference by {distance} ({allowed:.1e} is allowed)"
    if norm and within.low <= allowed:
        return _AfterClip(Verdict.INCONCLUSIVE, f"after clipping, {_within(within, allowed)}", numbers)
    return _AfterClip(Verdict.DEVIATES, reason, numbers)

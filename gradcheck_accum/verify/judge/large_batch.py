"""The verdict from the true large batch: replayed, or by what replaces a replay; and what couples its samples."""

from __future__ import annotations

from dataclasses import replace

from gradcheck_accum.engine.independence import MAY_BE_PARTS, SAMPLE, TASK, Proof
from gradcheck_accum.engine.reference import MICRO_BATCHES
from gradcheck_accum.engine.tolerance import CONFIDENCE
from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.judge.distances import MeasuredWindow, Reference, ReplayDistance, is_coupled
from gradcheck_accum.verify.judge.judged_window import JudgedWindow, Numbers
from gradcheck_accum.verify.judge.options import Options

_STATEFUL = (
    "the model keeps state between its calls, or data of the loss is modified in place (--reference ledger compares "
    "without replaying anything)"
)

_OWN_ALONE = (
    "replaying a batch does not reproduce the gradient that it had in the loop (the model keeps state between its "
    "calls, or data of the loss is modified in place): windows of one batch are compared with their own gradient alone"
)
_DIFFERENT = "as one large batch its micro-batches have a different gradient"
_SCALED = "the terms of its loss are scaled differently"
_GROUPS = (
    "but these have different numbers of rows, over which no mean is taken, so each may be one sample whose rows "
    "belong together (a sequence, an episode, a query); --reference ledger skips this check"
)
_OF_GROUPS = f"{_DIFFERENT}, {_GROUPS}"
_ROWS_OF_GROUPS = f"the rows of its micro-batches depend on each other, {_GROUPS}"


def by_large_batch(
    window: MeasuredWindow,
    reference: Reference,
    apart: ReplayDistance | None,
    options: Options,
    numbers: Numbers,
) -> JudgedWindow:
    """The verdict on a gradient that equals the ledger reference, from the replayed large batch."""
    measured = window.measured
    open_question = needs_large_batch(window)
    if apart is None:
        is_zero = reference.addends.total == 0
        unlike = "the gradient of its micro-batches is zero, and the large batch's is not" if is_zero else _SCALED
        reason = measured.replay_problem or unlike
        return _without_large_batch(window, options, JudgedWindow(Verdict.EQUIVALENT, reason, numbers), open_question)
    one_by_one = [replay.kind == MICRO_BATCHES for replay in measured.replays]
    if apart.is_open(options):
        reason = (
            f"the two references differ by {apart.within.low:.3g} to {apart.within.high:.3g} of their norm with "
            f"{CONFIDENCE:.1%} confidence, and {apart.allowed:.1e} is allowed: the sketches cannot tell whether this "
            "is rounding, so set the tolerance (--rtol and --atol)"
        )
        return JudgedWindow(Verdict.INCONCLUSIVE, reason, numbers)
    if not apart.is_rounding(options):
        if all(one_by_one) and is_one_batch(measured) and not options.replay_alone:
            return JudgedWindow(Verdict.EQUIVALENT, "", numbers, note=_OWN_ALONE)
        if all(one_by_one):
            again = "replaying a micro-batch does not reproduce the gradient that it had in the loop"
            return JudgedWindow(Verdict.INCONCLUSIVE, f"{again}: {_STATEFUL}", numbers)
        if open_question and not is_coupled(measured, reference.terms, apart.allowed * reference.addends.total):
            return JudgedWindow(Verdict.INCONCLUSIVE, f"{open_question}, and {_DIFFERENT}", numbers)
        return _coupled(window, _coupling(measured, apart.distance, apart.allowed), numbers)
    if not any(one_by_one):
        return JudgedWindow(Verdict.EQUIVALENT, "", numbers, apart.distance)
    if measured.coupled_chunks is not None:
        reason = _coupling(measured, *measured.coupled_chunks, "a part of the large batch", "its halves'")
        return _coupled(window, reason, numbers)
    found = JudgedWindow(Verdict.EQUIVALENT, measured.replay_problem, numbers, apart.distance)
    return _without_large_batch(window, options, found, open_question)


def _coupled(window: MeasuredWindow, reason: str, numbers: Numbers) -> JudgedWindow:
    """The verdict where a large batch, or a part of it, has another gradient than what it was joined from."""
    if _may_be_groups(window):
        return JudgedWindow(Verdict.INCONCLUSIVE, _OF_GROUPS, numbers)
    if not _is_shown_by_samples(window.measured):
        return JudgedWindow(Verdict.INCONCLUSIVE, _only_joined(window.measured), numbers)
    return JudgedWindow(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason, numbers)


def _without_large_batch(
    window: MeasuredWindow, options: Options, found: JudgedWindow, open_question: str
) -> JudgedWindow:
    """The verdict where no large batch was compared, for ``found.reason``: only a proof makes it equivalent."""
    measured = window.measured
    problem, proof = f"not replayed as one large batch ({found.reason})", measured.proof
    if is_one_batch(measured) and not options.replay_alone:
        return replace(found, reason="")
    if proof is not None and proof.unit == TASK and not open_question:
        return replace(found, reason="", note=f"{found.reason}: compared with the mean over the tasks")
    if measured.coupled_modules:
        return replace(found, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=_cause(measured))
    if proof is not None and proof.coupled and _may_be_groups(window):
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=_ROWS_OF_GROUPS)
    if proof is not None and proof.coupled:
        return replace(found, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=_shown_coupling(measured, proof))
    if open_question:
        reason = f"{open_question}, and no large batch was run: {found.reason}"
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if options.replay_alone:
        reason = f"not replayed as one large batch: {found.reason}"
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if measured.shards:
        note = f"{problem}: compared only with the micro-batches' own gradients"
        return replace(found, reason="", note=note)
    if proof is None or proof.coupled is None:
        unshown = f" ({proof.reason})" if proof is not None and proof.reason else ""
        reason = (
            f"{problem}, and samples could not be shown to be independent{unshown}; --reference ledger skips this check"
        )
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if is_one_sample_each(measured):
        return replace(found, reason="", note=f"{problem}: each micro-batch is one sample")
    note = f"{problem}: instead, its micro-batches were shown to treat every sample independently"
    return replace(found, reason="", note=note)


def is_one_batch(measured: Measured) -> bool:
    """Whether the loop itself ran a window's large batch: one backward, of the losses of one batch.

    Any dependence between its samples is then part of that batch's own gradient. Two terms of one kind may be the
    losses of two batches that share one backward, unless every model ran once for them.
    """
    events = [record.event for record in measured.records]
    if len(events) != 1 or events[0].ranks != 1:
        return False
    known = measured.ran_once or events[0].of_one_batch
    return known or all(term.name == term.kind for term in events[0].terms)


def _may_be_groups(window: MeasuredWindow) -> bool:
    """Whether micro-batches may be one sample each, and no module is known to couple samples.

    A mean is over its rows. A sum is added up over micro-batches, whatever their rows are, and what is neither is one
    number of a micro-batch.
    """
    if not window.measured.may_be_groups or window.measured.coupled_modules:
        return False
    readings = window.readings
    return not any(
        readings.kind(part, series) is Reduction.MEAN
        and any(
            term.units is not None
            for entry in part.fresh()
            for term in entry.backward.terms
            if series.holds(entry.backward, term)
        )
        for part in window.parts
        for series in readings.series_of(part)
    )


def _is_shown_by_samples(measured: Measured) -> bool:
    """Whether not only a large batch shows that samples depend on each other, which may have been joined wrongly.

    A module that is known for it does, or what was computed of the rows of a micro-batch, or the replacement of samples
    within one.
    """
    if measured.coupled_modules or measured.proof is None:
        return True
    return measured.proof.coupled is True or (measured.normalises and measured.proof.reason not in MAY_BE_PARTS)


def _only_joined(measured: Measured) -> str:
    """Why a large batch with another gradient shows nothing."""
    proof = measured.proof
    if proof is not None and proof.coupled is False:
        shown = "replacing samples of a micro-batch shows that they do not depend on each other"
    else:
        why = f" ({proof.reason})" if proof is not None and proof.reason else ""
        shown = f"replacing samples of a micro-batch does not show whether they depend on each other{why}"
    return (
        f"{_DIFFERENT}, but {shown}: their data may belong together in another way; compare with the loop itself "
        "(gradcheck-accum compare), or skip this check with --reference ledger"
    )


def _shown_coupling(measured: Measured, proof: Proof) -> str:
    return (
        "replacing two parts of a micro-batch does not change its gradient by the sum of both changes: it is off by "
        f"{proof.distance:.3g} of its norm (rounding: {proof.allowed:.1e}): {_cause(measured)}"
    )


def coupling_of_loss(
    window: MeasuredWindow, reference: Reference, apart: ReplayDistance | None, options: Options
) -> str:
    """The evidence that the loss of a deviating gradient couples the samples of its batch; empty if there is none."""
    measured = window.measured
    if measured.coupled_modules or needs_large_batch(window) or _may_be_groups(window):
        return ""
    if measured.proof is not None and measured.proof.coupled:
        return _shown_coupling(measured, measured.proof)
    replayed = all(replay.kind != MICRO_BATCHES for replay in measured.replays)
    if not _is_shown_by_samples(measured):
        return ""
    if apart is None or not replayed or apart.is_rounding(options) or apart.is_open(options):
        return ""
    return _coupling(measured, apart.distance, apart.allowed)


def is_one_sample_each(measured: Measured) -> bool:
    """Whether each micro-batch of a window was shown to be one sample, and so one unit."""
    return measured.proof is not None and measured.proof.unit == SAMPLE


def needs_large_batch(whole: MeasuredWindow) -> str:
    """Why the weights of a window do not determine its large batch's gradient; empty where they do."""
    readings = whole.readings
    for window in whole.parts:
        kinds = set()
        for series in readings.series_of(window):
            if readings.is_once_a_window(window, series):
                continue
            kinds.add(readings.kind(window, series))
            terms = (t for e in window.fresh() for t in e.backward.terms if series.holds(e.backward, t))
            is_mean = readings.kind(window, series) is Reduction.MEAN and not series.gathers
            unread = is_mean and any(term.units is None for term in terms)
            if unread and not is_one_sample_each(whole.measured):
                return f"the loss contains {series.name}, whose number of units cannot be read from its graph"
        if {Reduction.MEAN, Reduction.SUM} <= kinds:
            return "the loss contains a sum and a mean, and the sum may or may not be over the samples"
        if Reduction.SUM in kinds and whole.measured.normalises:
            return (
                "the loss sums values that were normalized over the rows of their micro-batch, which may make it a mean"
            )
    return ""


def _coupling(
    measured: Measured,
    distance: float,
    allowed: float,
    whole: str = "the true large batch",
    parts: str = "the micro-batches'",
) -> str:
    return (
        f"{whole}'s gradient differs from the sum of {parts} by {distance:.3g} of its norm (rounding: {allowed:.1e}): "
        f"{_cause(measured)}"
    )


def _cause(measured: Measured) -> str:
    if measured.coupled_modules:
        cause = f"{', '.join(measured.coupled_modules)} in training mode uses statistics of its own batch"
    elif measured.normalises:
        cause = "each micro-batch normalizes data of its loss over its own rows instead of all rows of the large batch"
    else:
        cause = "the model's output for a sample depends on the other samples in its batch"
    return f"{cause}, so accumulation cannot equal the large batch"

"""The verdict on one window: its gradient beside its micro-batches' own, and beside the large batch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradcheck_accum.engine.independence import Proof
from gradcheck_accum.engine.reference import MICRO_BATCHES
from gradcheck_accum.engine.tolerance import (
    CLIP_ROUNDINGS,
    CONFIDENCE,
    Addends,
    Bounds,
    SumTolerance,
    replay_tolerance,
    sketched_cosine,
    sum_tolerance,
    unit_roundoff,
)
from gradcheck_accum.events import Cause, Reduction
from gradcheck_accum.ledger import Fate, Ledger, Window
from gradcheck_accum.verdict import Verdict, WindowReport
from gradcheck_accum.verify.measure import InnerProducts
from gradcheck_accum.verify.records import Measured
from gradcheck_accum.verify.weighing import entry_corrections, in_vectors, replay_correction
from gradcheck_accum.weights import Readings

STATEFUL = (
    "the model keeps a state between its calls, or data of the loss is changed by hand (--reference ledger compares "
    "without running anything again)"
)

Terms = list[tuple[int, float]]
"""A combination of a window's vectors: (vector, factor)."""

Numbers = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for: the loss's coefficient, and a tolerance in place of the derived one.

    ``replay_alone`` says that nothing less than a replayed large batch will do. Raises ValueError unless ``rtol`` and
    ``atol`` are given both or neither.
    """

    loss_coefficient: float | None = None
    rtol: float | None = None
    atol: float | None = None
    replay_alone: bool = False

    def __post_init__(self) -> None:
        if (self.rtol is None) != (self.atol is None):
            raise ValueError("rtol and atol are given both or neither")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is said of one window.

    ``numbers`` are |g - g_ref| / |g_ref|, |g| / |g_ref| and what is allowed of the first. ``replayed`` is how far the
    two references are apart where both were had, ``note`` what the user should know of the comparison. ``coupling``
    says of a gradient that deviates that its loss couples samples, so that units do not tell what each should weigh.
    ``within`` are the bounds of the error, where it is known within bounds alone.
    """

    verdict: Verdict
    reason: str = ""
    numbers: Numbers = (None, None, None)
    replayed: float | None = None
    note: str = ""
    coupling: str = ""
    within: Bounds | None = None


def judge_window(
    index: int, measured: Measured, ledger: Ledger, readings: Readings, options: Options, *, replays: bool
) -> tuple[WindowReport, Ruling]:
    """The report on the step ``measured``, the ``index``-th; ``replays`` says whether large batches were asked for."""
    window = _Window(measured, ledger, readings)
    shown = max(window.parts, key=lambda w: (_oddity(readings.relative_weights(w)), len(w.entries)), default=None)
    ruling = _rule(window, options, replays)
    error, ratio, tolerance = ruling.numbers
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
        within=None if ruling.within is None else (ruling.within.low, ruling.within.high),
        verdict=ruling.verdict,
        reason=ruling.reason,
        path=measured.step.where.path,
        line=measured.step.where.line,
        by_parameter=measured.by_parameter if _is_taken_apart(ruling, measured, ledger, readings) else None,
    )
    return report, ruling


def _is_taken_apart(ruling: Ruling, measured: Measured, ledger: Ledger, readings: Readings) -> bool:
    """Whether it is the error of this ruling that was taken apart by parameters."""
    return (
        measured.by_parameter is not None
        and ruling.verdict is Verdict.DEVIATES
        and is_read_as_presumed(measured, ledger, readings)
    )


def is_read_as_presumed(measured: Measured, ledger: Ledger, readings: Readings) -> bool:
    """Whether what had been seen when a step was made gave it the reference that the whole run gives it."""
    products = measured.products
    reference = None if products is None else _reference_of(_Window(measured, ledger, readings), products)
    return reference is not None and _is_as_presumed(measured, reference, readings)


@dataclass(slots=True)
class _Window:
    """A measured step with what the ledger knows of it: a window for each of its stores."""

    measured: Measured
    ledger: Ledger
    readings: Readings
    parts: tuple[Window, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = self.ledger.closed_by(self.measured.step)

    def unknown(self, cause: Cause) -> str:
        """Why a part is unknown, in words, where that is for ``cause``; else nothing."""
        return next((w.unknown.words for w in self.parts if w.unknown and w.unknown.cause is cause), "")


@dataclass(slots=True)
class _Reference:
    """The ledger reference of a window: its micro-batches' own gradients, weighed as the large batch weighs them.

    ``terms`` are the vectors that make it up, ``addends`` the micro-batches' parts.
    """

    corrections: Sequence[float]
    terms: Terms
    addends: Addends


@dataclass(frozen=True, slots=True)
class _Apart:
    """How far two references are apart, between what that lies, and how far they may be."""

    distance: float
    within: Bounds
    allowed: float

    def is_rounding(self, options: Options) -> bool:
        """Whether they are as near to each other as rounding, or the caller, allows."""
        return self.within.high <= max(self.allowed, options.rtol or 0.0)

    def is_open(self, options: Options) -> bool:
        """Whether it is not known if they are."""
        return self.within.low <= max(self.allowed, options.rtol or 0.0) < self.within.high


def _rule(window: _Window, options: Options, replays: bool) -> Ruling:
    measured = window.measured
    if measured.step.skipped:
        return Ruling(Verdict.EQUIVALENT, measured.unmeasured)
    if measured.products is None:
        return Ruling(Verdict.INCONCLUSIVE, measured.unmeasured)
    unshared = window.unknown(Cause.UNSHARED)
    if unshared:
        return Ruling(Verdict.INCONCLUSIVE, unshared)
    if measured.is_zero and not any(measured.own_norms) and window.unknown(Cause.ZERO):
        # Whatever its micro-batches weigh, they add up to nothing.
        return Ruling(Verdict.EQUIVALENT, "", (0.0, 1.0, 0.0))
    reference = _reference_of(window, measured.products)
    if reference is None:
        return Ruling(Verdict.INCONCLUSIVE, _why_unknown(window))
    if not math.isfinite(sum(reference.addends.contributions)) or not math.isfinite(measured.products.norm(0)):
        return Ruling(Verdict.INCONCLUSIVE, "a micro-batch's gradient is not finite")
    apart = _replay_distance(window, reference) if replays else None
    ruling = _beside_micro_batches(window, reference, apart, options)
    if ruling.verdict is Verdict.DEVIATES and replays:
        return replace(ruling, coupling=_coupling_of_loss(window, reference, apart, options))
    if ruling.verdict is not Verdict.EQUIVALENT:
        return ruling
    if replays:
        return replace(_beside_large_batch(window, reference, apart, options, ruling.numbers), within=ruling.within)
    open_question = _needs_large_batch(window)
    if open_question and not _is_one_batch(measured):
        return Ruling(Verdict.INCONCLUSIVE, f"{open_question}, and no large batch was run", ruling.numbers)
    return ruling


def _reference_of(window: _Window, products: InnerProducts) -> _Reference | None:
    """The ledger reference; None where a weight is not known."""
    measured = window.measured
    corrections = entry_corrections(measured, window.ledger, window.readings)
    terms = None if corrections is None else in_vectors(measured, corrections)
    if corrections is None or terms is None:
        return None
    contributions = [abs(w) * norm for w, norm in zip(corrections, measured.own_norms, strict=True) if w]
    return _Reference(corrections, terms, Addends(contributions, products.combined_norm(terms)))


def _update_error(window: _Window) -> float | None:
    """The error of the step's update, beside the reference that its gradient is compared with.

    None where that is unknown, or not what it was presumed to be when the step was made: the whole run may tell more of
    how a loop scales than what had been seen by then. The same gradient makes the same update all the same.
    """
    measured = window.measured
    update, products = measured.update, measured.products
    if update is None or products is None:
        return None
    reference = _reference_of(window, products)
    if reference is None:
        return None
    if update.multiple is None:
        if _is_as_presumed(measured, reference, window.readings):
            return update.error
        is_the_gradient = products.combined_norm(_difference(reference.terms)) == 0
        return 0.0 if is_the_gradient and not _compare_clipped(measured) else None
    if not reference.addends.total:
        return None
    apart = products.combined_norm(_difference(reference.terms, update.multiple)) / reference.addends.total
    return update.error if apart <= sum_tolerance(reference.addends, measured.dtype).worst else None


def _difference(reference: Terms, multiple: float = 1.0) -> Terms:
    """The gradient before any clip, ``multiple`` times, less the reference."""
    return [(0, multiple), *((vector, -weight) for vector, weight in reference)]


def _is_as_presumed(measured: Measured, reference: _Reference, readings: Readings) -> bool:
    """Whether a step's reference is still what it was taken for when the step was made."""
    then, now = dict(measured.presumed), dict(reference.terms)
    return then.keys() == now.keys() and all(readings.same(factor, now[vector]) for vector, factor in then.items())


def _beside_micro_batches(window: _Window, reference: _Reference, apart: _Apart | None, options: Options) -> Ruling:
    """The gradient beside the ledger reference, before and after the loop's clips."""
    measured = window.measured
    compared = _compare(measured, reference.terms, reference.addends, options)
    if compared is None:
        return Ruling(Verdict.INCONCLUSIVE, "the reference gradient is zero")
    error, ratio, allowed, within = compared.error, compared.ratio, compared.allowed, compared.within
    even = all(_is_even(part, window.readings) for part in window.parts)
    # Where every micro-batch weighs what it should, what is within the worst of rounding is rounding.
    tolerance = allowed.worst if even and within.high > allowed.usual else allowed.usual
    numbers = error, ratio, tolerance
    replayed = apart.distance if apart is not None and apart.is_rounding(options) else None
    off, room = abs(ratio - 1.0), compared.ratio_room
    is_only_rounding = even and within.high <= allowed.worst
    if within.low > tolerance:
        reason = f"the gradient differs from the reference by {error:.3g} of its norm, {tolerance:.1e} is allowed"
    elif off - room > allowed.norm and not is_only_rounding:
        reason = f"the gradient's norm is {ratio:.6g} of the reference's, and {allowed.norm:.1e} off is allowed"
    elif within.high > tolerance or (off + room > allowed.norm and not is_only_rounding):
        return Ruling(Verdict.INCONCLUSIVE, _within(within, tolerance), numbers, within=within)
    else:
        clipped = _compare_clipped(measured)
        if clipped is None:
            return Ruling(Verdict.EQUIVALENT, "", numbers, replayed, within=_shown(measured, within))
        return Ruling(clipped.verdict, clipped.reason, clipped.numbers, replayed)
    by_hand = window.unknown(Cause.BY_HAND)
    if by_hand:
        return Ruling(Verdict.INCONCLUSIVE, by_hand, numbers)
    return Ruling(Verdict.DEVIATES, reason, numbers, replayed, within=_shown(measured, within))


def _shown(measured: Measured, within: Bounds) -> Bounds | None:
    """The bounds of an error where it is known within bounds alone."""
    return within if measured.products is not None and measured.products.sampled else None


def _within(within: Bounds, tolerance: float) -> str:
    """That a sketch does not tell whether an error is rounding."""
    return (
        f"the gradient differs from the reference by {within.low:.3g} to {within.high:.3g} of its norm with "
        f"{CONFIDENCE:.1%} confidence, and {tolerance:.1e} is allowed: its sketch does not tell whether that "
        "is rounding, so state what may be (--rtol and --atol)"
    )


def _beside_large_batch(
    window: _Window,
    reference: _Reference,
    apart: _Apart | None,
    options: Options,
    numbers: Numbers,
) -> Ruling:
    """The ledger reference, which the gradient equals, beside the replayed large batch."""
    measured = window.measured
    open_question = _needs_large_batch(window)
    if apart is None:
        reason = measured.replay_problem or "the terms of its loss are scaled differently"
        return _without_large_batch(measured, options, Ruling(Verdict.EQUIVALENT, reason, numbers), open_question)
    one_by_one = [replay.kind == MICRO_BATCHES for replay in measured.replays]
    if apart.is_open(options):
        reason = (
            f"the two references are {apart.within.low:.3g} to {apart.within.high:.3g} of their norm apart with "
            f"{CONFIDENCE:.1%} confidence, and {apart.allowed:.1e} is rounding: their sketches do not tell whether "
            "it is, so state what may be (--rtol and --atol)"
        )
        return Ruling(Verdict.INCONCLUSIVE, reason, numbers)
    if not apart.is_rounding(options):
        if all(one_by_one):
            again = "run again, a micro-batch does not give the gradient that it gave in the loop"
            return Ruling(Verdict.INCONCLUSIVE, f"{again}: {STATEFUL}", numbers)
        if open_question and not _is_coupled(measured, reference.terms, apart.allowed * reference.addends.total):
            reason = f"{open_question}, and its micro-batches give another gradient as one large batch"
            return Ruling(Verdict.INCONCLUSIVE, reason, numbers)
        return Ruling(
            Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, _coupling(measured, apart.distance, apart.allowed), numbers
        )
    if not any(one_by_one):
        return Ruling(Verdict.EQUIVALENT, "", numbers, apart.distance)
    if measured.coupled_chunks is not None:
        reason = _coupling(measured, *measured.coupled_chunks, "a part of the large batch", "its halves'")
        return Ruling(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason, numbers)
    found = Ruling(Verdict.EQUIVALENT, measured.replay_problem, numbers, apart.distance)
    return _without_large_batch(measured, options, found, open_question)


def _without_large_batch(measured: Measured, options: Options, found: Ruling, open_question: str) -> Ruling:
    """The ruling where no large batch was compared, ``found.reason`` says why: only a proof makes it equivalent."""
    problem, proof = f"not replayed as one large batch ({found.reason})", measured.proof
    if _is_one_batch(measured) and not options.replay_alone:
        return replace(found, reason="")
    if proof is not None and proof.by_task and not open_question:
        return replace(found, reason="", note=f"{found.reason}: compared with the mean over the tasks")
    if measured.coupled_modules:
        return replace(found, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=_cause(measured))
    if proof is not None and proof.coupled:
        return replace(found, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=_shown_coupling(measured, proof))
    if open_question:
        reason = f"{open_question}, and no large batch was run: {found.reason}"
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if options.replay_alone:
        reason = f"not replayed as one large batch: {found.reason}"
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if measured.shards:
        note = f"{problem}: compared with each micro-batch's own gradient alone"
        return replace(found, reason="", note=note)
    if proof is None or proof.coupled is None:
        unshown = f" ({proof.reason})" if proof is not None and proof.reason else ""
        reason = (
            f"{problem}, nor could it be shown that samples do not influence each other{unshown}; --reference ledger "
            "leaves that question open"
        )
        return replace(found, verdict=Verdict.INCONCLUSIVE, reason=reason)
    note = f"{problem}: it was shown instead that its micro-batches treat every sample by itself"
    return replace(found, reason="", note=note)


def _is_one_batch(measured: Measured) -> bool:
    """Whether the loop itself ran a window's large batch: one backward, of a loss that holds no two terms of a kind.

    How its samples depend on each other is then part of that batch's own gradient. Two terms of a kind may be the
    losses of two batches that were sent back together.
    """
    events = [record.event for record in measured.records]
    return len(events) == 1 and events[0].ranks == 1 and all(term.name == term.kind for term in events[0].terms)


def _shown_coupling(measured: Measured, proof: Proof) -> str:
    return (
        "other samples in the place of two parts of a micro-batch change its gradient by another sum than each part by "
        f"itself, {proof.distance:.3g} of its norm off ({proof.allowed:.1e} is rounding): {_cause(measured)}"
    )


def _coupling_of_loss(window: _Window, reference: _Reference, apart: _Apart | None, options: Options) -> str:
    """What shows that a loss couples the samples of its batch, where the gradient is not the reference; or nothing."""
    measured = window.measured
    if measured.coupled_modules or _needs_large_batch(window):
        return ""
    if measured.proof is not None and measured.proof.coupled:
        return _shown_coupling(measured, measured.proof)
    replayed = all(replay.kind != MICRO_BATCHES for replay in measured.replays)
    if apart is None or not replayed or apart.is_rounding(options) or apart.is_open(options):
        return ""
    return _coupling(measured, apart.distance, apart.allowed)


def _needs_large_batch(whole: _Window) -> str:
    """Why the weights of a window do not tell what its large batch's gradient is; nothing where they do."""
    readings = whole.readings
    for window in whole.parts:
        kinds = set()
        for series in readings.series_of(window):
            kinds.add(readings.kind(window, series))
            terms = (t for e in window.fresh() for t in e.backward.terms if series.holds(e.backward, t))
            if readings.kind(window, series) is Reduction.MEAN and any(term.units is None for term in terms):
                return f"the loss holds {series.name}, of which its graph does not tell the units"
        if {Reduction.MEAN, Reduction.SUM} <= kinds:
            return "the loss holds a sum beside a mean, which may or may not be over the samples"
        if Reduction.SUM in kinds and whole.measured.normalises:
            return "the loss sums up what was normalised over the rows of its micro-batch, which may make it a mean"
    return ""


def _oddity(weights: Sequence[float | None]) -> float:
    return max((abs(w - 1.0) for w in weights if w is not None), default=0.0)


def _why_unknown(whole: _Window) -> str:
    reasons = [w.unknown.words for w in whole.parts if w.unknown]
    if reasons:
        return reasons[0]
    readings = whole.readings
    weights = (w for part in whole.parts for s in readings.series_of(part) for w in readings.weights(part, s))
    if all(weight.relative for weight in weights):
        return "the terms of a loss are scaled differently, and their gradients came together"
    return "the weight of a loss could not be read off its graph"


def _is_even(window: Window, readings: Readings) -> bool:
    """Whether every entry of a window is this step's own and weighs what it should."""
    weights = readings.relative_weights(window)
    return all(e.fate is Fate.LIVE for e in window.entries) and all(w and readings.same(w, 1.0) for w in weights)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The gradient before any clip beside the ledger reference: relative error, ratio of norms, what is allowed.

    The error lies ``within`` bounds, and the ratio within ``ratio_room`` of what it is.
    """

    error: float
    ratio: float
    allowed: SumTolerance
    within: Bounds
    ratio_room: float = 0.0


def _compare(measured: Measured, reference: Terms, addends: Addends, options: Options) -> _Compared | None:
    """How far the gradient before any clip is from the ledger reference.

    ``addends`` are the micro-batches' gradients as the reference weighs them. None where the reference is zero and the
    gradient is not.
    """
    products = measured.products
    if products is None:
        return None
    if addends.total == 0:
        nothing = _Compared(0.0, 1.0, SumTolerance(0.0, 0.0, 0.0), Bounds(0.0, 0.0))
        return nothing if products.norm(0) == 0 else None
    apart = products.combined_norm(_difference(reference))
    within = _quotient(products, apart, addends.total)
    allowed = sum_tolerance(addends, measured.dtype)
    if options.rtol is not None:
        given = options.rtol + (options.atol or 0.0) / addends.total
        allowed = SumTolerance(given, given, given)
    # The norm of a sum is off by what is along the sum: sketches know the angle, too, within bounds.
    room = sketched_cosine() * within.high if products.sampled else 0.0
    return _Compared(apart / addends.total, products.norm(0) / addends.total, allowed, within, room)


def _quotient(products: InnerProducts, norm: float, other: float) -> Bounds:
    """Between what ``norm`` / ``other`` lies, both of vectors that ``products`` are of."""
    above, below = products.bounds(norm), products.bounds(other)
    return Bounds(above.low / below.high, above.high / below.low)


@dataclass(frozen=True, slots=True)
class _AfterClip:
    """How far what the clips left is from what they leave of the reference."""

    verdict: Verdict
    reason: str
    numbers: Numbers


def _compare_clipped(measured: Measured) -> _AfterClip | None:
    """In what the gradient that was used is not what the clips leave of the gradient itself, None where it is that.

    Asked only where the gradient before the clips equals the reference, so that the reference is not needed here.
    """
    products, expected = measured.products, measured.after_clip
    if products is None or expected is None:
        return None
    norm = products.norm(expected)
    error = products.combined_norm([(1, 1.0), (expected, -1.0)])
    # A norm, a quotient and a product, each rounded in the loop and in the check.
    allowed = CLIP_ROUNDINGS * unit_roundoff(measured.dtype)
    within = _quotient(products, error, norm) if norm else Bounds(error, error)
    if within.high <= allowed * (1.0 if norm else 0.0):
        return None
    distance = f"{error / norm:.3g} of its norm" if norm else f"{error:.3g}, where it is zero"
    numbers: Numbers = (error / norm, products.norm(1) / norm, allowed) if norm else (None, None, None)
    reason = f"after the clip the gradient differs from the clipped reference by {distance}, {allowed:.1e} is allowed"
    if norm and within.low <= allowed:
        return _AfterClip(Verdict.INCONCLUSIVE, f"after the clip {_within(within, allowed)}", numbers)
    return _AfterClip(Verdict.DEVIATES, reason, numbers)


def _replay_distance(window: _Window, reference: _Reference) -> _Apart | None:
    """How far the replayed large batch is from the ledger reference, and how far it may be."""
    measured, addends = window.measured, reference.addends
    products = measured.products
    covered = {index for replay in measured.replays for index in replay.records}
    if products is None or any(weight and index not in covered for index, weight in enumerate(reference.corrections)):
        return None
    replayed: list[tuple[int, float]] = []
    for replay in measured.replays:
        weights = replay_correction(measured, replay, window.ledger, window.readings)
        if weights is None:
            return None
        replayed += zip(replay.vectors, weights, strict=True)
    if addends.total == 0:
        return None
    distance = products.combined_norm([*replayed, *((i, -w) for i, w in reference.terms)])
    allowed = replay_tolerance(addends, measured.dtype, measured.compute_dtype)
    return _Apart(distance / addends.total, _quotient(products, distance, addends.total), allowed)


def _is_coupled(measured: Measured, reference: Terms, allowed: float) -> bool:
    """Whether a large batch of unknown units can be told to be more than its micro-batches together.

    Where no factor makes it what they are, all of one shape, the units that a factor stands for are not the reason.
    """
    if measured.coupled_modules:
        return True
    vectors = [vector for replay in measured.replays for vector in replay.vectors]
    shapes = {tuple(leaf.shape for leaf in r.program.leaves) for r in measured.records if r.program is not None}
    several = len(vectors) > 1 or any(len(record.event.terms) > 1 for record in measured.records)
    norm = measured.products.norm(vectors[0]) if measured.products is not None else 0.0
    if several or len(shapes) > 1 or measured.products is None or not norm:
        return False
    ratio = measured.products.combined_norm(reference) / norm
    opposite = [(i, -w) for i, w in reference]
    ways = (measured.products.combined_norm([(vectors[0], way), *opposite]) for way in (ratio, -ratio))
    return min(ways) > allowed


def _coupling(
    measured: Measured,
    distance: float,
    allowed: float,
    whole: str = "the true large batch",
    parts: str = "the micro-batches'",
) -> str:
    return (
        f"{whole}'s gradient differs from {parts} together by {distance:.3g} of its norm ({allowed:.1e} is rounding): "
        f"{_cause(measured)}"
    )


def _cause(measured: Measured) -> str:
    if measured.coupled_modules:
        cause = f"{', '.join(measured.coupled_modules)} in training mode uses statistics of its own batch"
    elif measured.normalises:
        cause = "each micro-batch normalises data of its loss over its own rows, where the large batch has all of them"
    else:
        cause = "what the model computes for one sample depends on the others in its batch"
    return f"{cause}, so no accumulation can equal the large batch"

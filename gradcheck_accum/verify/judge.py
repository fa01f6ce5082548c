"""From a watched run to its verdict: each window's gradient beside its references, and the ledger's diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gradcheck_accum.diagnosis import Diagnosis, diagnose
from gradcheck_accum.engine.reference import LARGE_BATCH, MICRO_BATCHES, STREAMED
from gradcheck_accum.engine.tolerance import (
    CLIP_ROUNDINGS,
    Addends,
    SumTolerance,
    replay_tolerance,
    sum_tolerance,
    unit_roundoff,
)
from gradcheck_accum.events import Reduction
from gradcheck_accum.ledger import ZERO, Fate, Ledger, Window
from gradcheck_accum.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.ranks import UNSHARED
from gradcheck_accum.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport
from gradcheck_accum.verify.frameworks import with_remedy
from gradcheck_accum.verify.gradients import CHANGED_BY_HAND
from gradcheck_accum.verify.notes import on_chunks, on_cost, on_optimizers, on_ranks
from gradcheck_accum.verify.observer import CHANGED_ON_ITS_WAY, USED_BY_HAND, Watch
from gradcheck_accum.verify.records import Measured
from gradcheck_accum.verify.seen import Seen, ledgers_of, over_ranks
from gradcheck_accum.verify.weighing import entry_corrections, in_vectors, replay_correction
from gradcheck_accum.weights import Readings, read_weights

VISIBLE_LOSS = 0.05
"""The part of a gradient that rounding may eat before it is told as a mistake: no single rounding eats as much."""

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


def judge(watch: Watch, script: str, options: Options, *, complete: bool) -> VerifyResult:
    """The result of a watched run; ``complete`` says that the loop came to its own end."""
    return judge_ranks([Seen.of(watch, complete=complete)], script, options)


def judge_ranks(seen: Sequence[Seen], script: str, options: Options) -> VerifyResult:
    """The result of a run that one process saw, or several ranks of distributed training, in order.

    Every rank's own gradient is held against the large batch of all of them; of each step the worst is reported.
    """
    ledgers = ledgers_of(seen)
    diagnosis: list[Diagnosis] = []
    notes: list[str] = []
    replays: list[float] = []
    ranked: list[list[tuple[Measured, WindowReport]]] = []
    for rank, (own, ledger) in enumerate(zip(seen, ledgers, strict=True)):
        readings = read_weights(ledger, coefficient=options.loss_coefficient)
        diagnosis = _merged(diagnosis, diagnose(ledger, readings))
        notes += readings.notes
        own_reports: list[tuple[Measured, WindowReport]] = []
        for index, step in enumerate(over_ranks(seen, rank, ledger)):
            report, replayed, problem = _judge_window(index, step, ledger, readings, options, own.replays)
            own_reports.append((step, report))
            if replayed is not None:
                replays.append(replayed)
            if problem:
                notes.append(problem)
        ranked.append(own_reports)
    chosen = [max(same, key=_severity) for same in _by_step(ranked)]
    measured, reports = [m for m, _ in chosen], [r for _, r in chosen]
    notes = list(dict.fromkeys(notes))
    if replays:
        notes.append(f"the replay and the micro-batches' own gradients agree to {max(replays):.1e}")
    notes += on_optimizers(reports)
    notes += on_ranks(seen, ledgers)
    streamed = next((own.streamed for own in seen if own.streamed is not None), None)
    if streamed is not None:
        notes.append(on_chunks(streamed))
    if seen[0].cost is not None:
        notes.append(on_cost(seen[0].cost))
    if seen[0].lost:
        notes.append(f"the reference run could not be carried on: {seen[0].lost}")
    verdict, reason = _verdict(reports, diagnosis, ledgers, seen)
    diagnosis += _by_measurement(measured, reports)
    diagnosis = [with_remedy(d, seen[0].remarks) for d in diagnosis]
    dtype = ", ".join(sorted({_name(m.dtype) for m in measured}))
    device = ", ".join(sorted({m.device for m in measured if m.device}))
    engine = seen[0].engine
    replayed_in = "" if engine.dtype is None else f"{_name(engine.dtype)} (replay), {dtype} (ledger)"
    replayed_on = "" if engine.device is None else f"{engine.device} (replay), {device} (ledger)"
    settings = "deterministic algorithms, TF32 off"
    kind = _reference_kind(measured, bool(replays))
    reference = ReferenceReport(kind, replayed_in or dtype, replayed_on or device, settings)
    return VerifyResult(
        script, verdict, reason, device, reference, tuple(reports), tuple(diagnosis), tuple(notes), ranks=len(seen)
    )


def _by_step(ranked: Sequence[Sequence[tuple[Measured, WindowReport]]]) -> list[list[tuple[Measured, WindowReport]]]:
    """The reports of the ranks on the same step; a rank whose data ended early has none on the last."""
    longest = max(map(len, ranked), default=0)
    return [[reports[i] for reports in ranked if i < len(reports)] for i in range(longest)]


def _severity(report: tuple[Measured, WindowReport]) -> tuple[int, float]:
    order = (
        Verdict.EQUIVALENT,
        Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
        Verdict.INCONCLUSIVE,
        Verdict.DEVIATES,
    )
    return order.index(report[1].verdict), report[1].grad_rel_error or 0.0


def _merged(known: list[Diagnosis], more: Sequence[Diagnosis]) -> list[Diagnosis]:
    """What all ranks show, each mistake once."""
    found = {(d.mistake.code, d.where): d for d in known}
    for diagnosis in more:
        same = found.setdefault((diagnosis.mistake.code, diagnosis.where), diagnosis)
        windows = tuple(sorted({*same.windows, *diagnosis.windows}))
        found[same.mistake.code, same.where] = replace(same, windows=windows)
    return sorted(found.values(), key=lambda d: (d.where, d.mistake.code))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reference_kind(measured: Sequence[Measured], replayed: bool) -> str:
    kinds = {replay.kind for m in measured for replay in m.replays} if replayed else set()
    pieces = ", shard by shard" if any(m.shards > 1 for m in measured) else ""
    parts = [f"ledger (each micro-batch's own gradient, weighted as the large batch weighs it{pieces})"]
    if LARGE_BATCH in kinds:
        parts.append("replay (the window's data as one large batch)")
    if STREAMED in kinds:
        parts.append("replay (the window's data as one large batch, in chunks)")
    if MICRO_BATCHES in kinds:
        parts.append("replay (the window's micro-batches, one by one, with the loop's random numbers)")
    return " and ".join(parts)


def _judge_window(
    index: int, measured: Measured, ledger: Ledger, readings: Readings, options: Options, wants_replay: bool
) -> tuple[WindowReport, float | None, str]:
    """One window's report, how far the two references are apart, and a note if one could not be had."""
    windows = [w for w in ledger.windows if w.step is measured.step]
    shown = max(windows, key=lambda w: (_oddity(readings.relative_weights(w)), len(w.entries)), default=None)
    weights = readings.relative_weights(shown) if shown is not None else ()
    units = readings.units(shown) if shown is not None else None
    count = shown.micro_batches_over_ranks if shown is not None else 0
    where = measured.step.where

    def report(verdict: Verdict, reason: str, numbers: Numbers = (None, None, None)) -> WindowReport:
        error, ratio, tolerance = numbers
        return WindowReport(
            index=index,
            optimizer=measured.step.optimizer,
            micro_batches=count,
            units=units,
            weights=weights,
            grad_rel_error=error,
            grad_norm_ratio=ratio,
            tolerance=tolerance,
            param_rel_error=measured.update_error,
            drift=measured.drift,
            verdict=verdict,
            reason=reason,
            path=where.path,
            line=where.line,
        )

    if measured.step.skipped:
        return report(Verdict.EQUIVALENT, measured.unmeasured), None, ""
    if measured.products is None:
        return report(Verdict.INCONCLUSIVE, measured.unmeasured), None, ""
    unshared = next((w.unknown for w in windows if w.unknown.startswith(UNSHARED)), "")
    if unshared:
        return report(Verdict.INCONCLUSIVE, unshared), None, ""
    corrections = entry_corrections(measured, ledger, readings)
    terms = None if corrections is None else in_vectors(measured, corrections)
    if measured.is_zero and not any(measured.own_norms) and any(w.unknown == ZERO for w in windows):
        # Whatever its micro-batches weigh, they add up to nothing.
        return report(Verdict.EQUIVALENT, "", (0.0, 1.0, 0.0)), None, ""
    if corrections is None or terms is None:
        return report(Verdict.INCONCLUSIVE, _why_unknown(windows)), None, ""
    contributions = [abs(w) * norm for w, norm in zip(corrections, measured.own_norms, strict=True) if w]
    if not math.isfinite(sum(contributions)) or not math.isfinite(measured.products.norm(0)):
        return report(Verdict.INCONCLUSIVE, "a micro-batch's gradient is not finite"), None, ""
    addends = Addends(contributions, measured.products.combined_norm(terms))
    compared = _compare(measured, terms, addends, options)
    if compared is None:
        return report(Verdict.INCONCLUSIVE, "the reference gradient is zero"), None, ""
    error, ratio, allowed = compared
    even = all(_is_even(window, readings) for window in windows)
    # Where every micro-batch weighs what it should, what is within the worst of rounding is rounding.
    tolerance = allowed.worst if even and error > allowed.usual else allowed.usual
    wrong = error > tolerance or (abs(ratio - 1.0) > allowed.norm and not (even and error <= allowed.worst))
    numbers = error, ratio, tolerance
    apart = _replay_distance(measured, corrections, terms, addends, ledger, readings) if wants_replay else None
    agrees = apart is not None and (apart[0] <= apart[1] or (options.rtol is not None and apart[0] <= options.rtol))
    replayed = apart[0] if apart is not None and agrees else None
    by_hand = next((w.unknown for w in windows if w.unknown in (CHANGED_BY_HAND, CHANGED_ON_ITS_WAY, USED_BY_HAND)), "")
    if wrong and by_hand:
        return report(Verdict.INCONCLUSIVE, by_hand, numbers), None, ""
    if error > tolerance:
        reason = f"the gradient differs from the reference by {error:.3g} of its norm, {tolerance:.1e} is allowed"
        return report(Verdict.DEVIATES, reason, numbers), replayed, ""
    if wrong:
        reason = f"the gradient's norm is {ratio:.6g} of the reference's, and {allowed.norm:.1e} off is allowed"
        return report(Verdict.DEVIATES, reason, numbers), replayed, ""
    clipped = _compare_clipped(measured)
    if clipped:
        return report(Verdict.DEVIATES, clipped, numbers), replayed, ""
    open_question = _needs_large_batch(windows, readings)
    undecided = f"{open_question}, and no large batch was run"
    if not wants_replay:
        if open_question:
            return report(Verdict.INCONCLUSIVE, undecided, numbers), None, ""
        return report(Verdict.EQUIVALENT, "", numbers), None, ""
    if apart is None:
        reason = measured.replay_problem or "the terms of its loss are scaled differently"
        if open_question:
            return report(Verdict.INCONCLUSIVE, f"{undecided}: {reason}", numbers), None, ""
        if measured.coupled_modules:
            return report(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, _cause(measured), numbers), None, ""
        if options.replay_alone:
            return report(Verdict.INCONCLUSIVE, f"not replayed as one large batch: {reason}", numbers), None, ""
        note = f"not replayed as one large batch ({reason}): compared with each micro-batch's own gradient alone"
        return report(Verdict.EQUIVALENT, "", numbers), None, note
    if not agrees and all(replay.kind == MICRO_BATCHES for replay in measured.replays):
        reason = "run again, a micro-batch does not give the gradient that it gave in the loop: the model keeps a state"
        return report(Verdict.INCONCLUSIVE, reason, numbers), None, ""
    if not agrees and open_question and not _is_coupled(measured, terms, apart[1] * addends.total):
        reason = f"{open_question}, and its micro-batches give another gradient as one large batch"
        return report(Verdict.INCONCLUSIVE, reason, numbers), None, ""
    if not agrees:
        return report(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, _coupling(measured, *apart), numbers), None, ""
    if all(replay.kind != MICRO_BATCHES for replay in measured.replays):
        return report(Verdict.EQUIVALENT, "", numbers), replayed, ""
    if measured.coupled_chunks is not None:
        reason = _coupling(measured, *measured.coupled_chunks, "a part of the large batch", "its halves'")
        return report(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason, numbers), None, ""
    if measured.coupled_modules:
        return report(Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, f"{_cause(measured)}", numbers), None, ""
    if open_question:
        return report(Verdict.INCONCLUSIVE, f"{undecided}: {measured.replay_problem}", numbers), replayed, ""
    note = (
        f"not replayed as one large batch ({measured.replay_problem}): each micro-batch was run again by itself, which "
        "does not show whether the samples of a batch influence each other"
    )
    return report(Verdict.EQUIVALENT, "", numbers), replayed, note


def _by_measurement(measured: Sequence[Measured], reports: Sequence[WindowReport]) -> list[Diagnosis]:
    """GA901 and GA902, which no ledger shows: the first window of each kind, with the numbers of all."""
    found: dict[tuple[str, Location], Diagnosis] = {}
    for m, report in zip(measured, reports, strict=True):
        error = report.grad_rel_error or 0.0
        if report.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION:
            code, where, message = "GA901", m.records[-1].event.where, report.reason
            remedy = "nothing, if that is meant; or a layer that looks at each sample alone (LayerNorm, GroupNorm)"
        elif report.verdict is Verdict.EQUIVALENT and unit_roundoff(m.dtype) > 1e-4 and error > VISIBLE_LOSS:
            code, where = "GA902", m.step.where
            message = (
                f"rounding in {_name(m.dtype)} ate {error:.1%} of the gradient while {len(m.records)} were added up"
            )
            remedy = "keep the gradients in float32, or accumulate fewer micro-batches"
        else:
            continue
        known = found.setdefault((code, where), Diagnosis(CATALOGUE[code], where, message, remedy))
        found[code, where] = replace(known, windows=(*known.windows, report.index))
    return list(found.values())


def _needs_large_batch(windows: Sequence[Window], readings: Readings) -> str:
    """Why the weights of some windows do not tell what their large batch's gradient is; nothing where they do."""
    for window in windows:
        kinds = set()
        for series in readings.series_of(window):
            kinds.add(readings.kind(window, series))
            terms = (t for e in window.fresh() for t in e.backward.terms if series.holds(e.backward, t))
            if readings.kind(window, series) is Reduction.MEAN and any(term.units is None for term in terms):
                return f"the loss holds {series.name}, of which its graph does not tell the units"
        if {Reduction.MEAN, Reduction.SUM} <= kinds:
            return "the loss holds a sum beside a mean, which may or may not be over the samples"
    return ""


def _oddity(weights: Sequence[float | None]) -> float:
    return max((abs(w - 1.0) for w in weights if w is not None), default=0.0)


def _why_unknown(windows: Sequence[Window]) -> str:
    reasons = [w.unknown for w in windows if w.unknown]
    return reasons[0] if reasons else "the weight of a loss could not be read off its graph"


def _is_even(window: Window, readings: Readings) -> bool:
    """Whether every entry of a window is this step's own and weighs what it should."""
    weights = readings.relative_weights(window)
    return all(e.fate is Fate.LIVE for e in window.entries) and all(w and readings.same(w, 1.0) for w in weights)


def _compare(
    measured: Measured, reference: Terms, addends: Addends, options: Options
) -> tuple[float, float, SumTolerance] | None:
    """The gradient before any clip beside the ledger reference: relative error, ratio of norms, what is allowed.

    ``addends`` are the micro-batches' gradients as the reference weighs them. None where the reference is zero and the
    gradient is not.
    """
    products = measured.products
    if products is None:
        return None
    if addends.total == 0:
        return (0.0, 1.0, SumTolerance(0.0, 0.0, 0.0)) if products.norm(0) == 0 else None
    error = products.combined_norm([(0, 1.0), *((i, -w) for i, w in reference)]) / addends.total
    allowed = sum_tolerance(addends, measured.dtype)
    if options.rtol is not None:
        given = options.rtol + (options.atol or 0.0) / addends.total
        allowed = SumTolerance(given, given, given)
    return error, products.norm(0) / addends.total, allowed


def _compare_clipped(measured: Measured) -> str:
    """Why what the clips left is not what they leave of the gradient itself, or nothing where it is.

    Asked only where the gradient before the clips equals the reference, so that the reference is not needed here.
    """
    products, expected = measured.products, measured.after_clip
    if products is None or expected is None:
        return ""
    norm = products.norm(expected)
    error = products.combined_norm([(1, 1.0), (expected, -1.0)])
    # A norm, a quotient and a product, each rounded in the loop and in the check.
    allowed = CLIP_ROUNDINGS * unit_roundoff(measured.dtype)
    if error <= allowed * norm:
        return ""
    distance = f"{error / norm:.3g} of its norm" if norm else f"{error:.3g}, where it is zero"
    return f"after the clip the gradient differs from the clipped reference by {distance}, {allowed:.1e} is allowed"


def _replay_distance(
    measured: Measured,
    corrections: Sequence[float],
    reference: Terms,
    addends: Addends,
    ledger: Ledger,
    readings: Readings,
) -> tuple[float, float] | None:
    """How far the replayed large batch is from the ledger reference, and how far it may be."""
    products = measured.products
    covered = {index for replay in measured.replays for index in replay.records}
    if products is None or any(weight and index not in covered for index, weight in enumerate(corrections)):
        return None
    replayed: list[tuple[int, float]] = []
    for replay in measured.replays:
        weights = replay_correction(measured, replay, ledger, readings)
        if weights is None:
            return None
        replayed += zip(replay.vectors, weights, strict=True)
    if addends.total == 0:
        return None
    distance = products.combined_norm([*replayed, *((i, -w) for i, w in reference)]) / addends.total
    return distance, replay_tolerance(addends, measured.dtype, measured.compute_dtype)


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
    cause = (
        f"{', '.join(measured.coupled_modules)} in training mode uses statistics of its own batch"
        if measured.coupled_modules
        else "what the model computes for one sample depends on the others in its batch"
    )
    return f"{cause}, so no accumulation can equal the large batch"


def _verdict(
    reports: Sequence[WindowReport], diagnosis: Sequence[Diagnosis], ledgers: Sequence[Ledger], seen: Sequence[Seen]
) -> tuple[Verdict, str]:
    if not reports:
        if any(own.trace.events for own in seen):
            return Verdict.INCONCLUSIVE, "gradients were made, but optimizer.step() was never called"
        if any(own.stray_backwards for own in seen):
            return Verdict.INCONCLUSIVE, "backward() was seen, but it filled the gradients of no optimizer's parameters"
        return Verdict.INCONCLUSIVE, "no backward() and no optimizer.step() was seen"
    wrong = [r for r in reports if r.verdict is Verdict.DEVIATES]
    if wrong:
        unexplained = "" if diagnosis else "; the cause was not recognised"
        reason = f"{len(wrong)} of {len(reports)} steps got another gradient than the large batch's{unexplained}"
        return Verdict.DEVIATES, reason
    if any(d.mistake.code == "GA301" for d in diagnosis):
        abandoned = [window for ledger in ledgers for window in ledger.abandoned]
        lost = sum(w.micro_batches for w in abandoned if any(e.fate is not Fate.STALE for e in w.entries))
        return Verdict.DEVIATES, f"{lost} micro-batches reached no step"
    unchecked = [r for r in reports if r.verdict is Verdict.INCONCLUSIVE]
    if unchecked and any(d.mistake.moves_gradient for d in diagnosis):
        return Verdict.DEVIATES, "the ledger shows a wrong weight, though the gradient could not be compared"
    coupled = [r for r in reports if r.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION]
    if coupled:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, coupled[0].reason
    if unchecked:
        return Verdict.INCONCLUSIVE, f"{len(unchecked)} of {len(reports)} steps: {unchecked[0].reason}"
    taken = sum(report.grad_rel_error is not None for report in reports)
    if not taken:
        return Verdict.INCONCLUSIVE, f"not one step was taken: {reports[0].reason}"
    skipped = f"; the grad scaler skipped {len(reports) - taken}" if taken < len(reports) else ""
    return Verdict.EQUIVALENT, f"all {taken} steps got the large batch's gradient{skipped}"

"""The verdict on a watched run: each window's gradient compared with its references, and the ledger's diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradcheck_accum.diagnosis import Diagnosis, diagnose
from gradcheck_accum.diagnosis.account import plural
from gradcheck_accum.engine.cost import WindowCost
from gradcheck_accum.engine.reference import LARGE_BATCH, MICRO_BATCHES, STREAMED
from gradcheck_accum.engine.tolerance import CONFIDENCE, unit_roundoff
from gradcheck_accum.ledger.events import Backward, Step
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import joined
from gradcheck_accum.ledger.reworked import with_doubts
from gradcheck_accum.ledger.weights import Readings, read_weights
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import (
    CostReport,
    PassCost,
    ReferenceReport,
    Verdict,
    VerifyResult,
    WindowReport,
    verdict_on,
)
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.judge.advice import to_decide
from gradcheck_accum.verify.judge.notes import (
    is_sampled,
    on_accumulation,
    on_chunks,
    on_cost,
    on_discarded,
    on_given_up,
    on_optimizers,
    on_proof,
    on_ranks,
    on_reworked,
    on_samples,
    on_sketches,
    on_skipped,
    on_terms,
    on_updates,
)
from gradcheck_accum.verify.judge.observed_run import ObservedRun, over_ranks, up_to_the_stop
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.judge.window import is_read_as_presumed, judge_window
from gradcheck_accum.verify.watching.framework_remedies import in_place_of, with_remedy
from gradcheck_accum.verify.watching.manual_updates import OwnSteps
from gradcheck_accum.verify.watching.observer import Observer
from gradcheck_accum.verify.watching.subprocesses import unwatched

_ROUNDING = "GA902"
_OF_WEIGHTS = ("GA101", "GA102", "GA103", "GA104")
"""Mistakes that the weights of a window's micro-batches show."""
STRAY = (
    "backward() ran, but produced no gradients for any optimizer's parameters: only steps of a torch.optim.Optimizer "
    "are observed, not those of other libraries' optimizers; train with one of PyTorch's to compare"
)
UNSEEN_STEPS = (
    "the weights were changed, but not by a step() that PyTorch reports: only steps of a torch.optim.Optimizer whose "
    "__init__() calls super().__init__() are observed; train with one of these to compare"
)
RETURNED = (
    "torch.autograd.grad() or torch.func.grad() returned gradients at line {line}, and no step() of a "
    "torch.optim.Optimizer used any: to compare, assign them to .grad of an optimizer's parameters, and call its step()"
)

SEVERAL_THREADS = (
    "several threads train at the same time, and which of them changed which gradients is unknown: verify a run that "
    "trains in one thread"
)

VISIBLE_LOSS = 0.05
"""The part of a gradient that rounding may lose before that is reported: no single rounding loses as much."""


def judge(observer: Observer, script: str, options: Options, *, complete: bool) -> VerifyResult:
    """The result of a watched run; ``complete`` means that the loop ended by itself."""
    return judge_ranks([ObservedRun.of(observer, complete=complete)], script, options)


def judge_ranks(
    seen: Sequence[ObservedRun], script: str, options: Options, alone: Sequence[Ledger] | None = None
) -> VerifyResult:
    """The result of a run that was observed by one process, or by several ranks of distributed training, in order.

    Every rank's own gradient is compared with the large batch of all ranks; for each step the worst is reported.
    ``alone`` are the ledgers of the ranks, not joined, where they are known already.
    """
    if any(own.threads_overlap for own in seen):
        unknown = ReferenceReport("none", "", "")
        return VerifyResult(script, Verdict.INCONCLUSIVE, SEVERAL_THREADS, "", unknown, ranks=len(seen))
    seen = up_to_the_stop(seen)
    ledgers: list[Ledger] = []
    read: list[Readings] = []
    for ledger in joined(alone or [own.ledger() for own in seen]):
        readings = read_weights(ledger, coefficient=options.loss_coefficient)
        doubted = with_doubts(ledger, readings)
        ledgers.append(doubted)
        read.append(readings if doubted is ledger else read_weights(doubted, coefficient=options.loss_coefficient))
    diagnosis: list[Diagnosis] = []
    notes: list[str] = []
    replays: list[float] = []
    scale_is_open = False
    ranked: list[list[tuple[Measured, WindowReport]]] = []
    coupled: dict[Location, str] = {}
    of_groups = _of_groups(seen)
    for rank, (own, ledger, readings) in enumerate(zip(seen, ledgers, read, strict=True)):
        diagnosis = _merged(diagnosis, _shown_by_gradients(diagnose(ledger, readings), ledger, own))
        notes += on_terms(readings.notes)
        scale_is_open = scale_is_open or readings.scale_is_open
        own_reports: list[tuple[Measured, WindowReport]] = []
        drift_holds = True
        for index, watched in enumerate(over_ranks(seen, rank, ledger)):
            is_grouped = any(record.event.where in of_groups for record in watched.records)
            step = replace(watched, may_be_groups=True) if is_grouped else watched
            report, judged = judge_window(index, step, ledger, readings, options, replays=own.replays)
            if step.drift is not None:
                # A reference run carries an error along once it has made one.
                drift_holds = drift_holds and is_read_as_presumed(step, ledger, readings)
                report = report if drift_holds else replace(report, drift=None)
            own_reports.append((step, report))
            if judged.coupling:
                coupled.update((record.event.where, judged.coupling) for record in step.records)
            if judged.replayed is not None:
                replays.append(judged.replayed)
            if judged.note:
                notes.append(judged.note)
        ranked.append(own_reports)
    # In a loss that couples samples, units do not determine a sample's weight, so dividing by them is no fix.
    diagnosis = [d for d in diagnosis if d.mistake.code != "GA104" or d.where not in coupled]
    if coupled and not any(d.mistake.changes_gradient for d in diagnosis):
        ranked = [[(m, _as_coupled(m, report, coupled)) for m, report in own] for own in ranked]
    # What was watched only for the next window has no verdict.
    chosen = [max(same, key=_severity) for same in _by_step(ranked) if not same[0][0].step.unread]
    measured, reports = [m for m, _ in chosen], [r for _, r in chosen]
    notes = list(dict.fromkeys(notes))
    if replays:
        notes.append(f"the replay and the micro-batches' own gradients agree up to {max(replays):.1e}")
    notes += on_accumulation(reports, diagnosis)
    notes += on_discarded(ledgers)
    notes += on_skipped(ledgers)
    notes += on_given_up(seen)
    notes += on_reworked(ledgers)
    equivalent = [m.proof for m, r in chosen if r.verdict is Verdict.EQUIVALENT]
    proofs = [proof for proof in equivalent if proof is not None and not proof.unit]
    if proofs:
        notes.append(on_proof(proofs))
    notes += on_optimizers(reports)
    notes += on_updates(measured, reports)
    notes += on_samples(measured)
    mode = next((own.mode for own in seen if own.mode is not None), None)
    notes += on_sketches(measured, mode)
    notes += on_ranks(seen, ledgers)
    streamed = next((own.streamed for own in seen if own.streamed is not None), None)
    if streamed is not None:
        notes.append(on_chunks(streamed))
    details = [on_cost(seen[0].cost)] if seen[0].cost is not None else []
    notes += details
    if seen[0].lost:
        notes.append(f"the reference run could not be continued: {seen[0].lost}")
    verdict, reason = _verdict(reports, diagnosis, ledgers, seen)
    gradients_seen = any(map(_has_backwards, seen))
    gradients_astray = any(own.stray_backwards or own.returned_at is not None for own in seen)
    advice = to_decide(
        verdict,
        reports,
        gradients_seen=gradients_seen,
        gradients_astray=gradients_astray,
        scale_is_open=scale_is_open,
    )
    measurements = _by_measurement(measured, reports)
    diagnosis += measurements
    if verdict is Verdict.EQUIVALENT:
        reason += _absorbed(measured, reports, measurements)
    diagnosis = [with_remedy(d, seen[0].remarks) for d in diagnosis]
    dtype = ", ".join(sorted({_name(m.dtype) for m in measured}))
    device = ", ".join(sorted({m.device for m in measured if m.device}))
    engine = seen[0].engine
    replayed_in = "" if engine.dtype is None else f"{_name(engine.dtype)} (replay), {dtype} (ledger)"
    replayed_on = "" if engine.device is None else f"{engine.device} (replay), {device} (ledger)"
    settings = "deterministic algorithms, TF32 off"
    kind = _reference_kind(measured, bool(replays))
    confidence = CONFIDENCE if any(is_sampled(m) for m in measured) else None
    name, why = (mode.name, mode.why) if mode is not None else ("", "")
    reference = ReferenceReport(kind, replayed_in or dtype, replayed_on or device, settings, name, why, confidence)
    return VerifyResult(
        script,
        verdict,
        reason,
        device,
        reference,
        tuple(reports),
        tuple(diagnosis),
        tuple(notes),
        ranks=len(seen),
        details=tuple(details),
        help=advice,
        cost=_cost(seen[0].cost),
    )


def _shown_by_gradients(found: Sequence[Diagnosis], ledger: Ledger, own: ObservedRun) -> list[Diagnosis]:
    """The mistakes that were not found in weights of windows alone whose gradient is zero.

    What the loop multiplied such a gradient by does not show, and is right whatever it was.
    """
    zero = {measured.step for measured in own.measured if measured.is_zero}
    others = {window.index for window in ledger.windows if window.step not in zero} if zero else set[int]()
    return [
        d
        for d in found
        if not zero or d.mistake.code not in _OF_WEIGHTS or not d.windows or not others.isdisjoint(d.windows)
    ]


def _cost(cost: WindowCost | None) -> CostReport | None:
    if cost is None:
        return None
    one, large = cost.accumulated, cost.large_batch
    return CostReport(cost.micro_batches, PassCost(one.kept, one.seconds), PassCost(large.kept, large.seconds))


def _by_step(ranked: Sequence[Sequence[tuple[Measured, WindowReport]]]) -> list[list[tuple[Measured, WindowReport]]]:
    """The reports of the ranks on the same step; a rank whose data ended early has none on the last."""
    longest = max(map(len, ranked), default=0)
    return [[reports[i] for reports in ranked if i < len(reports)] for i in range(longest)]


def _of_groups(seen: Sequence[ObservedRun]) -> set[Location]:
    """The places whose micro-batches may be one sample each: what some windows of a run show holds for all of them."""
    measured = (step for own in seen for step in own.measured if step.may_be_groups)
    return {record.event.where for step in measured for record in step.records}


def _as_coupled(measured: Measured, report: WindowReport, coupled: dict[Location, str]) -> WindowReport:
    """The report on a window whose gradient deviates only because its loss couples samples."""
    reason = next((coupled[r.event.where] for r in measured.records if r.event.where in coupled), "")
    if report.verdict is not Verdict.DEVIATES or not reason:
        return report
    return replace(report, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=reason)


def _severity(report: tuple[Measured, WindowReport]) -> tuple[int, float]:
    order = (
        Verdict.EQUIVALENT,
        Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
        Verdict.INCONCLUSIVE,
        Verdict.DEVIATES,
    )
    return order.index(report[1].verdict), report[1].grad_rel_error or 0.0


def _merged(known: list[Diagnosis], more: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses of all ranks, each mistake once."""
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
    pieces += ", by sketches" if any(m.sketched for m in measured) else ""
    parts = [f"ledger (each micro-batch's own gradient, weighted as in the large batch{pieces})"]
    if LARGE_BATCH in kinds:
        parts.append("replay (the window's data as one large batch)")
    if STREAMED in kinds:
        parts.append("replay (the window's data as one large batch, in chunks)")
    if MICRO_BATCHES in kinds:
        parts.append("replay (the window's micro-batches, one by one, with the loop's random numbers)")
    return " and ".join(parts)


def _by_measurement(measured: Sequence[Measured], reports: Sequence[WindowReport]) -> list[Diagnosis]:
    """GA901 and GA902, which no ledger shows, with the message of the first window, or of that which lost the most."""
    worst = 0.0
    found: dict[tuple[str, Location], Diagnosis] = {}
    shown: dict[tuple[str, Location], list[int]] = {}
    for m, report in zip(measured, reports, strict=True):
        error = report.grad_rel_error or 0.0
        if report.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION:
            code, where, message = "GA901", m.records[-1].event.where, report.reason
            remedy = "nothing, if this is intended; otherwise use " + (
                "normalize the data of the whole window before it is split"
                if m.normalises and not m.coupled_modules
                else "a layer that looks at each sample alone (LayerNorm, GroupNorm)"
            )
        elif report.verdict is Verdict.EQUIVALENT and unit_roundoff(m.dtype) > 1e-4 and error > VISIBLE_LOSS:
            code, where = _ROUNDING, m.step.where
            message = (
                f"rounding in {_name(m.dtype)} lost {error:.1%} of the gradient over {len(m.records)} micro-batches"
            )
            remedy = "keep the gradients in float32, or accumulate fewer micro-batches"
        else:
            continue
        known = found.setdefault((code, where), Diagnosis(CATALOGUE[code], where, message, remedy))
        if code == _ROUNDING and error >= worst:
            worst, found[code, where] = error, replace(known, said=message)
        shown.setdefault((code, where), []).append(report.index)
    return [replace(diagnosis, windows=tuple(shown[key])) for key, diagnosis in found.items()]


def _absorbed(measured: Sequence[Measured], reports: Sequence[WindowReport], diagnosis: Sequence[Diagnosis]) -> str:
    """What rounding lost of gradients that equal the large batch's otherwise, in words."""
    windows = {index for d in diagnosis if d.mistake.code == _ROUNDING for index in d.windows}
    absorbed = [
        (r.grad_rel_error or 0.0, _name(m.dtype)) for m, r in zip(measured, reports, strict=True) if r.index in windows
    ]
    if not absorbed:
        return ""
    most, dtype = max(absorbed)
    return f", except for rounding in {dtype}, which lost up to {most:.0%} of it"


def _verdict(
    reports: Sequence[WindowReport],
    diagnosis: Sequence[Diagnosis],
    ledgers: Sequence[Ledger],
    seen: Sequence[ObservedRun],
) -> tuple[Verdict, str]:
    if not reports:
        if any(own.moved_unseen for own in seen):
            return Verdict.INCONCLUSIVE, UNSEEN_STEPS
        if any(map(_has_backwards, seen)):
            return Verdict.INCONCLUSIVE, "gradients were computed, but optimizer.step() was never called"
        if any(own.stray_backwards for own in seen):
            return Verdict.INCONCLUSIVE, next(filter(None, (_own_step(own.own_steps) for own in seen)), STRAY)
        returned = next((own.returned_at for own in seen if own.returned_at is not None), None)
        if returned is not None and not any(own.children for own in seen):
            why_not = next((own.why_not_followed for own in seen if own.why_not_followed), "")
            return Verdict.INCONCLUSIVE, why_not or RETURNED.format(line=returned.line)
        children = unwatched(sum(own.children for own in seen))
        return Verdict.INCONCLUSIVE, f"no backward() and no optimizer.step() was observed{children}"
    lost = _lost(diagnosis, ledgers)
    verdict, reason = verdict_on(
        reports,
        len(reports),
        lost=f"{plural(lost)} never reached a step{_besides_rejected(ledgers)}" if lost else "",
        diagnosed=any(d.mistake.changes_gradient for d in diagnosis),
    )
    if verdict is Verdict.DEVIATES and not diagnosis:
        reason += "; the cause was not recognized"
    if verdict is Verdict.EQUIVALENT and all(own.trace.complete for own in seen):
        doubt = _unless_never_stepped(ledgers) or _unless_refused_in_doubt(ledgers) or _unless_given_up_by_zip(seen)
        return doubt or (verdict, reason)
    return verdict, reason


def _has_backwards(run: ObservedRun) -> bool:
    return any(isinstance(event, Backward) for event in run.trace.events)


def _unless_refused_in_doubt(ledgers: Sequence[Ledger]) -> tuple[Verdict, str] | None:
    """Inconclusive, if it is unknown whether gradients that were cleared without a step are a missing step."""
    for window in (window for ledger in ledgers for window in ledger.rejected):
        cleared = window.entries[-1].wiped_by
        if window.unknown is not None and cleared is not None:
            at = "" if cleared.seen_later else f" (cleared at line {cleared.where.line})"
            return Verdict.INCONCLUSIVE, f"{window.unknown.words}{at}"
    return None


def _unless_never_stepped(ledgers: Sequence[Ledger]) -> tuple[Verdict, str] | None:
    """Inconclusive, if the run ended before the only optimizers that some micro-batches were for had stepped."""
    for ledger in ledgers:
        stepped = {store for event in ledger.trace.events if isinstance(event, Step) for store in event.stores}
        backwards = [event for event in ledger.trace.events if isinstance(event, Backward)]
        idle = [event for event in backwards if event.stores and stepped.isdisjoint(event.stores)]
        if idle:
            names = ", ".join(sorted(frozenset[str]().union(*(event.stores for event in idle))))
            return Verdict.INCONCLUSIVE, (
                f"{plural(len({event.micro_batch for event in idle}))} (line {idle[0].where.line}) gave gradients to "
                f"{names} alone, whose step() was never called: run the loop on more data, until it steps"
            )
    return None


def _unless_given_up_by_zip(seen: Sequence[ObservedRun]) -> tuple[Verdict, str] | None:
    """Inconclusive, if ``zip`` took batches that it gave to no one: no statement of the loop leaves them out."""
    found = [own.given_up for own in seen if own.given_up is not None and own.given_up.by_zip]
    if not found:
        return None
    batches = sum(own.batches for own in found)
    taken, them = ("1 batch", "it") if batches == 1 else (f"{batches} batches", "them")
    return Verdict.INCONCLUSIVE, (
        f"zip() at line {found[0].at.line} took {taken} from a data loader and gave {them} up, because too few were "
        f"left for a whole window: no backward ran on {them}, and whether that is meant is unknown (train on a shorter "
        f"window, or leave {them} out by a condition)"
    )


def _own_step(steps: OwnSteps) -> str:
    """What was seen of a step that is not made by a PyTorch optimizer, and what to do; empty where there was none."""
    if steps.at is None or steps.backward_at is None:
        return ""
    changed = f"changed by {steps.at.through}, at" if steps.at.through else "changed by hand, at"
    return (
        f"backward() ran at line {steps.backward_at.line}, and the weights were {changed} {_place(steps)}: only "
        "gradients passed to the step() of a torch.optim.Optimizer are compared, and none made this update; to "
        "compare, "
        f"{in_place_of(steps.at.through)}"
    )


def _place(steps: OwnSteps) -> str:
    """Where the weights were changed: only the line if it is in the file of the backward."""
    at, backward = steps.at, steps.backward_at
    if at is None or backward is None or at.path != backward.path:
        return str(at)
    return f"line {at.line}"


def _lost(diagnosis: Sequence[Diagnosis], ledgers: Sequence[Ledger]) -> int:
    """The number of micro-batches that reached no step though they were meant for one."""
    if not any(d.mistake.code == "GA301" for d in diagnosis):
        return 0
    return sum(
        len({entry.backward.micro_batch for window in ledger.abandoned for entry in window.fresh()})
        for ledger in ledgers
    )


def _besides_rejected(ledgers: Sequence[Ledger]) -> str:
    """Words on others that were discarded on purpose, if any."""
    discarded = any(ledger.rejected or ledger.restarted for ledger in ledgers)
    return ", in addition to those that the script discarded on purpose" if discarded else ""

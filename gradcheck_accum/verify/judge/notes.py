"""The notes of a report: on ranks, optimizers, the chunks of a large batch, and the cost of accumulation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.diagnosis.account import plural
from gradcheck_accum.engine.cost import WindowCost
from gradcheck_accum.engine.independence import Proof
from gradcheck_accum.engine.streaming import Streamed
from gradcheck_accum.engine.tolerance import CONFIDENCE, sketched_norm
from gradcheck_accum.ledger.events import Backward
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import averages
from gradcheck_accum.ledger.windows import Ledger, Window
from gradcheck_accum.results.verdict import Verdict, WindowReport
from gradcheck_accum.verify.book.holding import Mode
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.judge.observed_run import ObservedRun
from gradcheck_accum.wording import amount_of_memory

_NUMBER = re.compile(r" #(\d+)\b")
"""Distinguishes terms of one kind by name: the second mean squared error of a loss is ``MseLoss #2``."""


def on_terms(notes: Iterable[str]) -> list[str]:
    """Notes on the terms of losses, with those that differ only in the number of a term merged."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        several = len(_NUMBER.findall(note)) > 1
        own = alike.setdefault(note if several else _NUMBER.sub("", note), [])
        if note not in own:
            own.append(note)
    return [_of_all(own) for own in alike.values()]


def _of_all(notes: Sequence[str]) -> str:
    """One note for several that differ only in the number of a term."""
    first, *others = notes
    found = [match for note in others if (match := _NUMBER.search(note)) is not None]
    numbers = sorted(int(match[1]) for match in found)
    if not numbers:
        return first
    run = len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]
    named = f"#{numbers[0]} to #{numbers[-1]}" if run else ", ".join(f"#{number}" for number in numbers)
    own = _NUMBER.search(first)
    place = own.end() if own is not None else found[0].start()
    return f"{first[:place]} (likewise {named}){first[place:]}"


def on_ranks(seen: Sequence[ObservedRun], ledgers: Sequence[Ledger]) -> list[str]:
    """Notes on the ranks: averages that were not needed, or none at all."""
    needless = seen[0].needless
    notes = []
    backwards = any(isinstance(event, Backward) for own in seen for event in own.trace.events)
    if len(seen) > 1 and backwards and not any(averages(ledger.trace) for ledger in ledgers):
        said = (
            f"no DistributedDataParallel averages gradients over the {len(seen)} ranks: each rank was judged separately"
        )
        notes.append(said)
    if needless.averages:
        waited = "" if needless.seconds is None else f" and waited {needless.seconds:.2g} s for them"
        notes.append(
            f"{needless.averages} of {needless.of} averages over the ranks were not needed: rank 0 exchanged "
            f"{amount_of_memory(needless.bytes)} of gradients{waited}"
        )
    return notes


def on_accumulation(reports: Sequence[WindowReport], diagnosis: Sequence[Diagnosis]) -> list[str]:
    """The note that nothing was accumulated, where every window holds one micro-batch and no mistake was found."""
    if diagnosis or not reports or any(report.micro_batches != 1 for report in reports):
        return []
    return ["every window holds 1 micro-batch: nothing was accumulated, so accumulation was not tested"]


def on_discarded(ledgers: Sequence[Ledger]) -> list[str]:
    """Notes on gradients that the script discarded on purpose: whole windows, and beginnings of windows."""
    notes = []
    for line, windows in _by_clearing(w for own in ledgers for w in own.rejected if w.unknown is None).items():
        count = f"{len(windows)} complete {'window' if len(windows) == 1 else 'windows'}"
        cleared = f"the gradients of {count} were cleared without a step, at line {line} ({_before(windows)})"
        notes.append(f"{cleared}: discarded by the script")
    for line, windows in _by_clearing(window for ledger in ledgers for window in ledger.restarted).items():
        lost = sum(window.micro_batches for window in windows)
        cleared = f"{plural(lost)} {'was' if lost == 1 else 'were'} cleared at line {line} ({_before(windows)})"
        notes.append(f"{cleared} and the window was restarted: no step counts {'it' if lost == 1 else 'them'}")
    return notes


def on_skipped(ledgers: Sequence[Ledger]) -> list[str]:
    """The note on batches that a loader yielded and the loop skipped, except those after the last that it ran."""
    skipped = sum(ledger.skipped_in_all() for ledger in ledgers if ledger.trace.complete)
    if not skipped:
        return []
    batches = "1 batch was" if skipped == 1 else f"{skipped} batches were"
    return [f"{batches} given by a data loader, and no backward ran on {'it' if skipped == 1 else 'them'}"]


def on_given_up(seen: Sequence[ObservedRun]) -> list[str]:
    """The note on batches that were taken for windows which the end of a data loader left unfilled."""
    found = [own.given_up for own in seen if own.given_up is not None and not own.given_up.by_zip]
    batches = sum(own.batches for own in found)
    if not batches:
        return []
    taken = "1 batch was" if batches == 1 else f"{batches} batches were"
    return [
        f"{taken} taken at line {found[0].at.line} for windows that the end of the data loader left unfilled, and no "
        f"backward ran on {'it' if batches == 1 else 'them'}: left out by the script"
    ]


def on_reworked(ledgers: Sequence[Ledger]) -> list[str]:
    """The notes on gradients that the loop changed by hand right before its steps, by the place of the change."""
    steps: dict[Location, set[int]] = {}
    for window in (window for ledger in ledgers for window in ledger.windows):
        if window.rework is not None and window.unknown is None:
            steps.setdefault(window.rework.where, set()).add(window.index)
    return [
        f"gradients were modified manually before {len(own)} {'step' if len(own) == 1 else 'steps'}, first at line "
        f"{where.line}: they are compared as they were before that, and what it does to them is not checked"
        for where, own in steps.items()
    ]


def _by_clearing(windows: Iterable[Window]) -> dict[int, list[Window]]:
    """Cleared windows by the line that cleared them, each once for all optimizers and ranks."""
    found: dict[int, dict[frozenset[int], Window]] = {}
    for window in windows:
        cleared = window.entries[-1].wiped_by
        if cleared is not None:
            batches = frozenset(entry.backward.micro_batch for entry in window.entries)
            found.setdefault(cleared.where.line, {}).setdefault(batches, window)
    return {line: list(own.values()) for line, own in found.items()}


def _before(windows: Iterable[Window]) -> str:
    """The windows whose steps came next, in words."""
    indices = sorted({window.index for window in windows})
    shown = ", ".join(map(str, indices[:8])) + (", …" if len(indices) > 8 else "")
    return f"before {'window' if len(indices) == 1 else 'windows'} {shown}"


def on_optimizers(reports: Sequence[WindowReport]) -> list[str]:
    """Notes on optimizers that hide a mistake because their update hardly depends on the gradient's scale.

    The first window that deviates is reported, because later ones depend on what earlier ones left in the optimizer's
    state. SGD hides nothing: where its update is right, a clip has limited both.
    """
    first: dict[str, WindowReport] = {}
    for report in reports:
        hides_nothing = report.optimizer.partition(" #")[0] == "SGD"
        if report.verdict is not Verdict.DEVIATES or hides_nothing:
            continue
        if report.grad_rel_error and report.param_rel_error is not None:
            first.setdefault(report.optimizer, report)
    return [
        f"{r.optimizer} masks most of the error: in window {r.index} the relative error is {r.grad_rel_error:.3g} in "
        f"the gradient but {r.param_rel_error:.1e} in the update; clipping, another learning rate or another optimizer "
        "would expose it"
        for r in first.values()
        if (r.grad_rel_error or 0.0) > 0.1 and (r.param_rel_error or 0.0) < 0.1 * (r.grad_rel_error or 0.0)
    ]


def on_updates(measured: Sequence[Measured], reports: Sequence[WindowReport]) -> list[str]:
    """The note on updates that were measured with another reference than the final one."""
    made = [r for m, r in zip(measured, reports, strict=True) if m.update is not None and m.update.error is not None]
    otherwise = [r.index for r in made if r.grad_rel_error is not None and r.param_rel_error is None]
    if not otherwise:
        return []
    return [
        f"{len(otherwise)} of {len(reports)} updates are not compared (the first is in window {otherwise[0]}): how the "
        "loop scales its losses was known only after they were made"
    ]


def on_samples(measured: Sequence[Measured]) -> list[str]:
    """Notes on updates that were compared on some elements of the weights, or not at all."""
    sampled = max((m.update.sampled for m in measured if m.update is not None), default=0)
    notes = [f"updates are compared on {sampled:,} randomly drawn elements of the weights"] if sampled else []
    for name in sorted({m.step.optimizer.partition(" #")[0] for m in measured if m.too_large}):
        notes.append(
            f"updates of {name} are not compared: it is not known to be an elementwise optimizer, and comparing all "
            "elements would take several copies of the model"
        )
    return notes


def is_sampled(measured: Measured) -> bool:
    """Whether a step's errors are only known within bounds, from sketches of its gradients."""
    return measured.products is not None and measured.products.sampled


def on_sketches(measured: Sequence[Measured], mode: Mode | None) -> list[str]:
    """The note that errors were measured by sketches, how well they are known, and why."""
    sampled = [m for m in measured if is_sampled(m) and m.sketched]
    if not sampled:
        return []
    bounds = sketched_norm(1.0)
    known = (
        f"the true errors are {bounds.low / bounds.high:.2g} to {bounds.high / bounds.low:.2g} times those shown, with "
        f"{CONFIDENCE:.1%} confidence"
    )
    if mode is None or not mode.sketches:
        return [f"windows accumulated in several parts or in low precision were compared by sketches; {known}"]
    why = f" ({mode.why})" if mode.why else ""
    return [
        f"gradients were compared by sketches{why}; {known}; nothing was replayed, so whether samples of a batch "
        "influence each other was not checked"
    ]


def on_chunks(streamed: Streamed) -> str:
    """The note on how the gradient of a large batch that does not fit in memory was computed."""
    why = "would need more memory than there is" if streamed.estimated else "does not fit in memory"
    return (
        f"the large batch {why}: its gradient was summed in float64 over {streamed.chunks} chunks (split in two, the "
        f"largest chunk has the same gradient up to {streamed.proof:.1e})"
    )


def on_proof(proofs: Sequence[Proof]) -> str:
    """The note on how closely samples were shown to be independent."""
    most = max(proofs, key=lambda proof: proof.distance)
    return (
        "samples were shown to be independent: replacing two parts of a micro-batch changes its gradient by the sum of "
        f"both changes, up to {most.distance:.1e} of its norm (rounding: {most.allowed:.1e})"
    )


def on_cost(cost: WindowCost) -> str:
    """The note on what accumulation saves and costs, from the largest window that was run both ways."""
    one, large = cost.accumulated, cost.large_batch
    return (
        f"as one batch, the largest window keeps {amount_of_memory(large.kept)} for its backward and takes "
        f"{1e3 * large.seconds:.3g} ms; as {cost.micro_batches} micro-batches, {amount_of_memory(one.kept)} and "
        f"{1e3 * one.seconds:.3g} ms (the largest one, measured once)"
    )

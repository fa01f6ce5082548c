"""What a report tells beside its verdict: of ranks, optimizers, the chunks of a large batch, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_accum.engine.cost import WindowCost
from gradcheck_accum.engine.independence import Proof
from gradcheck_accum.engine.streaming import Streamed
from gradcheck_accum.events import Backward
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.ranks import averages
from gradcheck_accum.verdict import Verdict, WindowReport
from gradcheck_accum.verify.seen import Seen


def on_ranks(seen: Sequence[Seen], ledgers: Sequence[Ledger]) -> list[str]:
    """What is to be said of the ranks: averages that were not needed, or none at all."""
    needless = seen[0].needless
    notes = []
    backwards = any(isinstance(event, Backward) for own in seen for event in own.trace.events)
    if len(seen) > 1 and backwards and not any(averages(ledger) for ledger in ledgers):
        said = f"no DistributedDataParallel averages gradients over the {len(seen)} ranks: each was judged by itself"
        notes.append(said)
    if needless.averages:
        waited = "" if needless.seconds is None else f" and waited {needless.seconds:.2g} s for them"
        notes.append(
            f"{needless.averages} of {needless.of} averages over the ranks were not needed: rank 0 exchanged "
            f"{_bytes(needless.bytes)} of gradients{waited}"
        )
    return notes


def on_optimizers(reports: Sequence[WindowReport]) -> list[str]:
    """Where an optimizer hides a mistake: its update hardly depends on the gradient's scale.

    Told from the first window that deviates: later ones carry what the earlier ones left in the optimizer's state.
    """
    first: dict[str, WindowReport] = {}
    for report in reports:
        if report.verdict is Verdict.DEVIATES and report.grad_rel_error and report.param_rel_error is not None:
            first.setdefault(report.optimizer, report)
    return [
        f"{r.optimizer} hides most of it: in window {r.index} the gradient is off by {r.grad_rel_error:.3g} of its "
        f"norm, the update by {r.param_rel_error:.1e}; a clip, a new learning rate or another optimizer will show it"
        for r in first.values()
        if (r.grad_rel_error or 0.0) > 0.1 and (r.param_rel_error or 0.0) < 0.1 * (r.grad_rel_error or 0.0)
    ]


def on_chunks(streamed: Streamed) -> str:
    """How the gradient of a large batch came about that does not fit in memory."""
    return (
        f"the large batch does not fit in memory: its gradient was added up in float64 over {streamed.chunks} chunks "
        f"(as two halves, the largest of them has the same gradient to {streamed.proof:.1e})"
    )


def on_proof(proofs: Sequence[Proof]) -> str:
    """How far samples were from being independent where they were shown to be."""
    most = max(proofs, key=lambda proof: proof.distance)
    return (
        "other samples in the place of two parts of a micro-batch change its gradient by what each part does alone, to "
        f"{most.distance:.1e} of its norm ({most.allowed:.1e} is rounding)"
    )


def on_cost(cost: WindowCost) -> str:
    """What accumulation buys, in the largest window that was run both ways."""
    one, large = cost.accumulated, cost.large_batch
    return (
        f"as one batch the largest window keeps {_bytes(large.kept)} for its backward and takes "
        f"{1e3 * large.seconds:.3g} ms, as {cost.micro_batches} micro-batches {_bytes(one.kept)} and "
        f"{1e3 * one.seconds:.3g} ms (the largest of them, measured once)"
    )


def _bytes(count: int) -> str:
    size, unit = float(count), "bytes"
    for following in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, following
    return f"{size:.3g} {unit}"

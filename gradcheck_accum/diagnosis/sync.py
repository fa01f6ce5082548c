"""Patterns of gradients that are averaged over ranks: GA701, GA702."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis, plural
from gradcheck_accum.wording import message


def find_synchronisation(account: Account) -> Iterator[Diagnosis]:
    """GA701: every micro-batch's gradients are averaged. GA702: those of a window's last micro-batch are not."""
    windows = [w for w in account.known() if w.step is not None and w.fresh()]
    for window in windows:
        last = window.fresh()[-1].backward
        if last.waits and window.step is not None:
            yield diagnosis(
                "GA702",
                last.where,
                message(
                    "the gradients of the window's last micro-batch are not averaged over the ranks, and not in .grad "
                    "yet: the step at ",
                    window.step.where,
                    " misses them, and they are added to a later window",
                ),
                "call set_requires_gradient_sync(True) before the backward of the last micro-batch of every window",
                window,
                states_steps=False,
            )
        elif last.synced is False and window.step is not None:
            yield diagnosis(
                "GA702",
                last.where,
                message(
                    "the gradients of the window's last micro-batch stay local: the step at ",
                    window.step.where,
                    " uses gradients that were not averaged over the ranks, and the ranks' weights drift apart",
                ),
                "call the wrapper itself, and not the model in it (.module): its own forward prepares the averaging"
                if last.past_wrapper
                else "run the forward and backward of every window's last micro-batch outside no_sync()",
                window,
                states_steps=False,
            )
    full = [w for w in windows if w.micro_batches == account.steps > 1]
    if not full or not all(entry.backward.synced for w in full for entry in w.fresh()):
        return
    first, step = full[0].fresh()[0].backward, full[0].step
    others = f"the first {plural(account.steps - 1)} of a window"
    remedy = (
        f"call set_requires_gradient_sync(False) before the backwards of {others}, if whole gradients fit in memory"
        if first.kept_apart
        else f"run forward and backward of {others} under no_sync()"
    )
    yield diagnosis(
        "GA701",
        first.where,
        message(
            f"gradients are averaged over the ranks at every micro-batch: {account.steps} times for the step",
            message(" at ", step.where) if step else "",
            ", although only the last one is needed",
        ),
        remedy,
        *full,
    )

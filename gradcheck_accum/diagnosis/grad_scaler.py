"""Patterns of the AMP gradient scaler: GA502, GA503."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis
from gradcheck_accum.diagnosis.per_micro_batch import every_micro_batch
from gradcheck_accum.ledger.events import Backward, ScalerUpdate, Step, Unscale
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import Fate, Ledger
from gradcheck_accum.wording import message


def find_scaler_pace(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA502: the scale is updated at every micro-batch."""
    for pace in every_micro_batch(ledger, ScalerUpdate):
        yield diagnosis(
            "GA502",
            pace.event.where,
            "the grad scaler is updated at every micro-batch: its scale may change in the middle of a window, and its "
            "growth interval counts micro-batches instead of steps",
            "call scaler.update() once, right after scaler.step(optimizer)",
            states_steps=False,
        )


def find_scaler_misuse(account: Account) -> Iterator[Diagnosis]:
    """GA502: gradients unscaled before the window is complete. GA503: a step on gradients that are scaled."""
    refused = _refused(account)
    for where, why in refused.items():
        yield diagnosis(
            "GA502",
            where,
            f"gradients are unscaled {why}: PyTorch raises a RuntimeError",
            "call scaler.unscale_(optimizer) once, after the window's last backward and before scaler.step(optimizer)",
            states_steps=False,
        )
    for window in account.known():
        if window.step is None:
            continue
        events = window.events
        for position, event in enumerate(events):
            if not isinstance(event, Unscale) or not any(isinstance(e, Backward) for e in events[:position]):
                continue
            if any(isinstance(e, Backward) and e.grad_scaled for e in events[position + 1 :]):
                yield diagnosis(
                    "GA502",
                    event.where,
                    message(
                        "gradients are unscaled before the window is complete: later micro-batches add scaled "
                        "gradients to them before the step at ",
                        window.step.where,
                    ),
                    "call scaler.unscale_(optimizer) once, after the window's last backward",
                    window,
                    states_steps=False,
                )
        live = window.with_fate(Fate.LIVE)
        unscaled = any(isinstance(e, Unscale) for e in events)
        if live and all(e.backward.grad_scaled for e in live) and not unscaled and not window.step.through_scaler:
            yield diagnosis(
                "GA503",
                window.step.where,
                "the optimizer steps on gradients that are still scaled, bypassing the grad scaler",
                "step through the scaler: scaler.step(optimizer), then scaler.update()",
                window,
                states_steps=False,
            )


def _refused(account: Account) -> dict[Location, str]:
    """Where gradients are unscaled though PyTorch does not allow that before the next update, and why it does not.

    If no update is seen at all, it is made somewhere else, at an unknown time.
    """
    refused: dict[Location, str] = {}
    if not any(isinstance(event, ScalerUpdate) for event in account.ledger.trace.events):
        return refused
    state = ""
    for event in account.ledger.trace.events:
        match event:
            case ScalerUpdate():
                state = ""
            case Unscale() if account.store in event.stores:
                if state:
                    refused.setdefault(event.where, state)
                state = state or "a second time since the last scaler.update()"
            case Step() if event.through_scaler and event.optimizer == account.optimizer:
                state = "after the step that should have used them"
    return refused

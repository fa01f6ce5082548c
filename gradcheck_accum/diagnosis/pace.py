"""Patterns of pace, which no gradient shows: GA601, GA602, GA801."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

from gradcheck_accum.diagnosis.account import Diagnosis, diagnosis, plural
from gradcheck_accum.events import AverageUpdate, Backward, Event, GraphsHeld, SchedulerStep, Step
from gradcheck_accum.ledger import Ledger

_E = TypeVar("_E", bound=Event)

_STEPS_OF_GROWTH = 3
"""Steps in a row at which more graphs must be held than before: fewer may be a list that is about to be used."""


def every_micro_batch(ledger: Ledger, kind: type[_E]) -> _E | None:
    """An event of a kind that most windows of several micro-batches hold once for each of them; None otherwise."""
    full = busy = 0
    last: _E | None = None
    batches: set[int] = set()
    count = 0
    for event in ledger.trace.events:
        if isinstance(event, kind):
            count, last = count + 1, event
        elif isinstance(event, Backward):
            batches.add(event.micro_batch)
        elif isinstance(event, Step) and batches:
            if len(batches) > 1:
                full += 1
                # What follows the window's last micro-batch comes after its step: it is counted with the next.
                busy += count >= len(batches) - (full == 1)
            batches, count = set(), 0
    return last if full and busy * 2 > full and last is not None and _outnumbers_steps(ledger, kind) else None


def _outnumbers_steps(ledger: Ledger, kind: type[Event]) -> bool:
    """Whether there are more events of a kind than one for each step and one for each pass over the data."""
    events = ledger.trace.events
    steps = sum(isinstance(event, Step) for event in events)
    passes = len({event.epoch for event in events if isinstance(event, Backward)})
    return sum(isinstance(event, kind) for event in events) > steps + passes


def find_schedule(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA601: a schedule that runs K times as fast as the steps that it was made for."""
    step = every_micro_batch(ledger, SchedulerStep)
    if step is None:
        return
    made = sum(isinstance(event, SchedulerStep) for event in ledger.trace.events)
    if step.horizon is not None and step.horizon >= made:
        # Its horizon was counted in micro-batches too.
        return
    steps = sum(isinstance(event, Step) for event in ledger.trace.events)
    yield diagnosis(
        "GA601",
        step.where,
        f"the learning rate's schedule moves at every micro-batch: {made} times over {steps} steps of the optimizer, "
        "so it runs ahead of the training that it was planned for",
        "step the scheduler once per window, after the optimizer; or plan its length in micro-batches",
    )


def find_average(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA602: a moving average that takes in the same weights several times."""
    update = every_micro_batch(ledger, AverageUpdate)
    if update is not None:
        yield diagnosis(
            "GA602",
            update.where,
            "the moving average is updated at every micro-batch, though the weights change once per window: the same "
            "weights are taken in again, and its decay is not what was set",
            "update the average once per window, after the step",
        )


def find_held_graphs(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA801: more and more losses that are still held with their graphs."""
    held = [event for event in ledger.trace.events if isinstance(event, GraphsHeld)]
    growing = 1
    for earlier, later in pairwise(held):
        growing = growing + 1 if later.count > earlier.count else 1
        if growing >= _STEPS_OF_GROWTH:
            yield diagnosis(
                "GA801",
                held[-1].where,
                f"losses are kept with their graphs: at the last step those of {plural(held[-1].count)} were still "
                "in memory, and more at every step",
                "keep a number: total += loss.item(), or loss.detach()",
            )
            return

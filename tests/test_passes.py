"""Passes over the data, as an engine sees them, or as steps tell them: counted here by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.ledger.events import Backward, Event, Reduction, Step, Term
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.passes import KnownBy, Passes
from gradcheck_accum.results.verdict import Verdict

STORE = frozenset({"model"})


def loop(steps: set[int], count: int, *, epochs: tuple[int, ...] = ()) -> list[Event]:
    """``count`` micro-batches, with a step after those of these numbers, from 1."""
    term = Term("MseLoss", Reduction.MEAN, 5.0, rows=5.0)
    events: list[Event] = []
    for number in range(1, count + 1):
        epoch = epochs[number - 1] if epochs else None
        where = Location("train.py", 3)
        events.append(Backward(where=where, micro_batch=number + 40, stores=STORE, terms=(term,), epoch=epoch))
        if number in steps:
            events.append(Step(where=Location("train.py", 5), optimizer="SGD", stores=STORE))
    return events


def known(events: list[Event]) -> tuple[KnownBy, list[int | None]]:
    passes = Passes.of_events(events)
    return passes.known_by, [passes.of(event) for event in events if isinstance(event, Backward)]


def test_passes_that_were_seen_are_taken_as_they_are() -> None:
    seen = (3, 3, 3, 7, 7, 7, 7)
    assert known(loop({2, 3, 5, 6}, 7, epochs=seen)) == (KnownBy.ENGINE, list(seen))


@pytest.mark.parametrize(
    ("steps", "count", "length"),
    [
        ({3, 6, 7, 10, 13, 14}, 14, 7),  # a remainder of one that steps
        ({3, 6, 11, 14}, 16, 8),  # a remainder of two that leaks
        ({1, 4, 8, 11, 15, 18}, 21, 7),  # begun with a window of one
    ],
)
def test_steps_tell_passes_by_their_places(steps: set[int], count: int, length: int) -> None:
    assert known(loop(steps, count)) == (KnownBy.STEPS, [number // length for number in range(count)])


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ({3, 6, 9, 12}, 12),  # even steps: any whole number of windows may be a pass
        ({3, 6, 9, 12}, 14),
        ({1, 4, 7, 10}, 12),  # even, but for where the first comes
        ({3, 6, 7}, 7),  # one pass
        ({2, 4, 6, 11, 16}, 16),  # K grows
        (set(), 6),
    ],
)
def test_other_steps_tell_nothing(steps: set[int], count: int) -> None:
    assert known(loop(steps, count)) == (KnownBy.NOTHING, [None] * count)


SCRIPT = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={moves})
data = [(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(11)]
K = 4
for epoch in range(2):
    for i, (x, y) in enumerate(data):
        (nn.functional.cross_entropy(model(x), y) / K).backward()
        {every}
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
            {window}
"""


@pytest.mark.parametrize(
    ("moves", "every", "window", "codes"),
    [
        # Planned for the three windows of each pass, of which the last never steps.
        (6, "schedule.step()", "pass", {"GA301", "GA601"}),
        (6, "pass", "schedule.step()", {"GA301"}),
        (22, "schedule.step()", "pass", {"GA301"}),
    ],
)
def test_a_schedule_is_held_against_the_passes_that_steps_tell(
    moves: int, every: str, window: str, codes: set[str], tmp_path: Path
) -> None:
    source = SCRIPT.format(moves=moves, every=every, window=window)
    result = watch_source(source, tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert {d.mistake.code for d in result.diagnosis} == codes
    assert set(codes_in(source)) == codes

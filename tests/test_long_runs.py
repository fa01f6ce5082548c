"""Of a long run little is kept, and it is judged as if all of it were."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.ledger.events import (
    AverageUpdate,
    Backward,
    Clip,
    Event,
    GraphsHeld,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    WindowBound,
    ZeroGrad,
)
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.book.kinds import RunningNumbers, said_by
from gradcheck_accum.verify.watching import journal

K, PASSES = 3, 6
ROWS = 4
"""Rows of a micro-batch; a pass has 7 whole ones and one of 2 rows: two windows and a remainder of 2."""


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    rows = 7 * ROWS + 2
    data = TensorDataset(torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator))
    return DataLoader(data, batch_size=ROWS)


def flushed(divide: Callable[[int, int], float], *, clip: bool = False, decay: float = 1.0) -> None:
    """Passes with a flush at the end of each; ``divide`` gives the divisor of a micro-batch of rows in a window."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for _ in range(PASSES):
        data = loader()
        for i, (x, y) in enumerate(data):
            window = i // K
            (mse_loss(model(x), y) / divide(window, len(x))).backward()
            if (i + 1) % K == 0 or i + 1 == len(data):
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()


def right() -> None:
    flushed(lambda window, rows: (3 * ROWS if window < 2 else ROWS + 2) / rows)


def undivided() -> None:
    flushed(lambda window, rows: 1.0)


def mean_of_means() -> None:
    flushed(lambda window, rows: 3 if window < 2 else 2, clip=True)


def half_precision() -> None:
    model, scaler = nn.Linear(3, 1), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        for _ in range(2):
            loss = mse_loss(model(torch.randn(ROWS, 3)), torch.randn(ROWS, 1)) / 2
            scaler.scale(loss if step % 20 != 7 else loss * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def heads() -> None:
    """Two backwards for each micro-batch, of which the last of a pass has fewer rows than others of its window."""
    body, first, second = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([p for m in (body, first, second) for p in m.parameters()], lr=0.01)
    for i, (x, y) in enumerate(batch for _ in range(4 * PASSES) for batch in loader()):
        features = body(x)
        for head in (first, second):
            (mse_loss(head(features), y) / K).backward(retain_graph=True)
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()


def adversaries() -> None:
    makes, judges = nn.Linear(2, 3), nn.Linear(3, 1)
    of_makes, of_judges = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (makes, judges))
    for _ in range(25):
        of_judges.zero_grad()
        for _ in range(K):
            made = makes(torch.randn(ROWS, 2))
            (binary_cross_entropy_with_logits(judges(made.detach()), torch.zeros(ROWS, 1)) / K).backward()
        of_judges.step()
        of_makes.zero_grad()
        for _ in range(K):
            made = makes(torch.randn(ROWS, 2))
            (binary_cross_entropy_with_logits(judges(made), torch.ones(ROWS, 1)) / K).backward()
        of_makes.step()


def units_of_their_own() -> None:
    """Every micro-batch has its share of the window's class weights, which no other has."""
    model, weights = nn.Linear(3, 4), torch.rand(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        labels = [torch.randint(0, 4, (ROWS,)) for _ in range(K)]
        whole = sum(float(weights[own].sum()) for own in labels)
        for own in labels:
            loss = cross_entropy(model(torch.randn(ROWS, 3)), own, weights)
            (loss * (float(weights[own].sum()) / whole)).backward()
        optimizer.step()
        optimizer.zero_grad()


def never_used() -> None:
    """One optimizer waits for its only step until the end, which then uses what was added up all the time."""
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer, waits = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, other))
    for _ in range(80):
        for _ in range(2):
            (mse_loss(model(torch.randn(ROWS, 3)) + other(torch.randn(ROWS, 3)), torch.randn(ROWS, 1)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    waits.step()


def result_of(loop: Callable[[], None], **options: Any) -> VerifyResult:
    gc.collect()  # an optimizer of another loop would be known too
    torch.manual_seed(0)
    with observe(**options) as observation:
        loop()
    return observation.result()


LOOPS = [right, undivided, mean_of_means, half_precision, heads, adversaries, units_of_their_own, never_used]


@pytest.mark.parametrize("reference", ["ledger", "both"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_what_is_past_is_judged_as_if_it_were_at_hand(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], None], reference: str
) -> None:
    loop()  # what PyTorch imports with its first optimizer keeps who watches then, and so another optimizer
    results = []
    for at_hand in (10**9, 1):
        monkeypatch.setattr(journal, "_AT_HAND", at_hand)
        results.append(result_of(loop, reference=reference))
    whole, packed = results
    assert len(packed.windows) > 2 * journal._TELLING
    assert packed.windows == whole.windows
    assert packed.diagnosis == whole.diagnosis
    assert (packed.verdict, packed.reason, packed.help) == (whole.verdict, whole.reason, whole.help)


def test_the_loops_are_right_and_wrong_as_they_were_written() -> None:
    verdicts = {loop: result_of(loop, reference="ledger").verdict for loop in LOOPS}
    wrong = {undivided, mean_of_means, heads, never_used}
    assert {loop for loop in LOOPS if verdicts[loop] is Verdict.DEVIATES} == wrong
    assert {loop for loop in LOOPS if verdicts[loop] is Verdict.EQUIVALENT} == {*LOOPS} - wrong


def test_a_result_is_the_same_whenever_it_is_asked_for() -> None:
    torch.manual_seed(0)
    with observe(reference="ledger") as observation:
        undivided()
        first, again = observation.result(), observation.result()
        undivided()
    assert first == again
    assert observation.result().windows[: len(first.windows)] == first.windows


AT = Location("train.py", 3)
EVENTS = [
    Backward(where=AT, micro_batch=1, stores=frozenset({"a"}), terms=(), epoch=1, given=2, batch=3),
    Step(where=AT, optimizer="SGD", stores=frozenset({"a"}), counted_by=WindowBound(3, reached=2)),
    ZeroGrad(where=AT, stores=frozenset({"a"}), counted=(("SGD", 4),)),
    SchedulerStep(where=AT),
    AverageUpdate(where=AT),
    GraphsHeld(where=AT, count=2),
    Clip(where=AT, stores=frozenset({"a"})),
    Unscale(where=AT, stores=frozenset({"a"})),
    ScalerUpdate(where=AT),
]
OTHERS = {
    "where": Location("train.py", 4),
    "counted_by": WindowBound(3, reached=5),
    "counted": (("SGD", 5),),
    "accumulation_steps": 3,
    "horizon": 30,
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_two_events_of_a_kind_differ_in_anything_that_is_forgotten(event: Event) -> None:
    numbers = RunningNumbers()
    for earlier in EVENTS[:3]:
        numbers.run_on(earlier)
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        other = OTHERS.get(field.name)
        if other is None:
            other = not value if isinstance(value, bool) else value + 7 if isinstance(value, int) else frozenset({"b"})
        changed = dataclasses.replace(event, **{field.name: other})
        kinds = [(said_by(own), numbers.relative(own)) for own in (event, changed)]
        assert kinds[0] != kinds[1], field.name

"""Windows of one backward over one batch are their own large batch, whatever multiplies their losses.

Where anything may be a K, or the backward may be of several batches, what is not known stays so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

PAGE = """\
import torch
F = torch.nn.functional
torch.manual_seed(5)
cell, head = torch.nn.RNNCell(3, 6), torch.nn.Linear(6, 4)
descent = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
accumulation_steps = 3


def batch(rows):
    x, y = torch.randn(5, rows, 3), torch.randint(1, 4, (5, rows))
    y[torch.rand(5, rows) < 0.3] = 0
    return x, y


def steps_of(x, y):
    state, total = torch.zeros(x.shape[1], 6), 0.0
    for one, wanted in zip(x, y):
        state = cell(one, state)
        total = total + F.cross_entropy(head(state), wanted, ignore_index=0, reduction="sum")
    return total


def places(y):
    return (y > 0).sum() + torch.randint(1, 9, ())


groups = [[batch(4) for _ in range(3)] for _ in range(3)]
"""
OF_ONE = """
for group in groups:
    for x, y in group:
        descent.zero_grad()
        loss = steps_of(x, y) / places(y)
        loss.backward()
        descent.step()
"""


def verdict_on(source: str, folder: Path, **options: object) -> tuple[Verdict, str]:
    result = watch_source(source, folder, **options)
    assert not [d for d in result.diagnosis if d.mistake.code != "GA304"]
    return result.verdict, result.reason


@pytest.mark.parametrize("reference", ["both", "ledger"])
def test_a_divisor_that_counts_something_else_is_the_objectives(reference: str, tmp_path: Path) -> None:
    found, reason = verdict_on(PAGE + OF_ONE, tmp_path, reference=reference)
    assert found is Verdict.EQUIVALENT, reason


SEVERAL = {
    "a window of three": """
for group in groups:
    descent.zero_grad()
    count = places(group[0][1]) + places(group[2][1])
    for x, y in group:
        (steps_of(x, y) / count).backward()
    descent.step()
""",
    "the count of a group that each of its batches steps in": """
for group in groups:
    count = sum(places(y) for _, y in group)
    for x, y in group:
        descent.zero_grad()
        (steps_of(x, y) / count).backward()
        descent.step()
""",
    "one backward of a group's losses": """
for group in groups:
    descent.zero_grad()
    count = places(group[-1][1])
    (sum(steps_of(x, y) for x, y in group) / count).backward()
    descent.step()
""",
    "a number of K's name": OF_ONE.replace("/ places(y)", "/ places(y) / accumulation_steps"),
    "a count that comes too early": """
turn = 0
for group in groups:
    for x, y in group:
        descent.zero_grad()
        turn += 1
        (steps_of(x, y) / places(y)).backward()
        if turn % 3 == 0 or turn:
            descent.step()
""",
}


@pytest.mark.parametrize("loop", SEVERAL.values(), ids=SEVERAL)
def test_it_is_unknown_where_anything_may_be_a_k(loop: str, tmp_path: Path) -> None:
    found, reason = verdict_on(PAGE + loop, tmp_path)
    assert found is Verdict.INCONCLUSIVE
    assert "it is not known which factors" in reason or "they may or may not be micro-batches" in reason


WALKS = """\
import torch
torch.manual_seed(4)
scores = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
descent = torch.optim.Adam(scores.parameters(), lr=0.01)
held = []


def place():
    return {place}


for walk in range(6):
    for turn in range(2 + walk % 3):
        chances = torch.distributions.Categorical(logits=scores(place()))
        choice = chances.sample()
        held.append(-chances.log_prob(choice).sum() * torch.rand(()))
    descent.zero_grad()
    {loss}.backward()
    descent.step()
    held.clear()
"""
ONE = {"a vector": "torch.randn(3)", "a row": "torch.randn(1, 3)"}


@pytest.mark.parametrize("place", ONE.values(), ids=ONE)
@pytest.mark.parametrize("loss", ["torch.stack(held).sum()", "(sum(held) / len(held))"])
def test_samples_that_a_model_is_given_one_by_one_are_one_objective(place: str, loss: str, tmp_path: Path) -> None:
    found, reason = verdict_on(WALKS.format(place=place, loss=loss), tmp_path)
    assert found is Verdict.EQUIVALENT, reason


LIKE = {"rows": "torch.randn(4, 3)", "the mean of rows": "torch.randn(4, 3).mean(0)"}


@pytest.mark.parametrize("place", LIKE.values(), ids=LIKE)
def test_batches_of_rows_may_be_micro_batches(place: str, tmp_path: Path) -> None:
    found, reason = verdict_on(WALKS.format(place=place, loss="torch.stack(held).sum()"), tmp_path)
    assert found is Verdict.INCONCLUSIVE
    assert "they may or may not be micro-batches" in reason


def test_several_walks_of_one_step_may_have_been_meant_as_their_mean(tmp_path: Path) -> None:
    loop = WALKS.replace("    descent.zero_grad()\n", "").replace(
        "    descent.step()\n", "    if walk % 3 == 2:\n        descent.step()\n        descent.zero_grad()\n"
    )
    assert "walk % 3" in loop
    found, reason = verdict_on(loop.format(place="torch.randn(3)", loss="torch.stack(held).sum()"), tmp_path)
    assert found is Verdict.INCONCLUSIVE
    assert "they may or may not be micro-batches" in reason

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


VIEWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
F = nn.functional
torch.manual_seed(9)
loader = DataLoader([[torch.randn(6) + 0.1 * torch.randn(6) for _ in range(3)] for _ in range(24)], batch_size=4)


class Agreement(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("middle", torch.zeros(5))

    def forward(self, taught, given):
        wanted = F.softmax((given - self.middle) / 0.1, 1)
        with torch.no_grad():
            self.middle = 0.9 * self.middle + 0.1 * given.mean(0)
        losses = [-(wanted * F.log_softmax(out, 1)).sum(1).mean() for out in taught]
        return sum(losses) / DIVISOR


student, teacher, agreement = nn.Linear(6, 5), nn.Linear(6, 5), Agreement()
descent = torch.optim.SGD(student.parameters(), lr=0.1)
for i, views in enumerate(loader):
    with torch.no_grad():
        given = teacher(views[0])
    loss = agreement([student(view) for view in views[1:]], given)
    (loss / K).backward()
    if (i + 1) % K == 0:
        descent.step()
        descent.zero_grad()
"""


WINDOWS_OF_A_LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(9)
loader = DataLoader([[(torch.randn(4, 6), torch.randn(4, 2)) for _ in range(3)] for _ in range(5)], batch_size=None)
model = nn.Linear(6, 2)
descent = torch.optim.SGD(model.parameters(), lr=0.1)
for window in loader:
    loss = sum(nn.functional.mse_loss(model(x), y) for x, y in window)
    loss.backward()
    descent.step()
    descent.zero_grad()
"""


def views(divisor: str, k: int, change: str = "") -> str:
    return (
        VIEWS.replace("DIVISOR", divisor)
        .replace("K", str(k))
        .replace("for view in views[1:]", change or "for view in views[1:]")
    )


def test_several_views_of_one_batch_need_no_other_large_batch(tmp_path: Path) -> None:
    """Its loss keeps a state, so that no batch can be run again: none has to be."""
    found, reason = verdict_on(views("len(losses)", 1), tmp_path)
    assert found is Verdict.EQUIVALENT, reason


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(views("len(losses)", 2), id="several batches a window"),
        pytest.param(WINDOWS_OF_A_LOADER, id="a sum of losses that share nothing"),
        pytest.param(
            views("len(losses)", 1, "for view in views[1].chunk(2)").replace(
                "given = teacher(views[0])", "given = teacher(views[0][:2])"
            ),
            id="parts of a batch",
        ),
    ],
)
def test_what_may_be_several_batches_stays_open(source: str, tmp_path: Path) -> None:
    assert verdict_on(source, tmp_path)[0] is Verdict.INCONCLUSIVE

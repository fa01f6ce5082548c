"""One loss whose backward is written at several lines, each run on a batch of its own.

Weights by hand: of m batches of one size whose means are added up, each has m times its weight in the large batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(2)
rows = TensorDataset(torch.randn(36, 5), torch.randn(36, 3), torch.randn(36, 3))
loader, other = DataLoader(rows, batch_size=3), DataLoader(rows, batch_size=3, shuffle=True)
body, first, second = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)
weights = [*body.parameters(), *first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
def error(x, y, head=first):
    return nn.functional.mse_loss(head(torch.tanh(body(x))), y)
"""
END = """
        optimizer.step()
        optimizer.zero_grad()
"""
BRANCHES = """
for i, (x, y, z) in enumerate(loader):
    if i % 2 == 0:
        ({first}).backward()
    else:
        ({second}).backward()
"""
DRAWN = """
batches = iter(loader)
for turn in range(4):
    for _ in range(1):
        x, y, z = next(batches)
        ({first}).backward()
        x, y, z = next(batches)
        ({first}).backward()
        x, y, z = next(batches)
        ({first}).backward()
"""
RETURNED = """
for i, (x, y, z) in enumerate(loader):
    loss = {first}
    if i % 2 == 0:
        held = torch.autograd.grad(loss, weights[:4])
    else:
        loss.backward()
        for weight, own in zip(weights, held):
            weight.grad = weight.grad + own
"""


@pytest.mark.parametrize(
    ("loop", "loss", "ratio"),
    [(BRANCHES, "error(x, y)", 2.0), (DRAWN, "error(x, y)", 3.0), (RETURNED, "error(x, y)", 2.0)],
)
def test_batches_of_one_loader_are_micro_batches_at_any_line(
    loop: str, loss: str, ratio: float, tmp_path: Path
) -> None:
    wrong = watch_source(START + loop.format(first=loss, second=loss) + END, tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"]), wrong.reason
    assert all(w.weights == pytest.approx([ratio] * int(ratio)) for w in wrong.windows)
    divided = f"{loss} / {ratio:.0f}"
    right = watch_source(START + loop.format(first=divided, second=divided) + END, tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("error(x, y)", "error(x, y, second)"),
        ("error(x, y)", "error(x, z)"),
        ("error(x, y)", "error(x, y - 1)"),
        ("error(x, y)", "nn.functional.l1_loss(first(torch.tanh(body(x))), y)"),
        ("2 * error(x, y)", "error(x, z)"),
        ("error(x, y).mul(3)", "error(x, y).mul(3) + body.weight.square().sum()"),
    ],
)
def test_other_weights_data_or_calls_are_another_term(first: str, second: str, tmp_path: Path) -> None:
    result = watch_source(START + BRANCHES.format(first=first, second=second) + END, tmp_path)
    assert not result.diagnosis
    assert result.verdict is not Verdict.DEVIATES


def test_batches_of_two_loaders_are_terms(tmp_path: Path) -> None:
    loop = """
for (x, y, z), (a, b, c) in zip(loader, other):
    for _ in range(1):
        error(x, y).backward()
        error(a, b).backward()
"""
    result = watch_source(START + loop + END, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason

"""Data that a script cuts itself: windows along a dimension that it was given, pieces cut alike, slices of them."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

HEAD = """\
import torch
from torch import nn
K = 4
x, y = torch.randn({rows}, 6), torch.randint(0, 3, ({rows},))
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
"""
STEP = "optimizer.step(); optimizer.zero_grad()"
WINDOWS = {
    "indices along a dimension": """
for epoch in range(2):
    for window in torch.randperm({rows}).view(-1, K, 5):
        for index in window:
            (criterion(model(x[index]), y[index]){scaling}).backward()
        {step}
""",
    "data along a dimension": """
for window in x[torch.randperm({rows})].view(-1, K, 5, 6):
    for part in window:
        (model(part).pow(2).mean(){scaling}).backward()
    {step}
""",
    "as many windows as are written": """
for window in torch.randperm({rows}).reshape(3, K, 5):
    for index in window:
        (criterion(model(x[index]), y[index]){scaling}).backward()
    {step}
""",
    "slices of pieces": """
pieces = torch.arange({rows}).split(5)
for first in range(0, len(pieces), K):
    for index in pieces[first:first + K]:
        (criterion(model(x[index]), y[index]){scaling}).backward()
    {step}
""",
    "pieces that are cut alike": """
batches = list(zip(x.split(5), (y + 0).split(5)))
for i, (a, b) in enumerate(batches):
    (criterion(model(a), b){scaling}).backward()
    if (i + 1) % K == 0:
        {step}
""",
}
every_way = pytest.mark.parametrize("loop", WINDOWS.values(), ids=list(WINDOWS))


def codes(loop: str, scaling: str, rows: int = 60) -> list[str]:
    source = HEAD.format(rows=rows) + loop.format(rows=rows, scaling=scaling, step=STEP)
    return [f.mistake.code for f in lint_source(source, "train.py")]


@every_way
def test_windows_that_are_cut_by_hand_are_as_long_as_they_are_cut(loop: str) -> None:
    # 60 rows are 12 micro-batches of 5, three windows of 4.
    assert codes(loop, " / K") == []
    assert codes(loop, "") == ["GA101"]
    assert codes(loop, " / K / K") == ["GA102"]


def test_what_is_left_of_pieces_that_are_cut_alike_is_known() -> None:
    (found,) = lint_source(
        HEAD.format(rows=65)
        + WINDOWS["pieces that are cut alike"].format(rows=65, scaling=" / K", step=STEP).replace("(y + 0)", "y"),
        "train.py",
    )
    assert found.mistake.code == "GA301"
    assert found.message.startswith("1 micro-batch of an epoch never reaches a step")

"""What ends a loop's windows, however the source writes it, is K: a constant of another name that equals it is not."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

HEAD = """\
import itertools
import torch
from torch import nn
K = 3
HEADS = 3
data = torch.utils.data.TensorDataset(torch.randn({rows}, 5), torch.randn({rows}, 2))
loader = torch.utils.data.DataLoader(data, batch_size=5)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
"""
LOOPS = {
    "a count": """
count = 0
for x, y in loader:
    {loss}.backward()
    count += 1
    if count == K:
        {gradients}
        optimizer.step()
        optimizer.zero_grad()
        count = 0
""",
    "a count that may exceed it": """
count = 0
for x, y in loader:
    {loss}.backward()
    count += 1
    if count >= K:
        {gradients}
        optimizer.step()
        optimizer.zero_grad()
        count = 0
""",
    "slices": """
batches = list(loader)
for start in range(0, len(batches), K):
    for x, y in batches[start:start + K]:
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
    "a range of turns": """
batches = iter(loader)
for _ in range(len(loader) // K):
    for _ in range(K):
        x, y = next(batches)
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
    "islice": """
batches = iter(loader)
for _ in range(len(loader) // K):
    for x, y in itertools.islice(batches, K):
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
}
every_loop = pytest.mark.parametrize("loop", LOOPS.values(), ids=list(LOOPS))
LOSS = "criterion(model(x), y)"
DIVIDED = "for p in model.parameters(): p.grad.div_(K)"


def codes(loop: str, loss: str, gradients: str = "pass") -> list[str]:
    source = HEAD.format(rows=45) + loop.format(loss=loss, gradients=gradients)
    return [f.mistake.code for f in lint_source(source, "train.py")]


@every_loop
@pytest.mark.parametrize("name", ["HEADS", "K"])
def test_a_constant_of_another_name_is_the_objectives(loop: str, name: str) -> None:
    # 9 micro-batches are three windows of K: divided by K once, and by the number of heads, or by K again.
    wanted = ["GA102"] if name == "K" else []
    assert codes(loop, f"({LOSS} / K / {name})") == wanted
    assert codes(loop, f"({LOSS} / {name})", DIVIDED) == wanted


@every_loop
def test_a_division_by_another_constant_alone_does_not_scale(loop: str) -> None:
    assert codes(loop, f"({LOSS} / K)") == []
    assert codes(loop, f"({LOSS})") == ["GA101"]

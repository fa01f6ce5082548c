"""Tensors that a call makes, and of whose shape the source shows every size: their items are batches, or windows."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import torch
from torch import nn
K, B = 4, 6
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
BY_NUMBER = """\
xs, ys = torch.randn({count}, B, 5), 2 * torch.randn({count}, B, 1)
for i in range(len(xs)):
    loss = nn.functional.mse_loss(net(xs[i]), ys[i])
    (loss / K).backward()
    {early}
    if (i + 1) % K == 0:
        opt.step()
        opt.zero_grad()
"""
IN_TURN = """\
xs, ys = torch.randn({count}, B, 5), 2 * torch.randn({count}, B, 1)
for i, (x, y) in enumerate(zip(xs, ys)):
    loss = nn.functional.mse_loss(net(x), y)
    (loss / K).backward()
    {early}
    if (i + 1) % K == 0:
        opt.step()
        opt.zero_grad()
"""
OF_WINDOWS = """\
windows = torch.randn(3, K, B, 5)
for n in range(3):
    for x in windows[n]:
        (net(x).square().mean() / {divisor}).backward()
    opt.step()
    opt.zero_grad()
"""
SEGMENTS = """\
stream = torch.randint(0, 9, (B, 5 * {count} + 1))
def segments(s, size):
    for a in range(0, s.size(1) - 1, size):
        yield s[:, a:a + size], s[:, a + 1:a + size + 1]
model = nn.Sequential(nn.Embedding(9, 9), nn.Linear(9, 9))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for n, (x, y) in enumerate(segments(stream, 5), 1):
    (nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / K).backward()
    if n % K == 0:
        opt.step()
        opt.zero_grad()
"""
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 0.5)"


@pytest.mark.parametrize("loop", [BY_NUMBER, IN_TURN])
@pytest.mark.parametrize(
    ("count", "early", "codes"),
    [(12, "pass", []), (12, CLIP, ["GA401"]), (10, "pass", ["GA301"]), (12, "opt.zero_grad()", ["GA202"])],
)
def test_each_item_is_a_micro_batch(loop: str, count: int, early: str, codes: list[str]) -> None:
    assert codes_in(HEAD + loop.format(count=count, early=early)) == codes


@pytest.mark.parametrize(("divisor", "codes"), [("K", []), ("1", ["GA101"]), ("K / K", ["GA102"])])
def test_an_item_of_windows_holds_its_micro_batches(divisor: str, codes: list[str]) -> None:
    assert codes_in(HEAD + OF_WINDOWS.format(divisor=divisor)) == codes


@pytest.mark.parametrize(("count", "codes"), [(12, []), (13, ["GA301"])])
def test_segments_are_as_many_as_the_second_size_holds(count: int, codes: list[str]) -> None:
    assert codes_in(HEAD + SEGMENTS.format(count=count)) == codes


def test_rows_of_a_batch_are_no_micro_batches() -> None:
    # What a loop over each row of one batch adds up is one loss.
    source = """\
xs = torch.randn(12, B, 5)
for i in range(12):
    loss = 0
    for row in xs[i]:
        loss = loss + net(row).square().mean()
    (loss / B / K).backward()
    if (i + 1) % K == 0:
        opt.step()
        opt.zero_grad()
"""
    assert codes_in(HEAD + source) == []


CUT_TWICE = """\
xs, ys = torch.randn(B * {count}, 5), torch.randn(B * {count}, 1)
for i in range(len(xs) // B):
    x, y = xs[i * B:][:B], ys[i * B:][:B]
    (nn.functional.mse_loss(net(x), y) / {divisor}).backward()
    if (i + 1) % K == 0:
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(("count", "divisor", "codes"), [(20, "K", []), (20, "1", ["GA101"]), (21, "K", ["GA301"])])
def test_rows_that_are_cut_twice_are_as_many_as_the_second_cut_leaves(
    count: int, divisor: str, codes: list[str]
) -> None:
    assert (
        codes_in(HEAD.replace("K, B = 4, 6", "K, B = 5, 5") + CUT_TWICE.format(count=count, divisor=divisor)) == codes
    )

"""Backwards at one place over one batch: what each of them weighs is unknown, but not which window they are in."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

EACH_PART = """
def train(model, loader, optimizer, criterion, K, epochs):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (queries, wanted) in enumerate(loader):
            for place in range(len(queries)):
                loss = criterion(model(queries[place]), wanted[place]){scale}
                loss.backward()
                {each}
            if (i + 1) % K == 0{flush}:
                {before}
                optimizer.step()
                optimizer.zero_grad()
"""
FLUSH = " or i + 1 == len(loader)"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def part(scale: str = "", each: str = "pass", flush: str = "", before: str = "pass") -> list[str]:
    return codes_in("import torch\n" + EACH_PART.format(scale=scale, each=each, flush=flush, before=before))


def test_what_no_step_uses_is_lost_whatever_it_weighs() -> None:
    assert part() == ["GA301"]
    assert part(before=CLIP) == ["GA301"]


@pytest.mark.parametrize("scale", ["", " / K", " / len(queries)", " / len(queries) / K", " * 0.25"])
def test_how_the_parts_are_scaled_is_not_judged(scale: str) -> None:
    # A mean over the parts, a sum of them, and a mean of the window: a step for what is left makes no mistake for sure.
    assert part(scale, flush=FLUSH, before=CLIP) == []
    assert part(scale, each="print(loss.item())", flush=FLUSH) == []


@pytest.mark.parametrize("given", ["network in networks", "name, network in networks.items()"])
def test_networks_that_are_cleared_one_after_the_other_lose_nothing(given: str) -> None:
    loop = f"""
def train(networks, optimizers, loader, criterion):
    for x, y in loader:
        for {given}:
            network.zero_grad()
            criterion(network(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
"""
    assert codes_in(loop) == []


def test_batches_of_an_inner_loop_are_micro_batches() -> None:
    loop = """
def train(network, optimizer, rounds, loader, criterion):
    for name in rounds:
        for x, y in loader:
            network.zero_grad()
            criterion(network(x), y).backward()
        optimizer.step()
"""
    assert codes_in(loop, "GA2") == ["GA201"]


def test_a_mean_over_all_parts_is_a_mean() -> None:
    loop = """
def train(model, loader, optimizer, criterion, K):
    total, parts = 0.0, 0
    for i, (queries, wanted) in enumerate(loader):
        for place in range(4):
            loss = criterion(model(queries[place]), wanted[place])
            (loss / K).backward()
            total += loss.item()
            parts += 1
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    print(total / parts)
"""
    assert codes_in(loop) == []


VIEWS = """\
import torch
import torch.nn.functional as F

VIEWS, ROWS = 3, {rows}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
data, targets = torch.randn(30, 4), torch.randn(30, 1)

def changed(x, masks):
    return [x * mask for mask in masks]

for start in range(0, len(data), ROWS):
    x, y = data[start:start + ROWS], targets[start:start + ROWS]
    optimizer.zero_grad()
    for view in changed(x, torch.randn(VIEWS, ROWS, 4)):
        (F.mse_loss(model(view), y){scale}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize(("scale", "expected"), [(" / VIEWS", []), ("", ["GA101"]), (" / VIEWS / VIEWS", ["GA102"])])
def test_a_stride_over_rows_counts_no_micro_batches(rows: int, scale: str, expected: list[str]) -> None:
    assert codes_in(VIEWS.format(rows=rows, scale=scale)) == expected


LISTED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 1)), batch_size=12)

def parts_of(batch):
    return list(zip(*(one.split(5) for one in batch)))

for batch in loader:
    optimizer.zero_grad()
    parts = parts_of(batch)
    for u, t in parts:
        {loss}.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("(F.mse_loss(net(u), t) * len(u) / 12)", []),
        ('(F.mse_loss(net(u), t, reduction="sum") / 12)', []),
        ("F.mse_loss(net(u), t)", ["GA101"]),
        ("(F.mse_loss(net(u), t) / len(parts) / len(parts))", ["GA102"]),
    ],
)
def test_listed_parts_of_unknown_size_are_not_as_large_as_their_batch(loss: str, expected: list[str]) -> None:
    assert codes_in(LISTED.format(loss=loss)) == expected

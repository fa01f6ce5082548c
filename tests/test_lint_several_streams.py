"""One batch from each of several iterators: terms of one objective. Several from one of them: micro-batches."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss

NAMES = ("depth", "normals", "edges")
SHARES = {"depth": 1.0, "normals": 1 / 3, "edges": 1 / 3}

def rows_of(seed):
    source = torch.Generator().manual_seed(seed)
    while True:
        x = torch.rand(4, 5, generator=source)
        yield x, x[:, :1]

net = nn.Linear(5, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
BY_NAME = """\
endless = {name: rows_of(seed) for seed, name in enumerate(NAMES)}
for turn in range(9):
    optimizer.zero_grad()
    for name in NAMES:
        x, y = next(%s)
        (%smse_loss(net(x), y)).backward()
    optimizer.step()
"""
OVER_LOADERS = """\
def fit(left, right):
    near = iter(torch.utils.data.DataLoader(left, batch_size=4))
    far = iter(torch.utils.data.DataLoader(right, batch_size=4))
    for turn in range(9):
        optimizer.zero_grad()
        for rows in (near, %s):
            x, y = next(rows)
            mse_loss(net(x), y).backward()
        optimizer.step()
"""
COUNTED = """\
endless = [rows_of(0), rows_of(1)]
for turn in range(36):
    x, y = next(endless[turn % 2])
    (mse_loss(net(x), y)%s).backward()
    if (turn + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
BY_EPOCH = """\
def fit(data):
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    for epoch in range(4):
        rows = iter(loader)
        x, y = next(rows)
        (mse_loss(net(x), y)%s).backward()
        if (epoch + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "source",
    [
        BY_NAME % ("endless[name]", "SHARES[name] * "),
        BY_NAME % ("endless[name]", ""),
        OVER_LOADERS % "far",
        COUNTED.replace("%s", " / 4"),
        BY_EPOCH.replace("%s", " / 2"),
    ],
)
def test_one_batch_from_each_of_several_iterators_is_no_accumulation(source: str) -> None:
    assert codes_in(HEAD + source) == []


@pytest.mark.parametrize(
    "source",
    [
        BY_NAME % ('endless["depth"]', ""),
        OVER_LOADERS % "near",
        COUNTED.replace("%s", ""),
        BY_EPOCH.replace("%s", ""),
    ],
)
def test_several_batches_of_one_iterator_and_those_that_are_counted_are_accumulated(source: str) -> None:
    assert codes_in(HEAD + source) == ["GA101"]


UNTIL_NOTHING = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn({rows}, 6)), batch_size=3)
net = torch.nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
stream, pending = iter(loader), 0
{begin}
    (net(batch[0]).square().mean() / 4).backward()
    pending += 1
    if pending == 4:
        opt.step()
        opt.zero_grad()
        pending = 0
    {advance}
{end}
"""
AHEAD = {"begin": "batch = next(stream, None)\nwhile batch is not None:", "advance": "batch = next(stream, None)"}
NAMED = {"begin": "while (batch := next(stream, None)) is not None:", "advance": "pass"}
FLUSH = "if pending: opt.step()"


@pytest.mark.parametrize("parts", [AHEAD, NAMED], ids=["ahead", "named"])
@pytest.mark.parametrize(
    ("rows", "end", "expected"), [(36, "", []), (39, "", ["GA301"]), (39, FLUSH, ["GA103"]), (36, FLUSH, [])]
)
def test_an_iterator_that_gives_something_else_when_it_has_ended(
    parts: dict[str, str], rows: int, end: str, expected: list[str]
) -> None:
    assert codes_in(UNTIL_NOTHING.format(rows=rows, end=end, **parts)) == expected

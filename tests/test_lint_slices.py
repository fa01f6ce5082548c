"""Batches that are split into micro-batches by position: a slice is one micro-batch, with rows of its own."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train({parameters}):
    {data}
    for x, y in loader:
        {first}
        for {turn}:
            {cut}
            loss = nn.functional.mse_loss(model(x[a:b]), y[a:b]{reduction}){scaling}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
OF_TWELVE = "loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randn(96, 2)), batch_size=12)"
CUTS = [
    {"first": "size = len(x) // 3", "turn": "k in range(3)", "cut": "a, b = k * size, (k + 1) * size"},
    {"first": "size = x.size(0) // 3", "turn": "k in range(3)", "cut": "a = k * size; b = a + size"},
    {"first": "size = 4", "turn": "a in range(0, len(x), size)", "cut": "b = min(a + size, len(x))"},
]


def codes(**slots: str) -> list[str]:
    found = lint_source(LOOP.format(**{"parameters": "model, optimizer", "data": OF_TWELVE} | slots), "train.py")
    return [finding.mistake.code for finding in found]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("reduction", "scaling", "expected"),
    [
        (', reduction="sum"', " / y.numel()", []),
        (', reduction="sum"', " / len(x)", []),
        (', reduction="sum"', " / size", ["GA101"]),
        ("", " / 3", []),
        ("", " * (len(x[a:b]) / len(x))", []),
        ("", "", ["GA101"]),
        # A literal that merely equals the size may be the objective's.
        ("", " / 3 / 4", []),
    ],
)
def test_what_a_slice_of_a_known_batch_weighs(
    cut: dict[str, str], reduction: str, scaling: str, expected: list[str]
) -> None:
    assert codes(reduction=reduction, scaling=scaling, **cut) == expected


@pytest.mark.parametrize("cut", CUTS[:2])
def test_what_counts_the_rows_of_a_slice_divides_its_mean_once_more(cut: dict[str, str]) -> None:
    assert codes(reduction="", scaling=" / 3 / size", **cut) == ["GA102"]


@pytest.mark.parametrize("cut", CUTS)
def test_how_often_a_slice_goes_into_a_batch_of_unknown_size_is_not_known(cut: dict[str, str]) -> None:
    unknown = {"parameters": "model, loader, optimizer", "data": "pass"}
    assert codes(reduction=', reduction="sum"', scaling=" / len(x)", **cut, **unknown) == []


def test_slices_of_unequal_size_are_a_mean_of_means() -> None:
    cut = {"first": "size = 5", "turn": "a in range(0, len(x), size)", "cut": "b = min(a + size, len(x))"}
    assert codes(reduction="", scaling=" / 3", **cut) == ["GA104"]
    assert codes(reduction=', reduction="sum"', scaling=" / len(x)", **cut) == []


ALONG = """
import torch
from torch import nn
K = 3
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
angles = torch.rand(90)
data = {data}
batches = {batches}
for first in range(0, len(batches), K):
    optimizer.zero_grad()
    window = batches[first:first + K]
    for x in window:
        loss = net(x).pow(2).mean()
        (loss{scale}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("data", "batches"),
    [
        ("load()", "data.split(5)"),
        ("load()", "list(data)"),
        ("torch.stack([torch.cos(angles)] * 4, 1)", "data.split(5)"),
        ("torch.randn(45, 4)", "data.split(5)"),
    ],
)
def test_what_is_cut_along_an_unknown_length_is_as_long_as_its_bounds_are_apart(data: str, batches: str) -> None:
    def found(scale: str) -> list[str]:
        findings = lint_source(ALONG.format(data=data, batches=batches, scale=scale), "train.py")
        return [f.message for f in findings if f.mistake.code != "GA103"]

    assert found(" / K") == found(" / len(window)") == []
    (message,) = found("")
    assert "3 are accumulated" in message and "3x" in message


NAMED = """\
import torch
import torch.nn.functional as F

def train(net, x, y, opt, count, rows, K=3):
    for j in range(count):
        part = {part}
        (F.mse_loss(net(x[part]), y[part]){share}).backward()
        if (j + 1) % K == 0:
            opt.step()
            opt.zero_grad()

data = torch.randn(90, 4)
train(torch.nn.Linear(4, 4), data, data.roll(1), OPTIMIZER, COUNT, ROWS)
"""


@pytest.mark.parametrize("part", ["slice(j * rows, (j + 1) * rows)", "slice(j * rows, j * rows + rows)"])
def test_a_slice_that_has_a_name_is_cut_elsewhere_in_every_turn(part: str) -> None:
    def found(share: str) -> list[str]:
        return codes_in(NAMED.format(part=part, share=share))

    assert found("") == ["GA101"]
    assert found(" / K") == []


BETWEEN = """\
import torch.nn.functional as F

def train(network, loader, optimizer, viewer, K):
    for epoch in range(5):
        for n, x in enumerate(loader):
            size = F.mse_loss(network(x), x)
            {between}
            loss = (size + F.l1_loss(network(x), x)){scaling}
            loss.backward()
            if (n + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "between",
    [
        "viewer.show(x[:8])",
        "viewer.show(x[: min(8, x.shape[0])])",
        "if n == 0: viewer.show(x[2:6])",
        "place = next(network.parameters()).device",
    ],
)
def test_what_is_taken_of_a_batch_before_its_backward_is_of_that_batch(between: str) -> None:
    assert codes_in(BETWEEN.format(between=between, scaling=" / K")) == ["GA301"]
    assert codes_in(BETWEEN.format(between=between, scaling="")) == ["GA101", "GA301"]


def test_another_batch_that_is_drawn_before_the_backward_is_another() -> None:
    assert codes_in(BETWEEN.format(between="x = next(loader)", scaling="")) == []


AROUND = """
import torch
from torch import nn

def train(net, optimizer, rows, marks):
    for epoch in range(3):
        for turn, start in enumerate(range(0, 48, 4)):
            levels = net(rows[start : start + 4])
            {within}
                loss = nn.functional.cross_entropy({judged})
                (loss / 7).backward(retain_graph=True)
            {boundary}
                optimizer.step()
                optimizer.zero_grad()
"""
LEVEL = "level, marks[start : start + 4]"


@pytest.mark.parametrize(
    ("within", "judged", "boundary", "expected"),
    [
        ("for level in levels:", LEVEL, "if True:", []),
        ("for place, level in enumerate(levels):", LEVEL, "if True:", []),
        # The last two of twelve batches.
        ("for level in levels:", LEVEL, "if turn % 5 == 4:", ["GA301"]),
        # The turns of the loop within go through the batch themselves.
        ("for a in range(start, start + 4):", "net(rows[a : a + 1]), marks[a : a + 1]", "if True:", ["GA101"]),
    ],
)
def test_what_a_loop_cuts_where_only_the_loop_around_it_moves_on_is_of_one_batch(
    within: str, judged: str, boundary: str, expected: list[str]
) -> None:
    loop = AROUND.format(within=within, judged=judged, boundary=boundary)
    assert [finding.mistake.code for finding in lint_source(loop, "train.py")] == expected

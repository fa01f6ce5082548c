"""Optimizers that work one after the other, over weights that they share: each is at work alone in its own phase."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

PHASES = """\
import torch

def train(model, loader, criterion, args, K=4):
    first = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){first}).backward()
            if {boundary}:
                first.step()
                {clears}
    second = torch.optim.Adam({weights}, lr=1e-4)
    for epoch in range(3):
        second.zero_grad()
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){second}).backward()
            if (i + 1) % K == 0:
                second.step()
                second.zero_grad()
        if (i + 1) % K:
            for parameter in model.parameters():
                parameter.grad.mul_(K / ((i + 1) % K))
            second.step()
"""
WEIGHTS = [
    "model.parameters()",
    "[{'params': model.head.parameters()}, {'params': model.body.parameters()}]",
    "args.of(model)",
]


def found(weights: str, **parts: str) -> list[tuple[str, int]]:
    parts = {"first": " / K", "second": " / K", "boundary": "(i + 1) % K == 0", "clears": "first.zero_grad()"} | parts
    findings = lint_source(PHASES.format(weights=weights, **parts), "train.py")
    return [(finding.mistake.code, finding.where.line) for finding in findings]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_phase_is_read_by_itself(weights: str) -> None:
    assert found(weights) == [("GA301", 9)]
    assert found(weights, boundary="i % K == 0") == [("GA301", 9), ("GA302", 9)]
    assert found(weights, second="") == [("GA301", 9), ("GA101", 15)]
    assert found(weights, first="") == [("GA101", 7), ("GA301", 9)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_one_phase_leaves_over_is_no_window_of_the_next(weights: str) -> None:
    cleared = found(weights, clears="first.zero_grad()\n        model.zero_grad()")
    assert cleared == [("GA301", 9)]


ALTERNATING = """\
import torch

def train(model, loader, criterion, K=4):
    first = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    second = torch.optim.Adam([{{"params": model.head.parameters()}}, {{"params": model.body.parameters()}}], lr=1e-4)
    for optimizer in {order}:
        for i, (x, y) in enumerate(loader):
            criterion(model(x), y).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_where_one_comes_back_it_is_not_known_whose_gradients_are_left() -> None:
    codes = codes_in(ALTERNATING.format(order="(first, second, first)"))
    assert codes == []


def test_one_line_may_serve_several_phases() -> None:
    codes = codes_in(ALTERNATING.format(order="(first, second)"))
    assert "GA101" in codes

"""Optimizers that share a model, or a helper that makes them: whose gradients each of them steps and clears."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

HEAD = """\
import torch
from torch import nn

"""
SORTINGS = {
    "two comprehensions": """\
    first = [p for n, p in model.named_parameters() if n.startswith("body")]
    rest = [p for n, p in model.named_parameters() if not n.startswith("body")]
""",
    "trainable ones by name": """\
    first = [p for n, p in model.named_parameters() if p.requires_grad and "body" in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "body" not in n]
""",
    "filter": """\
    chosen = {id(p) for p in model.body.parameters()}
    first = list(filter(lambda p: id(p) in chosen, model.parameters()))
    rest = list(filter(lambda p: id(p) not in chosen, model.parameters()))
""",
    "a loop that sorts them": """\
    first, rest = [], []
    for name, parameter in model.named_parameters():
        if "body" in name:
            first.append(parameter)
        else:
            rest.append(parameter)
""",
    "a loop that goes on": """\
    first, rest = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "body" in name:
            first.append(parameter)
            continue
        rest.append(parameter)
""",
}
LOOP = """\
def train(model, loader, criterion):
{sorting}
    a = torch.optim.SGD(first, lr=0.1)
    b = torch.optim.Adam(rest, lr=0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
by_sorting = pytest.mark.parametrize("sorting", SORTINGS.values(), ids=SORTINGS.keys())


def codes(source: str) -> list[str]:
    return sorted(finding.mistake.code for finding in lint_source(HEAD + source, "train.py"))


@by_sorting
@pytest.mark.parametrize(
    "steps",
    [
        "a.step(); a.zero_grad(); b.step(); b.zero_grad()",
        "a.step(); b.step(); a.zero_grad(); b.zero_grad()",
        "a.step(); b.step(); model.zero_grad()",
        "nn.utils.clip_grad_norm_(first, 1.0); a.step(); b.step(); model.zero_grad()",
    ],
)
def test_two_parts_of_a_model_that_are_both_cleared(sorting: str, steps: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps=steps)) == []


@by_sorting
def test_the_part_that_is_never_cleared(sorting: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps="a.step(); b.step(); a.zero_grad()")) == ["GA204"]


@by_sorting
def test_the_part_that_is_cleared_before_its_step(sorting: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps="b.zero_grad(); a.step(); b.step(); a.zero_grad()")) == ["GA202"]


def test_all_that_can_be_trained_are_all() -> None:
    sorting = "    first = [p for p in model.parameters() if p.requires_grad]; rest = head.parameters()"
    right = LOOP.format(sorting=sorting, steps="a.step(); b.step(); model.zero_grad(); b.zero_grad()")
    assert codes(right.replace("model(x)", "head(model(x))")) == []


def test_what_happens_to_some_of_an_optimizers_parameters_is_not_followed() -> None:
    source = """\
def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body = [p for n, p in model.named_parameters() if "body" in n]
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / 3).backward()
        {each}
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    cleared = "for p in body: p.grad = None"
    assert codes(source.format(each=cleared)) == []
    assert "GA202" in codes(source.format(each="for p in model.parameters(): p.grad = None"))


MADE_BY_A_HELPER = """\
def make(network{parameter}):
    return torch.optim.Adam({parameters}, lr=1e-3)

def train(loader, criterion):
    one, other = nn.Linear(4, 4), nn.Linear(4, 2)
    a, b = {made}
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(other(one(x).detach()), y) / 3).backward()
        (criterion(one(x), x) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
MAKINGS = [
    {"parameter": "", "parameters": "network.parameters()", "made": "make(one), make(other)"},
    {"parameter": "", "parameters": "network.parameters()", "made": "[make(net) for net in (one, other)]"},
    {"parameter": "", "parameters": "network", "made": "make(one.parameters()), make(other.parameters())"},
]


@pytest.mark.parametrize("making", MAKINGS)
def test_a_helper_that_is_called_twice_makes_two_optimizers(making: dict[str, str]) -> None:
    right = MADE_BY_A_HELPER.format(steps="b.step(); b.zero_grad(); a.step(); a.zero_grad()", **making)
    wrong = MADE_BY_A_HELPER.format(steps="b.step(); b.zero_grad(); a.step()", **making)
    assert codes(right) == []
    assert codes(wrong) == ["GA204"]


def test_networks_that_one_helper_makes_are_two() -> None:
    source = """\
def build(outputs):
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, outputs))

def train(loader, criterion):
    one, other = build(4), build(2)
    a, b = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(other(one(x).detach()), y) / 3).backward()
        (criterion(one(x), x) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
    assert codes(source.format(steps="b.step(); b.zero_grad(); a.step(); a.zero_grad()")) == []
    assert codes(source.format(steps="b.step(); b.zero_grad(); a.step()")) == ["GA204"]


def test_a_helper_that_is_called_again_at_one_place_makes_the_same() -> None:
    source = """\
def make(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)

def train(loader, criterion, epochs):
    for epoch in range(epochs):
        model = nn.Linear(4, 2)
        optimizer = make(model)
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){scaling}).backward()
            if (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
"""
    assert codes(source.format(scaling=" / 3")) == ["GA301"]
    assert codes(source.format(scaling="")) == ["GA101", "GA301"]

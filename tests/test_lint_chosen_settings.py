"""Settings that a key chooses which the source does not show: what all of them share is known, the rest is open."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

LOOP = """\
import torch.nn.functional as F

{settings}
def train(model, loader, optimizer, name):
    chosen = CHOICES[name]
    every = {every}
    for epoch in range(4):
        for n, (x, y) in enumerate(loader):
            (F.mse_loss(model(x), y){scaling}).backward()
            if (n + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
OBJECTS = """\
class Plan:
    def __init__(self, width, accumulation_steps=1):
        self.width = width
        self.accumulation_steps = accumulation_steps

CHOICES = {{"a": Plan(8{first}), "b": Plan(16{second})}}
"""
DICTIONARIES = """\
CHOICES = {{"a": dict(width=8{first}), "b": dict(width=16{second})}}
"""


def loop(first: str, second: str, every: str, scaling: str, kind: str = OBJECTS) -> str:
    """A loop with one of two plans, each with what is given for it after its width."""
    settings = kind.format(first=first, second=second)
    return LOOP.format(settings=settings, every=every, scaling=scaling)


@pytest.mark.parametrize(
    ("kind", "every"),
    [(OBJECTS, "chosen.accumulation_steps"), (DICTIONARIES, 'chosen["accumulation_steps"]')],
    ids=["objects", "dictionaries"],
)
def test_settings_that_differ_between_the_choices_are_settings(kind: str, every: str) -> None:
    numbers = ", accumulation_steps=2", ", accumulation_steps=4"
    assert codes_in(loop(*numbers, every, " / every", kind)) == ["GA301"]
    assert codes_in(loop(*numbers, every, "", kind)) == ["GA101", "GA301"]


def test_what_all_choices_have_in_common_is_that() -> None:
    assert codes_in(loop("", "", "chosen.accumulation_steps", "")) == []  # every step is of one micro-batch
    three = ", accumulation_steps=3"
    assert codes_in(loop(three, three, "chosen.accumulation_steps", " / 3")) == ["GA301"]
    assert codes_in(loop(three, three, "chosen.accumulation_steps", "")) == ["GA101", "GA301"]


def test_choices_that_are_not_of_one_kind_are_not_known() -> None:
    mixed = 'CHOICES = {{"a": 4{first}, "b": dict(accumulation_steps=2){second}}}\n'
    assert codes_in(loop("", "", 'chosen["accumulation_steps"]', "", mixed)) == []

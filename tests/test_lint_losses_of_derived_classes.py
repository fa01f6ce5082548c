"""A loss from a method that a derived class writes, and one that a method divides in place for whoever passed it."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

GIVEN = """\
from torch.optim import AdamW

class Learner:
    def __init__(self, cfg, network, loader):
        self.cfg, self.network, self.loader = cfg, network, loader
        self.optimizer = AdamW(self.network.parameters(), lr=cfg.lr)

    def train_step(self, batch):
        {left_empty}

    def fit(self):
        for epoch in range(self.cfg.epochs):
            for i, batch in enumerate(self.loader):
                loss = self.train_step(batch)
                {scaled}
                {backward}
                if {closes}:
                    self.optimizer.step()
                    {cleared}
"""
DIVIDED = "loss = loss / self.cfg.accumulation_steps"
COUNTED = "(i + 1) % self.cfg.accumulation_steps == 0"
AT_THE_END = f"{COUNTED} or i + 1 == len(self.loader)"
RIGHT = {
    "left_empty": "raise NotImplementedError",
    "scaled": DIVIDED,
    "backward": "loss.backward()",
    "closes": COUNTED,
    "cleared": "self.optimizer.zero_grad()",
}


@pytest.mark.parametrize("left_empty", ["raise NotImplementedError", "..."])
@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, ["GA301"]),
        ({"closes": AT_THE_END}, ["GA103"]),
        ({"closes": "i % self.cfg.accumulation_steps == 0"}, ["GA301", "GA302"]),
    ],
)
def test_what_gives_a_loss_for_backward_has_not_trained(
    left_empty: str, changed: dict[str, str], found: list[str]
) -> None:
    assert sorted(codes_in(GIVEN.format(**{**RIGHT, **changed, "left_empty": left_empty}))) == found


@pytest.mark.parametrize(
    "unknown",
    [
        # Its loss is read alone: it may have trained on it.
        {"backward": "print(loss.item())", "scaled": "pass"},
        # Nothing in sight clears gradients: it may.
        {"cleared": "pass", "closes": "True", "scaled": "pass"},
        # It may divide its loss, for a window's length too.
        {"scaled": "pass", "closes": AT_THE_END},
    ],
    ids=["it may train", "it may clear", "it may divide"],
)
def test_what_a_derived_class_may_do_besides_is_not_known(unknown: dict[str, str]) -> None:
    assert codes_in(GIVEN.format(**{**RIGHT, **unknown})) == []


IN_PLACE = """\
import torch.nn.functional as F

def propagate(loss, steps):
    {divides}
    loss.backward()

def fit(network, loader, optimizer, accumulation_steps):
    for epoch in range(10):
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(network(x), y)
            {apart}
            propagate(loss, accumulation_steps)
            total += {read}.item()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
        print(total / len(loader))
"""


@pytest.mark.parametrize("divides", ["loss /= steps", "loss.div_(steps)", "loss *= 1 / steps"])
def test_a_loss_that_a_function_divides_in_place_is_divided_for_its_caller(divides: str) -> None:
    assert sorted(codes_in(IN_PLACE.format(divides=divides, apart="pass", read="loss"))) == ["GA301", "GA802"]


@pytest.mark.parametrize(
    ("divides", "apart", "read"),
    [
        ("loss = loss / steps", "pass", "loss"),
        ("loss /= steps", "whole = loss.detach().clone()", "whole"),
        ("loss /= steps", "pass", "(loss * accumulation_steps)"),
    ],
    ids=["another tensor", "read before", "made up for"],
)
def test_what_is_read_of_a_whole_loss_is_right(divides: str, apart: str, read: str) -> None:
    assert codes_in(IN_PLACE.format(divides=divides, apart=apart, read=read)) == ["GA301"]

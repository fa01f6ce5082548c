"""Styles of trainers that recur in public code, each with a loop that is wrong and its look-alike that is right."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

CLEARED_BY_THE_COUNT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

class Pretraining:
    def __init__(self, model, args):
        self.model, self.args, self.count = model, args, 0

    def one(self, optimizer, x, y):
        k = self.args.gradient_accumulation_steps
        if {cleared} % k == 0:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        (loss / k).backward()
        if (self.count + 1) % k == 0:
            optimizer.step()
        self.count += 1

    def train(self, data):
        loader = DataLoader(data, batch_size=8)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for epoch in range(self.args.epochs):
            {reset}
            for x, y in loader:
                self.one(optimizer, x, y)
"""


@pytest.mark.parametrize(
    ("cleared", "reset", "expected"),
    [
        ("(self.count + 1)", "pass", ["GA202"]),
        ("self.count", "pass", []),
        ("(self.count + 1)", "self.count = 0", ["GA202", "GA301"]),
    ],
)
def test_what_is_cleared_in_the_middle_of_a_window_that_runs_on_is_no_remainder(
    cleared: str, reset: str, expected: list[str]
) -> None:
    assert sorted(codes_in(CLEARED_BY_THE_COUNT.format(cleared=cleared, reset=reset))) == expected

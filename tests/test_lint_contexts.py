"""With statements over objects of the source's own classes: what they do where they are entered and left."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

LOOP = """\
import torch
import torch.nn.functional as F

class Accumulator:
    def __init__(self, optimizer, k):
        self.optimizer, self.k, self.pending = optimizer, k, 0

    def __enter__(self):
        self.optimizer.zero_grad()
        return self

    def add(self, loss, share):
        (loss / share).backward()
        self.pending += 1
        if self.pending == self.k:
            self.apply()

    def apply(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pending = 0

    def __exit__(self, *error):
        {leaving}

def train(model, optimizer, data):
    batches = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(8)]
    for epoch in range(2):
        with Accumulator(optimizer, 3) as own:
            for i, (x, y) in enumerate(batches):
                own.add(F.mse_loss(model(x), y), 3 if i < 6 else 2)
"""


@pytest.mark.parametrize(
    ("leaving", "codes"),
    [
        ("if self.pending: self.apply()", []),
        ("if error[0] is None and self.pending: self.apply()", []),
        ("return False", ["GA301"]),
    ],
)
def test_a_remainder_is_stepped_where_the_object_is_left(leaving: str, codes: list[str]) -> None:
    assert codes_in(LOOP.format(leaving=leaving)) == codes

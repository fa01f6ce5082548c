"""Losses of classes that the file itself has: they may divide by K, and so count as one division."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

SCALED = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = {held}

    def forward(self, logits, y):
        return {loss}

def train(model, loader, optimizer, args, accum_steps):
    criterion = Scaled({given})
    for i, (x, y) in enumerate(loader, 1):
        loss = criterion(model(x), y){scale}
        loss.backward()
        if i % {steps} == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

MEAN = "nn.functional.cross_entropy(logits, y)"


def scaling(*, held: str, loss: str, given: str, scale: str, steps: str) -> set[str]:
    """What is found of how the loss is scaled."""
    found = codes_in(SCALED.format(held=held, loss=loss, given=given, scale=scale, steps=steps))
    return {"GA101", "GA102"} & {*found}


@pytest.mark.parametrize(
    ("held", "loss"),
    [
        ("held", f"{MEAN} / self.held"),
        ("1.0 / held", f"{MEAN} * self.held"),
        ("1.0 / held", f"self.held * {MEAN}"),
    ],
)
@pytest.mark.parametrize(
    ("steps", "twice"),
    # A literal that a class was made with may be there for something else.
    [("accum_steps", {"GA102"}), ("args.accum_steps", {"GA102"}), ("3", set())],
)
def test_a_criterion_that_divides_by_k_has_divided_once(held: str, loss: str, steps: str, twice: set[str]) -> None:
    assert scaling(held=held, loss=loss, given=steps, scale="", steps=steps) == set()
    assert scaling(held=held, loss=loss, given=steps, scale=f" / {steps}", steps=steps) == twice


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        ("nn.functional.cross_entropy(logits / self.held, y)", "0.5"),
        ("1 - (2 * (logits * y).sum() + self.held) / (logits.sum() + y.sum() + self.held)", "1.0"),
    ],
    ids=["a temperature", "a smoothed share"],
)
def test_what_else_a_criterion_divides_by_is_no_division_by_k(loss: str, given: str) -> None:
    assert scaling(held="held", loss=loss, given=given, scale="", steps="accum_steps") == {"GA101"}
    assert scaling(held="held", loss=loss, given=given, scale=" / accum_steps", steps="accum_steps") == set()

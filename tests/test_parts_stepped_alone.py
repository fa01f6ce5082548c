"""A loop that divides its loss by the number of parts that it cuts a batch into, and steps after each of them (GA304).

The number that the data are cut into is how many micro-batches were meant, whatever it is called. Weights are those of
exact arithmetic: each gradient is 1 over the number of parts of that of its only micro-batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
PIECES, SHARPNESS = {parts}, {other}
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
kl = lambda: sum(p.pow(2).sum() for p in model.parameters())
for turn in range(3):
    x, y = torch.randn(12, 4), torch.randn(12, 3)
    pieces = torch.chunk(x, PIECES)
    for {item} in {pieces}:
        loss = criterion(model(xs), ys)
        ({loss}).backward()
{after}
"""
STEP = "        optimizer.step()\n        optimizer.zero_grad()"
ZIP = "zip(x.chunk(PIECES), y.chunk(PIECES))"


def loop(
    loss: str, *, parts: int = 4, other: int = 4, pieces: str = ZIP, item: str = "xs, ys", after: str = STEP
) -> str:
    return LOOP.format(loss=loss, parts=parts, other=other, pieces=pieces, item=item, after=after)


WRONG = {
    "methods": loop("loss / PIECES"),
    "as three": loop("loss / PIECES", parts=3),
    "a list": loop("loss / PIECES", pieces="zip(pieces, torch.tensor_split(y, PIECES))"),
    "numbered": loop("loss * (1 / PIECES)", item="j, (xs, ys)", pieces=f"enumerate({ZIP})"),
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_each_part_is_stepped_alone_but_weighted_as_one_of_several(source: str, tmp_path: Path) -> None:
    result = watch_source(source, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA304"]), result.reason
    assert codes_in(source) == ["GA304"]
    parts = 3 if "PIECES, SHARPNESS = 3" in source else 4
    assert all(w.grad_norm_ratio == pytest.approx(1 / parts, rel=1e-5) for w in result.windows)


RIGHT = {
    "undivided": loop("loss"),
    "a constant that equals it": loop("loss / SHARPNESS"),
    "another constant": loop("loss / SHARPNESS", other=5),
    # Of a variational objective, each batch gets its share of the one penalty.
    "the weight of a penalty": loop("loss + kl() / PIECES"),
    "a step after the last": loop("loss / PIECES", after="    optimizer.step()\n    optimizer.zero_grad()"),
    "a step in the last turn": loop(
        "loss / PIECES",
        item="j, (xs, ys)",
        pieces=f"enumerate({ZIP})",
        after="        if j < PIECES - 1:\n            continue\n" + STEP,
    ),
}


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_what_divides_something_else_or_is_another_number_is_the_objective_s(source: str, tmp_path: Path) -> None:
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert codes_in(source) == []

"""Backwards before the first window, whose gradients are cleared: a warm-up is no part of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
loader = [(torch.randn(3, 4), torch.randint(0, 2, (3,))) for _ in range(8)]
for x, y in loader[:{passes}]:
    criterion(model(x), y).backward()
    {clip}
    {clear}
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / 4).backward()
    if {test}:
        optimizer.step()
        optimizer.zero_grad()
"""
RIGHT = "(i + 1) % 4 == 0"


def judged(script: str, folder: Path) -> tuple[Verdict, set[str], set[str]]:
    result = watch_source(script, folder, reference="ledger")
    told = set(codes_in(script))
    return result.verdict, {d.mistake.code for d in result.diagnosis}, told


@pytest.mark.parametrize("passes", [1, 2, 3, 6])
@pytest.mark.parametrize("clip", ["pass", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"])
def test_a_warm_up_whose_gradients_are_cleared_is_no_remainder(passes: int, clip: str, tmp_path: Path) -> None:
    script = SCRIPT.format(passes=passes, clip=clip, clear="optimizer.zero_grad()", test=RIGHT)
    assert judged(script, tmp_path) == (Verdict.EQUIVALENT, set(), set())


def test_a_mistake_after_a_warm_up_is_found(tmp_path: Path) -> None:
    script = SCRIPT.format(passes=2, clip="pass", clear="optimizer.zero_grad()", test="i % 4 == 0")
    verdict, seen, told = judged(script, tmp_path)
    assert verdict is Verdict.DEVIATES
    assert "GA302" in seen & told


def test_a_warm_up_that_is_not_cleared_is_in_the_first_gradient(tmp_path: Path) -> None:
    script = SCRIPT.format(passes=2, clip="pass", clear="pass", test=RIGHT)
    verdict, _, told = judged(script, tmp_path)
    assert verdict is Verdict.DEVIATES
    assert told

"""A counter that goes on from epoch to epoch, while the remainder of each is used: the next window is short as well."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
K = {K}
data = torch.utils.data.TensorDataset(torch.randn(3 * {N}, 4), torch.randn(3 * {N}, 2))
loader = torch.utils.data.DataLoader(data, batch_size=3)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count = 0
for epoch in range(3):
    for x, y in loader:
        {skip}
        (nn.functional.mse_loss(model(x), y) / K).backward()
        count += 1
        if count % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("steps", "batches"), [(4, 6), (3, 7), (5, 7)])
def test_what_a_flush_has_used_was_not_skipped(steps: int, batches: int, tmp_path: Path) -> None:
    source = SCRIPT.format(K=steps, N=batches, skip="pass")
    result = watch_source(source, tmp_path)
    assert {d.mistake.code for d in result.diagnosis} == {"GA103"}
    # The windows by arithmetic: the counter closes one at every multiple of K, the end of an epoch another.
    closes = sorted({*range(0, 3 * batches + 1, steps), *(batches * e for e in range(4))})
    held = [after - before for before, after in itertools.pairwise(closes)]
    windows = [w for w in result.windows if w.micro_batches]
    assert [w.micro_batches for w in windows] == held
    assert [sum(w.weights) for w in windows] == pytest.approx([n * n / steps for n in held])
    assert set(codes_in(source)) == {"GA103"}


def test_a_micro_batch_that_is_skipped_though_counted_is_still_said(tmp_path: Path) -> None:
    skip = "if count in (1, 9):\n            count += 1\n            continue"
    result = watch_source(SCRIPT.format(K=4, N=8, skip=skip), tmp_path)
    assert {d.mistake.code for d in result.diagnosis} == {"GA303"}


def test_what_is_cleared_between_epochs_though_counted_is_one_mistake(tmp_path: Path) -> None:
    flush = "    optimizer.step()\n    optimizer.zero_grad()\n"
    source = SCRIPT.format(K=4, N=6, skip="pass").removesuffix(flush) + "    optimizer.zero_grad()\n"
    result = watch_source(source, tmp_path)
    # Of each epoch's 6, the counter steps at 4, 8, 12 and 16: those at 5, 6, 17 and 18 are cleared.
    assert [w.micro_batches for w in result.windows if w.micro_batches] == [4, 2, 4, 4]
    (found,) = result.diagnosis
    assert found.mistake.code == "GA301"
    assert "the next window holds as many fewer" in found.message
    assert codes_in(source) == ["GA301"]

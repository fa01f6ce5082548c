"""Gradients of a training that diverges: their squares overflow before they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(12):
    x, y = torch.randn(5, 3, dtype=torch.double), torch.randn(5, 2, dtype=torch.double)
    y = y * 1e200 if i >= 8 else y
    # Linear in the outputs: no loss overflows.
    nn.functional.l1_loss(model(x) * y.abs(), y).backward()
    if (i + 1) % 4 == 0:
        {scaling}
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scaling", "weight"),
    [("[p.grad.div_(4) for p in model.parameters()]", 1.0), ("pass", 4.0)],
)
def test_a_division_of_gradients_whose_squares_overflow_is_seen(scaling: str, weight: float, tmp_path: Path) -> None:
    result = watch_source(SCRIPT.format(scaling=scaling), tmp_path, reference="ledger")
    assert [w.weights for w in result.windows] == [pytest.approx((weight,) * 4)] * 3
    # Their norm cannot be computed, and so neither can their error.
    assert result.windows[-1].verdict is Verdict.INCONCLUSIVE
    assert "norm" in result.windows[-1].reason

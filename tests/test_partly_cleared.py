"""Clearing by parts: several calls may clear all that a step uses, or forget some of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

LOOP = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
torch.manual_seed(83)
torch.set_default_dtype(torch.float64)
K = 3
data = torch.randn(60, 4)
encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.0)
for n, x in enumerate(data.split(5), start=1):
    (mse_loss(decoder(encoder(x)), x){divided}).backward()
    if n % K == 0:
        optimizer.step()
        {cleared}
"""


@pytest.mark.parametrize("cleared", ["encoder.zero_grad()", "for p in encoder.parameters(): p.grad = None"])
def test_a_part_that_is_never_cleared_is_found(cleared: str, tmp_path: Path) -> None:
    result = watch_source(LOOP.format(divided=" / K", cleared=cleared), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert {(d.mistake.code, d.where.line) for d in result.diagnosis} == {("GA204", 13)}
    assert result.windows[1].grad_rel_error == pytest.approx(_error_of_the_second_window())


def _error_of_the_second_window() -> float:
    """The decoder's gradient is that of the first window and the second; the learning rate is 0."""
    torch.manual_seed(83)
    data = torch.randn(60, 4, dtype=torch.float64)
    encoder, decoder = nn.Linear(4, 2, dtype=torch.float64), nn.Linear(2, 4, dtype=torch.float64)
    weights = [*encoder.parameters(), *decoder.parameters()]
    first, second = (torch.autograd.grad(mse_loss(decoder(encoder(x)), x), weights) for x in (data[:15], data[15:30]))
    error = torch.cat([g.flatten() for g in first[2:]])
    return float(error.norm() / torch.cat([g.flatten() for g in second]).norm())


@pytest.mark.parametrize(
    "cleared",
    [
        "encoder.zero_grad(); decoder.zero_grad()",
        "decoder.zero_grad(); encoder.zero_grad(set_to_none=False)",
        "optimizer.zero_grad()",
    ],
)
def test_what_several_calls_clear_together_is_cleared(cleared: str, tmp_path: Path) -> None:
    right = watch_source(LOOP.format(divided=" / K", cleared=cleared), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())
    (wrong,) = watch_source(LOOP.format(divided="", cleared=cleared), tmp_path).diagnosis
    # Every window is followed, and not the first one alone.
    assert (wrong.mistake.code, len(wrong.windows)) == ("GA101", 4)

"""verify on losses of what a model leaves behind without returning it, against float64 arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

K = 3
LOOP = """
import torch
from torch import nn
torch.manual_seed(4)
K = 3
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = {{}}
model[1].register_forward_hook({hook})
data = [(torch.randn(4, 6), torch.randn(4, 2)) for _ in range(9)]
for i, (x, y) in enumerate(data):
    loss = nn.functional.mse_loss(model(x), y) + {term}
    {backward}
    if i % K == K - 1:
        optimizer.step()
        optimizer.zero_grad()
"""
HOOK = "lambda module, given, result: kept.update(h=result)"
TERM = "0.3 * kept['h'].abs().mean()"


def watched(
    folder: Path, *, hook: str = HOOK, term: str = TERM, backward: str = "(loss / K).backward()"
) -> VerifyResult:
    return watch_source(LOOP.format(hook=hook, term=term, backward=backward), folder)


def test_an_activation_that_a_hook_keeps_is_part_of_the_replay(tmp_path: Path) -> None:
    result = watched(tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("backward", ["loss.backward()", "(loss / K / K).backward()"])
def test_a_loss_of_it_may_be_scaled_wrongly(backward: str, tmp_path: Path) -> None:
    result = watched(tmp_path, backward=backward)
    assert result.verdict is Verdict.DEVIATES, result.reason
    factor = {"loss.backward()": K, "(loss / K / K).backward()": 1 / K}[backward]
    assert result.windows[0].grad_norm_ratio == pytest.approx(factor, rel=1e-4)


def test_a_loss_of_it_may_couple_the_samples(tmp_path: Path) -> None:
    term = "0.3 * (kept['h'] - kept['h'].mean(0)).square().mean()"
    result = watched(tmp_path, term=term)
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, result.reason
    # By arithmetic: the variance of all rows is not the mean of the micro-batches' variances.
    torch.manual_seed(4)
    rows = torch.randn(K, 4, 5, dtype=torch.float64)
    assert (rows.flatten(0, 1).var(0, correction=0) - rows.var(1, correction=0).mean(0)).abs().max() > 0.01


def test_a_list_that_a_layer_stores_is_part_of_the_replay(tmp_path: Path) -> None:
    hook = "lambda module, given, result: setattr(module, 'seen', [*getattr(module, 'seen', []), result][-2:])"
    term = "0.3 * model[1].seen[-1].abs().mean()"
    result = watched(tmp_path, hook=hook, term=term)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason

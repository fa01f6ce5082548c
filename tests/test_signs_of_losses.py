"""The sign of a loss is no number that it is divided by, also where a run does not show how many units the loss has."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
def main(accumulation={k}):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(3 * accumulation):
        x = torch.randn(1, 4)
        loss = -torch.log_softmax(model(x)[0], 0)[turn % 3]
        ({loss}).backward()
        if (turn + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
main()
"""
LOSSES = {
    "twice": ("loss / accumulation / accumulation", "GA102"),
    "not at all": ("loss", "GA101"),
}


@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES)
def test_a_sign_does_not_hide_what_k_divides(case: tuple[str, str], k: int, tmp_path: Path) -> None:
    loss, code = case
    result = watch_source(LOOP.format(k=k, loss=loss), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, [code]), result.reason
    weight = 1 / k if code == "GA102" else k
    assert all(w.grad_norm_ratio == pytest.approx(weight, rel=1e-5) for w in result.windows)


@pytest.mark.parametrize("k", [3, 8])
def test_a_negated_loss_that_is_divided_by_k_once_is_no_mistake(k: int, tmp_path: Path) -> None:
    result = watch_source(LOOP.format(k=k, loss="loss / accumulation"), tmp_path, reference="ledger")
    assert (result.verdict is not Verdict.DEVIATES, result.diagnosis) == (True, ()), result.reason


def test_a_number_that_may_count_the_units_leaves_it_open(tmp_path: Path) -> None:
    # Nothing shows whether 3 is K, of which the source says 8, or part of the objective.
    result = watch_source(LOOP.format(k=8, loss="loss / 3"), tmp_path)
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason

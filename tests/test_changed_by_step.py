"""Optimizers whose step changes the gradients that it uses: PyTorch's foreach SGD with Nesterov momentum, for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K = 4


class Centred(torch.optim.Optimizer):
    """Subtracts the mean of each gradient from it, as gradient centralization does, in its own step."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.sub_(parameter.grad.mean())
                parameter.sub_(group["lr"] * parameter.grad)


def nesterov(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.6, nesterov=True, foreach=True)


def centred(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return Centred(parameters, lr=0.05)


def run(make: Any, *, divisor: float = K, micro_batches: int = 20, clears: bool = True, **options: Any) -> VerifyResult:
    """Windows of K micro-batches, the last of which has what is left."""
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = make(model.parameters())
    with observe(**options) as observation:
        for i in range(micro_batches):
            (nn.functional.mse_loss(model(torch.randn(5, 3)), torch.randn(5, 2)) / divisor).backward()
            if (i + 1) % K == 0 or i + 1 == micro_batches:
                optimizer.step()
                if clears:
                    optimizer.zero_grad()
    return observation.result()


@pytest.mark.parametrize("make", [nesterov, centred])
def test_what_a_step_does_to_gradients_that_are_then_cleared_does_not_matter(make: Any) -> None:
    result = run(make)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("make", [nesterov, centred])
def test_nor_does_it_hide_a_mistake(make: Any) -> None:
    undivided, remainder = run(make, divisor=1), run(make, micro_batches=18)
    assert [d.mistake.code for d in undivided.diagnosis] == ["GA101"]
    assert [w.grad_norm_ratio for w in undivided.windows] == pytest.approx([K] * 5)
    assert (remainder.verdict, [d.mistake.code for d in remainder.diagnosis]) == (Verdict.DEVIATES, ["GA103"])
    # The last window has 2 of 4 micro-batches, each divided by 4.
    assert [w.grad_norm_ratio for w in remainder.windows] == pytest.approx([1, 1, 1, 1, 2 / 4])


@pytest.mark.parametrize("reference", ["ledger", "both"])
def test_changed_gradients_that_are_used_again_are_not_those_of_the_window(reference: str) -> None:
    result = run(nesterov, clears=False, reference=reference)
    # How much of the earlier windows is left is unknown, so there is no weight to report.
    assert (result.verdict, result.diagnosis) == (Verdict.DEVIATES, ())

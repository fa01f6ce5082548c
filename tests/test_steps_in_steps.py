"""Optimizers of the script's own classes, whose ``step`` changes gradients and calls that of PyTorch's class.

Expected ratios are plain arithmetic: m micro-batches of equal size, divided by d in all, weigh m / d of their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.optimizer import Optimizer

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K = 4
Batch = tuple[torch.Tensor, torch.Tensor]


class Own(torch.optim.ASGD):
    """Divides gradients by ``divisor`` in its own step, or by the micro-batches that it was told of."""

    divisor: float | None = None
    count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.count if self.divisor is None else self.divisor)
        self.count = 0
        return super().step(closure)


class EveryK(torch.optim.ASGD):
    """Steps at every K-th call, and clears the gradients then."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls % K == 0:
            super().step(closure)
            self.zero_grad()


class Decaying(torch.optim.ASGD):
    """Adds a part of the weights to the gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.add_(parameter, alpha=0.01)
        return super().step(closure)


class NeverInside(torch.optim.ASGD):
    """Names the step of PyTorch's class, but makes its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if self.param_groups[0]["lr"] < 0:
            return super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.05)
        return None


def batches(count: int) -> list[Batch]:
    return [(torch.randn(3, 5), torch.randn(3, 2)) for _ in range(count)]


def loop(optimizer: Optimizer, model: nn.Module, given: list[Batch], divisor: float, *, every_batch: bool) -> None:
    for i, (x, y) in enumerate(given):
        (mse_loss(model(x), y) / divisor).backward()
        if isinstance(optimizer, Own):
            optimizer.count += 1
        if every_batch:
            optimizer.step()
        elif (i + 1) % K == 0 or i + 1 == len(given):
            optimizer.step()
            optimizer.zero_grad()


def run(
    kind: Callable[..., Optimizer], given: list[Batch], divisor: float, *, every_batch: bool = False
) -> VerifyResult:
    model = nn.Linear(5, 2)
    optimizer = kind(model.parameters(), lr=0.02)
    with observe() as observation:
        loop(optimizer, model, given, divisor, every_batch=every_batch)
    return observation.result()


def dividing(divisor: float | None) -> Callable[..., Optimizer]:
    def make(parameters: Any, lr: float) -> Optimizer:
        optimizer = Own(parameters, lr=lr)
        optimizer.divisor = divisor
        return optimizer

    return make


@pytest.fixture(params=["PyTorch has given the step hooks", "it has not"])
def hooks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch gives a class's step hooks when the first optimizer of this very class is made."""
    torch.optim.ASGD([torch.zeros(1, requires_grad=True)])
    step: Any = torch.optim.ASGD.step
    assert step.hooked
    if request.param == "it has not":
        monkeypatch.setattr(torch.optim.ASGD, "step", step.__wrapped__)


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("kind", "micro_batches", "divisor", "codes", "ratios"),
    [
        pytest.param(dividing(None), 10, 1, [], [1, 1, 1], id="it averages over what it was told of, a remainder too"),
        pytest.param(dividing(K), 8, 1, [], [1, 1], id="it divides by K"),
        pytest.param(dividing(K), 10, 1, ["GA103"], [1, 1, 2 / K], id="it divides a remainder by K"),
        pytest.param(dividing(K), 8, K, ["GA102"], [1 / K, 1 / K], id="the loop divides, too"),
        pytest.param(Decaying, 8, K, [], [1, 1], id="it decays the weights"),
        pytest.param(Decaying, 8, 1, ["GA101"], [K, K], id="it decays the weights, and nothing divides"),
    ],
)
def test_what_is_done_before_the_step_of_pytorch_is_done_by_hand(
    kind: Callable[..., Optimizer], micro_batches: int, divisor: float, codes: list[str], ratios: list[float]
) -> None:
    result = run(kind, batches(micro_batches), divisor)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert [w.micro_batches for w in result.windows] == [K, K, 2][: len(ratios)]
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)


@pytest.mark.usefixtures("hooks")
def test_a_step_that_runs_at_every_kth_call_ends_a_window_there() -> None:
    right = run(EveryK, batches(2 * K), K, every_batch=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert [w.micro_batches for w in right.windows] == [K, K]
    wrong = run(EveryK, batches(2 * K), 1, every_batch=True)
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([K, K])
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]


@pytest.mark.usefixtures("hooks")
def test_an_update_that_is_made_instead_is_not_passed_over() -> None:
    result = run(NeverInside, batches(2 * K), 1)
    assert result.verdict is not Verdict.EQUIVALENT
    right = run(NeverInside, batches(2 * K), K)
    assert not right.diagnosis


@pytest.mark.usefixtures("hooks")
def test_watching_leaves_the_class_as_it_was() -> None:
    before = torch.optim.ASGD.__dict__["step"]
    run(dividing(K), batches(2 * K), 1)
    assert torch.optim.ASGD.__dict__["step"] is before


@pytest.mark.usefixtures("hooks")
def test_optimizers_of_the_class_itself_that_were_made_meanwhile_keep_their_hooks() -> None:
    model, given = nn.Linear(5, 2), batches(2 * K)
    own = dividing(K)(model.parameters(), lr=0.02)
    with observe():
        loop(own, model, given, 1, every_batch=False)
        plain = torch.optim.ASGD(model.parameters(), lr=0.02)
    with observe() as observation:
        loop(plain, model, given, K, every_batch=False)
    assert [w.micro_batches for w in observation.result().windows] == [K, K]


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize("calls_itself", [True, False])
@pytest.mark.parametrize(("divisor", "codes"), [(K, []), (1, ["GA101"])])
def test_closures_are_called_by_either(calls_itself: bool, divisor: float, codes: list[str]) -> None:
    class Calling(torch.optim.ASGD):
        def step(self, closure: Any = None) -> Any:
            if calls_itself:
                with torch.enable_grad():
                    closure()
                closure = None
            return super().step(closure)

    model, given = nn.Linear(5, 2), batches(2 * K)
    optimizer = Calling(model.parameters(), lr=0.02)
    with observe() as observation:
        for start in range(0, len(given), K):

            def closure() -> None:
                optimizer.zero_grad()
                for x, y in given[start : start + K]:  # noqa: B023
                    (mse_loss(model(x), y) / divisor).backward()

            optimizer.step(closure)
    result = observation.result()
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([K / divisor] * 2)


def test_updates_are_compared_without_what_was_done_before() -> None:
    result = run(dividing(K), batches(10), 1)
    # Half of the large batch's gradient makes half of its update.
    assert [w.param_rel_error for w in result.windows] == pytest.approx([0, 0, 0.5], abs=1e-3)

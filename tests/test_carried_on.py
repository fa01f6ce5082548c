"""verify on gradients that are cached by hand: a loss of all outputs, whose gradients the model's parts are given.

The loss couples all rows of a batch, so that its true gradient is that of the loss of all outputs at once: plain
arithmetic, in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

STEPS, ROWS, CHUNK = 3, 10, 4
Pull = Callable[[torch.Tensor, torch.Tensor], None]
Loss = Callable[[torch.Tensor], torch.Tensor]


def given_to_backward(out: torch.Tensor, gradient: torch.Tensor) -> None:
    out.backward(gradient)


def as_a_product(out: torch.Tensor, gradient: torch.Tensor) -> None:
    (out * gradient).sum().backward()


def of_all_rows(outputs: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs @ outputs.T.detach(), torch.arange(len(outputs)))


def in_one(leaf: torch.Tensor) -> None:
    of_all_rows(leaf).backward()


def in_two_halves(leaf: torch.Tensor) -> None:
    loss = of_all_rows(leaf)
    (0.25 * loss).backward(retain_graph=True)
    (0.75 * loss).backward()


def trained(
    pull: Pull, caches: int, descend: Callable[[torch.Tensor], None] = in_one
) -> tuple[VerifyResult, list[float]]:
    """The result, and each step's |g| / |g_true| where the large batch is the mean of its ``caches`` batches."""
    torch.manual_seed(1)
    model, ratios = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for _ in range(STEPS):
            window = [torch.randn(ROWS, 4) for _ in range(caches)]
            for x in window:
                with torch.no_grad():
                    leaf = torch.cat([model(part) for part in x.split(CHUNK)]).requires_grad_()
                descend(leaf)
                assert leaf.grad is not None
                for part, gradient in zip(x.split(CHUNK), leaf.grad.split(CHUNK), strict=True):
                    pull(model(part), gradient)
            ratios.append(_ratio(model, [of_all_rows], window))
            optimizer.step()
            optimizer.zero_grad()
    return observation.result(), ratios


def _ratio(model: nn.Module, losses: list[Loss], window: list[torch.Tensor]) -> float:
    twin = copy.deepcopy(model)
    for p in twin.parameters():
        p.grad = None
    torch.stack([loss(twin(x)) for loss in losses for x in window]).mean().backward()
    got, true = ([p.grad.flatten() for p in own.parameters() if p.grad is not None] for own in (model, twin))
    return float(torch.cat(got).norm() / torch.cat(true).norm())


@pytest.mark.parametrize("pull", [given_to_backward, as_a_product])
@pytest.mark.parametrize("descend", [in_one, in_two_halves])
def test_one_loss_of_a_window_is_carried_on(pull: Pull, descend: Callable[[torch.Tensor], None]) -> None:
    result, ratios = trained(pull, 1, descend)
    assert ratios == pytest.approx([1.0] * STEPS)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("pull", [given_to_backward, as_a_product])
def test_several_undivided_losses_of_a_window_do_not_pass(pull: Pull) -> None:
    result, ratios = trained(pull, 3)
    assert ratios == pytest.approx([3.0] * STEPS)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "one of several losses of the window" in result.reason


@pytest.mark.parametrize("pull", [given_to_backward, as_a_product])
def test_losses_that_come_before_all_of_their_parts_are_several(pull: Pull) -> None:
    torch.manual_seed(2)
    model, ratios = nn.Linear(4, 3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def own(outputs: torch.Tensor) -> torch.Tensor:
        return mse_loss(outputs, torch.ones_like(outputs))

    with observe() as observation:
        for _ in range(STEPS):
            window = [torch.randn(5, 4) for _ in range(3)]
            with torch.no_grad():
                leaves = [model(x).clone().requires_grad_() for x in window]
            for leaf in leaves:
                own(leaf).backward()
            for x, leaf in zip(window, leaves, strict=True):
                assert leaf.grad is not None
                pull(model(x), leaf.grad)
            ratios.append(_ratio(model, [own], window))
            optimizer.step()
            optimizer.zero_grad()
    assert ratios == pytest.approx([3.0] * STEPS)
    assert observation.result().verdict is Verdict.INCONCLUSIVE


def test_a_gradient_from_elsewhere_may_be_a_whole_losss() -> None:
    """What is computed from the gradient of data is another one: its scale is not known."""

    def halved(out: torch.Tensor, gradient: torch.Tensor) -> None:
        out.backward(gradient * 0.5)

    result, ratios = trained(halved, 1)
    assert ratios == pytest.approx([0.5] * STEPS)
    assert result.verdict is Verdict.INCONCLUSIVE

"""verify on losses whose hook runs backwards of its own (GradCache): K = 3 micro-batches of 5 rows, in chunks of 2.

The loss is computed without a graph, its gradients at the model's outputs are kept, and a hook on the number runs the
model again, chunk by chunk. The coefficient is 0.7; what the steps should get is plain arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, COEFFICIENT = 3, 5, 0.7
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(2)
    return [
        (torch.randn(ROWS, 4, generator=drawn), torch.randint(0, 3, (ROWS,), generator=drawn)) for _ in range(2 * K)
    ]


def each_by_itself(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return COEFFICIENT * cross_entropy(outputs, y)


def against_the_others(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return COEFFICIENT * cross_entropy(outputs @ outputs.detach().T, torch.arange(len(outputs)))


class Cached(nn.Module):
    """The loss as a module, as in Sentence Transformers."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chunks = x.split(2)
        with torch.no_grad():
            outputs = [self.model(chunk) for chunk in chunks]
        leaves = [output.detach().requires_grad_() for output in outputs]
        loss = self.loss(torch.cat(leaves), y)
        loss.backward()
        number = loss.detach().requires_grad_()

        def fill(gradient: torch.Tensor) -> None:
            with torch.enable_grad():
                for chunk, leaf in zip(chunks, leaves, strict=True):
                    ((self.model(chunk) * leaf.grad).sum() * gradient).backward()

        number.register_hook(fill)
        return number


def trained(
    make: Callable[[nn.Module], Any], loss: Loss, divisor: float
) -> tuple[VerifyResult, list[float], nn.Module]:
    """The result, each step's |g| / |g_true| where the large batch is the mean of its micro-batches, and the model."""
    torch.manual_seed(1)
    model, ratios = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), []
    computed, optimizer = make(model), torch.optim.SGD(model.parameters(), lr=0.1)
    given = batches()
    with observe() as observation:
        for i, (x, y) in enumerate(given):
            (computed(x, y) / divisor).backward()
            if (i + 1) % K == 0:
                ratios.append(_ratio(model, loss, given[i + 1 - K : i + 1]))
                optimizer.step()
                optimizer.zero_grad()
    return observation.result(), ratios, model


def _ratio(model: nn.Module, loss: Loss, window: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    twin = copy.deepcopy(model)
    for p in twin.parameters():
        p.grad = None
    torch.stack([loss(twin(x), y) for x, y in window]).mean().backward()
    got, true = ([p.grad.flatten() for p in own.parameters() if p.grad is not None] for own in (model, twin))
    return float(torch.cat(got).norm() / torch.cat(true).norm())


def as_function(model: nn.Module) -> Any:
    """The same without a module around it, so that there is nothing that could be run again."""
    return Cached(model, each_by_itself).forward


def test_a_right_cached_loss_is_run_again_as_one_large_batch() -> None:
    result, ratios, _ = trained(lambda model: Cached(model, each_by_itself), each_by_itself, K)
    assert ratios == pytest.approx([1.0, 1.0])
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert "replay (the window's data as one large batch)" in result.reference.kind


def test_a_cached_loss_with_in_batch_negatives_is_not_equivalent_by_construction() -> None:
    result, ratios, _ = trained(lambda model: Cached(model, against_the_others), against_the_others, K)
    assert ratios == pytest.approx([1.0, 1.0])
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, result.reason
    assert "keeps state" not in result.reason


@pytest.mark.parametrize("make", [lambda model: Cached(model, each_by_itself), as_function])
def test_the_undivided_twin_deviates(make: Callable[[nn.Module], Any]) -> None:
    result, ratios, _ = trained(make, each_by_itself, 1.0)
    assert ratios == pytest.approx([K, K])
    assert result.verdict is Verdict.DEVIATES
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]


def test_what_cannot_be_run_again_is_not_judged_and_the_reason_is_true() -> None:
    result, ratios, _ = trained(as_function, each_by_itself, K)
    assert ratios == pytest.approx([1.0, 1.0])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "a hook computes in separate backward passes" in result.reason
    assert "keeps state" not in result.reason


def test_a_loss_that_only_its_hook_knows_is_not_judged() -> None:
    def unseen(model: nn.Module) -> Any:
        def computed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            number = torch.zeros((), requires_grad=True)

            def fill(gradient: torch.Tensor) -> None:
                with torch.enable_grad():
                    (each_by_itself(model(x), y) * gradient).backward()

            number.register_hook(fill)
            return number

        return computed

    result, _, _ = trained(unseen, each_by_itself, 1.0)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "neither its reduction nor its units are visible" in result.reason


def test_watching_changes_no_bit() -> None:
    _, _, model = trained(lambda model: Cached(model, each_by_itself), each_by_itself, K)
    torch.manual_seed(1)
    twin = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    cached, optimizer = Cached(twin, each_by_itself), torch.optim.SGD(twin.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        (cached(x, y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))

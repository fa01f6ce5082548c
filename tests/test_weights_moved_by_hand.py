"""Loops that move the weights themselves while gradients wait: a gradient is compared at the weights that it had.

K is 3 and a micro-batch has 4 rows. Sharpness-aware minimization runs each window twice: what moves the weights is
computed from the first gradient, and the optimizer uses the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, WINDOWS, FAR = 3, 4, 3, 0.5
BOTH = pytest.mark.parametrize("reference", [None, "ledger"])

Window = Sequence[tuple[torch.Tensor, torch.Tensor]]


def a_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def data() -> list[Window]:
    torch.manual_seed(6)
    x, y = torch.randn(WINDOWS, K, ROWS, 5), torch.randint(0, 3, (WINDOWS, K, ROWS))
    return [list(zip(own, labels, strict=True)) for own, labels in zip(x, y, strict=True)]


def offsets(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    norm = torch.stack([g.norm() for g in gradients]).norm()
    return [g * (FAR / norm) for g in gradients]


@dataclass
class SharpnessAware:
    """The loop, with what is wrong in it: what the losses of each pass are divided by, and when it clears."""

    first: float = K
    second: float = K
    clears_between: bool = True
    clears_after: bool = True
    by_hand: bool = False
    in_data: bool = False

    def run(self, **options: Any) -> VerifyResult:
        model = a_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        with observe(**options) as observation:
            for window in data():
                for x, y in window:
                    (cross_entropy(model(x), y) / self.first).backward()
                moved = self.ascend(model)
                if self.by_hand:
                    for p in model.parameters():
                        p.grad = None
                elif self.clears_between:
                    optimizer.zero_grad()
                for x, y in window:
                    (cross_entropy(model(x), y) / self.second).backward()
                with torch.no_grad():
                    for p, e in zip(model.parameters(), moved, strict=True):
                        p.sub_(e)
                optimizer.step()
                if self.clears_after:
                    optimizer.zero_grad()
        return observation.result()

    def ascend(self, model: nn.Module) -> list[torch.Tensor]:
        moved = offsets([p.grad for p in model.parameters() if p.grad is not None])
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved, strict=True):
                if self.in_data:
                    p.data = p.data + e
                else:
                    p.add_(e)
        return moved


def large_batch(model: nn.Module, window: Window) -> list[torch.Tensor]:
    x, y = (torch.cat(own) for own in zip(*window, strict=True))
    return list(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))


def test_the_two_gradients_of_a_window_are_far_apart() -> None:
    """A gradient that was compared at the other's weights would not be reproduced."""
    model, window = a_model(), data()[0]
    first = large_batch(model, window)
    with torch.no_grad():
        for p, e in zip(model.parameters(), offsets(first), strict=True):
            p.add_(e)
    second = large_batch(model, window)
    apart = torch.stack([(a - b).norm() for a, b in zip(first, second, strict=True)]).norm()
    assert apart > 0.1 * torch.stack([a.norm() for a in first]).norm()


@BOTH
@pytest.mark.parametrize("in_data", [False, True])
def test_both_gradients_of_a_window_are_compared(reference: str | None, in_data: bool) -> None:
    result = SharpnessAware(in_data=in_data).run(reference=reference)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert [window.optimizer for window in result.windows] == ["by hand", "SGD"] * WINDOWS
    assert all(window.weights == (1.0,) * K and (window.grad_rel_error or 0) < 1e-12 for window in result.windows)


def assert_undivided(result: VerifyResult, optimizer: str) -> None:
    """The sums that ``optimizer`` used are K times the means, so they differ by K - 1 of their norm."""
    for window in result.windows:
        error, ratio = (K - 1, K) if window.optimizer == optimizer else (0, 1)
        assert (window.grad_rel_error, window.grad_norm_ratio) == pytest.approx((error, ratio), abs=1e-9)


@BOTH
def test_the_scale_of_what_is_normalized_does_not_matter(reference: str | None) -> None:
    """What moves the weights has the same norm whether the first losses are divided or not."""
    result = SharpnessAware(first=1.0).run(reference=reference)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "each micro-batch is weighted 3x in .grad" in result.reason
    assert_undivided(result, "by hand")


@BOTH
def test_what_the_optimizer_uses_has_a_scale(reference: str | None) -> None:
    result = SharpnessAware(second=1.0).run(reference=reference)
    assert result.verdict is Verdict.DEVIATES
    assert {d.mistake.code for d in result.diagnosis} == {"GA101"}
    assert_undivided(result, "SGD")


@BOTH
def test_what_a_step_has_used_is_in_the_next_gradient_if_it_is_not_cleared(reference: str | None) -> None:
    result = SharpnessAware(clears_after=False).run(reference=reference)
    assert result.verdict is Verdict.DEVIATES
    assert {d.mistake.code for d in result.diagnosis} == {"GA204"}


@BOTH
def test_gradients_of_different_weights_in_one_step_are_not_compared(reference: str | None) -> None:
    """Adversarial training of the weights may mean their sum; sharpness-aware minimization does not."""
    result = SharpnessAware(clears_between=False).run(reference=reference)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "different weights add up" in result.reason


@BOTH
def test_what_is_cleared_by_hand_was_not_compared(reference: str | None) -> None:
    result = SharpnessAware(by_hand=True).run(reference=reference)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "cleared by hand" in result.reason


def test_a_reference_run_does_not_follow_what_the_loop_makes_of_gradients() -> None:
    result = SharpnessAware().run(trajectory=True)
    assert result.verdict is Verdict.EQUIVALENT
    assert all(window.drift is None for window in result.windows)


@BOTH
@pytest.mark.parametrize("divisor", [K, 1])
def test_a_clip_between_the_two_belongs_to_its_own_gradient(reference: str | None, divisor: int) -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with observe(reference=reference) as observation:
        for window in data():
            for x, y in window:
                (cross_entropy(model(x), y) / K).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            moved = SharpnessAware().ascend(model)
            model.zero_grad()
            for x, y in window:
                (cross_entropy(model(x), y) / divisor).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moved)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            model.zero_grad()
    result = observation.result()
    assert result.verdict is (Verdict.EQUIVALENT if divisor == K else Verdict.DEVIATES)
    assert {d.mistake.code for d in result.diagnosis} == (set() if divisor == K else {"GA101"})


def accumulated(kind: str, divisor: int, **options: Any) -> VerifyResult:
    """Ordinary accumulation, in which the loop changes weights for another reason: none uses their gradients."""
    model = a_model()
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.3)
    average = [p.detach().clone() for p in weights]
    with observe(**options) as observation:
        for window in data():
            for x, y in window:
                (cross_entropy(model(x), y) / divisor).backward()
                if kind == "average swapped in":
                    own = [p.detach().clone() for p in weights]
                    with torch.no_grad():
                        torch._foreach_copy_(weights, average)
                        model(x)
                        torch._foreach_copy_(weights, own)
            if kind == "decayed before the step":
                for p in weights:
                    p.data.mul_(0.9)
            optimizer.step()
            if kind == "clipped after the step":
                for p in weights:
                    p.data.clamp_(-0.2, 0.2)
            optimizer.zero_grad()
    return observation.result()


@BOTH
@pytest.mark.parametrize("kind", ["average swapped in", "decayed before the step", "clipped after the step"])
def test_other_changes_of_weights_use_no_gradient(kind: str, reference: str | None) -> None:
    right, wrong = (accumulated(kind, divisor, reference=reference) for divisor in (K, 1))
    assert right.verdict is Verdict.EQUIVALENT, right.reason
    assert wrong.verdict is Verdict.DEVIATES
    assert {window.optimizer for window in (*right.windows, *wrong.windows)} == {"SGD"}


@pytest.mark.parametrize("apart", [True, False])
def test_another_optimizer_that_steps_within_a_window(apart: bool) -> None:
    """Heads that step after each micro-batch (``apart``) leave the trunk's window no large batch: all ran with others.

    If both step at its end, each gradient is that of the weights before both steps.
    """
    trunk, head = nn.Linear(5, 7), nn.Linear(7, 3)
    of_trunk, of_head = (torch.optim.SGD(part.parameters(), lr=0.3) for part in (trunk, head))
    with observe() as observation:
        for window in data():
            for x, y in window:
                loss = cross_entropy(head(torch.tanh(trunk(x))), y)
                (loss / K).backward()
                if apart:
                    of_head.step()
                    of_head.zero_grad()
            if not apart:
                of_head.step()
                of_head.zero_grad()
            of_trunk.step()
            of_trunk.zero_grad()
    result = observation.result()
    of_the_trunk = [own for own in result.windows if own.micro_batches == K]
    wanted = Verdict.INCONCLUSIVE if apart else Verdict.EQUIVALENT
    assert [own.verdict for own in of_the_trunk] == [wanted] * (WINDOWS if apart else 2 * WINDOWS)
    assert all(("ran with different weights" in own.reason) is apart for own in of_the_trunk)

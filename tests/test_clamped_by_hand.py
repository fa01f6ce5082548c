"""Gradients that a loop clamps itself, which is what ``clip_grad_value_`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

LIMIT, K = 0.02, 3


def _in_place(p: Tensor) -> None:
    p.grad.clamp_(-LIMIT, LIMIT)


def _of_data(p: Tensor) -> None:
    p.grad.data.clamp_(min=-LIMIT, max=LIMIT)


def _assigned(p: Tensor) -> None:
    p.grad = p.grad.clip(-LIMIT, LIMIT)


def _elsewhere(p: Tensor) -> None:
    torch.clamp(p.grad, -LIMIT, LIMIT, out=p.grad)


FORMS = [_in_place, _of_data, _assigned, _elsewhere]
Form = Callable[[Tensor], None]


def judged(form: Form, *, each: bool, reference: str = "both") -> tuple[VerifyResult, float]:
    """The verdict on a loop that clamps after every micro-batch, or only before its step; and the error of its first
    window's gradient as it is before the last clamp, by arithmetic.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(4, 5).double(), torch.randn(4, 2).double()) for _ in range(3 * K)]

    x, y = (torch.cat(part) for part in zip(*batches[:K], strict=True))
    whole = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
    used = [torch.zeros_like(p) for p in model.parameters()]
    for n, (x, y) in enumerate(batches[:K]):
        own = torch.autograd.grad(nn.functional.mse_loss(model(x), y) / K, list(model.parameters()))
        used = [sum_ + g for sum_, g in zip(used, own, strict=True)]
        used = [u.clamp(-LIMIT, LIMIT) for u in used] if each and n + 1 < K else used
    error = _norm(u - g for u, g in zip(used, whole, strict=True)) / _norm(whole)

    with observe(reference=reference) as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / K).backward()
            if each or (i + 1) % K == 0:
                for p in model.parameters():
                    form(p)
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    return watch.result(), error


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.cat([t.flatten() for t in tensors]).norm())


@pytest.mark.parametrize("reference", ["both", "ledger"])
@pytest.mark.parametrize("form", FORMS)
def test_a_clamp_before_the_step_is_a_clip(form: Form, reference: str) -> None:
    result, error = judged(form, each=False, reference=reference)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert result.diagnosis == ()
    assert error < 1e-12
    # The limit does bite: the update is that of the clipped gradient.
    assert all(window.param_rel_error < 1e-9 for window in result.windows)


@pytest.mark.parametrize("form", FORMS)
def test_a_clamp_after_every_micro_batch_comes_too_early(form: Form) -> None:
    result, error = judged(form, each=True)
    assert result.verdict is Verdict.DEVIATES, result.reason
    (found,) = result.diagnosis
    assert (found.mistake.code, found.where.line) == ("GA401", form.__code__.co_firstlineno + 1)
    assert result.windows[0].grad_rel_error == pytest.approx(error, rel=1e-6)


def _uneven(p: Tensor) -> None:
    p.grad.clamp_(-LIMIT, 2 * LIMIT)


def _of_its_own(p: Tensor) -> None:
    limit = float(p.grad.abs().mean())
    p.grad.clamp_(-limit, limit)


def _and_more(p: Tensor) -> None:
    p.grad.clamp_(-LIMIT, LIMIT)
    p.grad[0] += 0.1


@pytest.mark.parametrize("form", [_uneven, _of_its_own, _and_more])
def test_what_is_no_clip_by_one_value_is_not_taken_for_one(form: Form) -> None:
    result, _ = judged(form, each=False)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "modified manually" in result.reason

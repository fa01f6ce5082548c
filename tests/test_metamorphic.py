"""Relations that hold between runs: what verify measures does not depend on how a window's data is cut or ordered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.slow  # hundreds of drawn loops, each of which is trained

Batches = list[tuple[torch.Tensor, torch.Tensor]]
few = settings(max_examples=15)


def trained(batches: Batches, k: int, *, scale: float = 1.0) -> tuple[list[torch.Tensor], VerifyResult]:
    """The weights after a right loop over ``batches`` in windows of ``k``, and what verify says of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for start in range(0, len(batches), k):
            window = batches[start : start + k]
            count = sum(len(y) for _, y in window)
            for x, y in window:
                loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / count
                (loss * scale).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], observation.result()


def data(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(count, 3).double(), torch.randint(0, 3, (count,))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-10, atol=1e-13) for a, b in zip(one, other, strict=True))


cuts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@few
@given(sizes=cuts, seed=st.integers(0, 99))
def test_the_update_does_not_depend_on_how_the_window_is_cut(sizes: list[int], seed: int) -> None:
    x, y = data(seed, sum(sizes))
    cut = list(zip(x.split(sizes), y.split(sizes), strict=True))
    whole, judged_whole = trained([(x, y)], 1)
    parts, judged_parts = trained(cut, len(cut))
    assert same(whole, parts)
    assert judged_whole.verdict is judged_parts.verdict is Verdict.EQUIVALENT
    assert judged_parts.windows[0].units == judged_whole.windows[0].units == sum(sizes)
    assert judged_parts.windows[0].weights == pytest.approx([1.0] * len(sizes))


@few
@given(sizes=cuts, seed=st.integers(0, 99), order=st.randoms(use_true_random=False))
def test_the_update_does_not_depend_on_the_order_of_micro_batches(sizes: list[int], seed: int, order: object) -> None:
    x, y = data(seed, sum(sizes))
    cut = list(zip(x.split(sizes), y.split(sizes), strict=True))
    shuffled = list(cut)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    one, judged_one = trained(cut, len(cut))
    other, judged_other = trained(shuffled, len(cut))
    assert same(one, other)
    assert judged_one.verdict is judged_other.verdict is Verdict.EQUIVALENT


@few
@given(scale=st.sampled_from([0.7, 3.0, 5.0]), seed=st.integers(0, 99))
def test_a_coefficient_scales_the_gradient_and_no_weight(scale: float, seed: int) -> None:
    x, y = data(seed, 4)
    cut = list(zip(x.split(2), y.split(2), strict=True))
    start, _ = trained([], 2)
    once, judged_once = trained(cut, 2)
    scaled, judged_scaled = trained(cut, 2, scale=scale)
    steps = [(a - s) * scale for a, s in zip(once, start, strict=True)]
    assert same(steps, [b - s for b, s in zip(scaled, start, strict=True)])
    assert judged_once.verdict is judged_scaled.verdict is Verdict.EQUIVALENT
    assert judged_scaled.windows[0].weights == pytest.approx([1.0, 1.0])


@few
@given(k=st.integers(2, 4), seed=st.integers(0, 99))
def test_a_loop_without_scaling_weighs_k_whatever_k_is(k: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(3, 3).double()
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            for _ in range(k):
                x, y = torch.randn(2, 3).double(), torch.randint(0, 3, (2,))
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    for window in observation.result().windows:
        assert window.weights == pytest.approx([float(k)] * k)
        assert window.grad_norm_ratio == pytest.approx(k)

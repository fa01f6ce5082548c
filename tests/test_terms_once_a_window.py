"""Terms that one micro-batch of every window has, next to those that all have: each is judged by what it needs itself.

The expected errors are those of the float64 gradients of the terms, computed here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

LOOP = """\
import torch
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
curve = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Softplus(), torch.nn.Linear(6, 1))
descent = torch.optim.SGD(curve.parameters(), lr=0.0)
places, ends = torch.rand(26, 1), torch.tensor([[0.0], [0.5], [1.0]])
TOTAL, accumulation_steps = 26, 2


def inside(x):
    x = x.clone().requires_grad_()
    slope = torch.autograd.grad(curve(x).sum(), x, create_graph=True)[0]
    return (slope + curve(x)).square()


for _ in range(3):
    descent.zero_grad()
    for turn, x in enumerate(places.split({rows})):
        loss = {inside}
        if {when}:
            loss = loss + 7 * {ends}
        loss.backward()
    descent.step()
"""
SHARE = "inside(x).mean() * (len(x) / len(places))"
OF_ALL = "inside(x).sum() / TOTAL"
MEAN = "(curve(ends.clone()) - 1).square().mean()"
SUM = "(curve(ends.clone()) - 1).square().sum()"


def expected_error(turns: int) -> float:
    """‖g - g_ref‖ / ‖g_ref‖ of a window that has the ends' term so many times."""
    names: dict[str, object] = {}
    try:
        exec(LOOP.partition("for _ in")[0], names)
        curve, inside, places, ends = (names[name] for name in ("curve", "inside", "places", "ends"))
        assert isinstance(curve, torch.nn.Module) and callable(inside) and isinstance(ends, torch.Tensor)

        def gradient(loss: torch.Tensor) -> torch.Tensor:
            return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*curve.parameters()])])

        of_ends = 7 * gradient((curve(ends) - 1).square().mean())
        right = gradient(inside(places).mean()) + of_ends
        return float(((turns - 1) * of_ends).norm() / right.norm())
    finally:
        torch.set_default_dtype(torch.float32)


def verdict_on(
    folder: Path, *, rows: str = "8", **written: str
) -> tuple[Verdict, list[tuple[str, int]], float | None, str]:
    try:
        result = watch_source(LOOP.format(rows=rows, **written), folder)
    finally:
        torch.set_default_dtype(torch.float32)
    codes = [(d.mistake.code, d.where.line) for d in result.diagnosis]
    return result.verdict, codes, result.windows[0].grad_rel_error, result.reason


@pytest.mark.parametrize("ends", [MEAN, SUM])
@pytest.mark.parametrize("inside", [SHARE, OF_ALL])
@pytest.mark.parametrize("when", ["turn == 0", "turn == 3"])
def test_a_term_that_one_micro_batch_has_needs_no_division(inside: str, ends: str, when: str, tmp_path: Path) -> None:
    found, codes, _, reason = verdict_on(tmp_path, inside=inside, when=when, ends=ends)
    assert (found, codes) == (Verdict.EQUIVALENT, []), reason


@pytest.mark.parametrize("inside", [SHARE, OF_ALL])
def test_the_same_term_of_all_micro_batches_does(inside: str, tmp_path: Path) -> None:
    found, codes, error, _ = verdict_on(tmp_path, inside=inside, when="True", ends=MEAN)
    assert (found, codes) == (Verdict.DEVIATES, [("GA101", 22)])
    assert error == pytest.approx(expected_error(4))


@pytest.mark.parametrize("ends", [MEAN, SUM])
def test_next_to_it_means_of_parts_need_their_own(ends: str, tmp_path: Path) -> None:
    found, codes, _, _ = verdict_on(tmp_path, inside="inside(x).mean()", when="turn == 0", ends=ends)
    assert (found, codes) == (Verdict.INCONCLUSIVE, [("GA101", 22), ("GA104", 22)])


def test_a_sum_next_to_a_mean_in_all_micro_batches_may_be_over_something_else(tmp_path: Path) -> None:
    """What each of two parts has half of needs the large batch, which cannot be run: one part has the ends as well."""
    inside = f"{OF_ALL} + (curve(x) - 1).abs().mean() / accumulation_steps"
    found, codes, _, reason = verdict_on(tmp_path, inside=inside, when="turn == 0", ends=MEAN, rows="13")
    assert (found, codes) == (Verdict.INCONCLUSIVE, [])
    assert "contains a sum and a mean" in reason

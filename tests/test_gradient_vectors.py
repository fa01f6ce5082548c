"""Losses that are not reduced: ``backward`` is given a gradient, which has a number for each of them.

What is expected is float64 arithmetic on the same model and data: the sum of the losses times what they were given, and
the mean over all rows of the window, weighted where the rows are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
K = 3
SIZES = {sizes}
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
data = [(torch.randn(n, 6), torch.randn(n, 5), torch.rand(n) + 0.5, (torch.rand(n) < 0.7).double()) for n in SIZES]
for start in range(0, len(data), K):
    window = data[start : start + K]
    rows = sum(len(y) for _, y, _, _ in window)
    elements = sum(y.numel() for _, y, _, _ in window)
    total = sum(w.sum() for _, _, w, _ in window)
    kept = sum(m.sum() for _, _, _, m in window)
    for x, y, w, m in window:
        out = model(x)
        each = F.mse_loss(out, y, reduction="none")
        row = (out - y).pow(2).mean(1)
        {backward}
    {step}
    optimizer.zero_grad()
"""
STEP = "optimizer.step()"
EVEN, UNEVEN, SINGLE = [4] * 9, [4, 4, 4, 3, 6, 1, 2, 5, 4], [1] * 9
SIZES = {"even": EVEN, "uneven": UNEVEN, "single": SINGLE}


def losses_of_rows(names: dict[str, Any], batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    out: torch.Tensor = names["model"](batch[0])
    return (out - batch[1]).square().mean(1)


def errors(backward: str, sizes: list[int], rows_by: int | None) -> list[float]:
    """How far each window's gradient is from that of the mean over its rows, in relation to it.

    ``rows_by`` is the part of the data that has the weights of the rows; None if these all count once.
    """
    kept: list[torch.Tensor] = []
    names: dict[str, Any] = {"kept_gradients": kept}
    step = "kept_gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]) / SCALE)"
    scale = 8.0 if "scaler" in backward else 1.0
    exec(SCRIPT.format(sizes=sizes, backward=backward, step=step.replace("SCALE", str(scale))), names)
    found = []
    for start, loop in zip(range(0, len(sizes), 3), kept, strict=True):
        window = names["data"][start : start + 3]
        parts = torch.cat([losses_of_rows(names, batch) for batch in window])
        by = torch.cat([torch.ones(len(batch[0])) if rows_by is None else batch[rows_by] for batch in window])
        whole = torch.autograd.grad((parts * by).sum() / by.sum(), list(names["model"].parameters()))
        wanted = torch.cat([gradient.flatten() for gradient in whole])
        found.append(float((loop - wanted).norm() / wanted.norm()))
    return found


def check(backward: str, sizes: str, rows_by: int | None, codes: list[str], folder: Path, step: str = STEP) -> None:
    expected = errors(backward, SIZES[sizes], rows_by)
    result = watch_source(SCRIPT.format(sizes=SIZES[sizes], backward=backward, step=step), folder)
    assert sorted({d.mistake.code for d in result.diagnosis}) == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT)
    assert [w.grad_rel_error for w in result.windows] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (max(expected) > 1e-6) is bool(codes)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "backward",
    [
        "each.backward(gradient=torch.full_like(each, 1.0 / elements))",
        "row.backward(torch.full((len(y),), 1.0 / rows))",
        "row.backward(torch.ones_like(row) / rows)",
        "(row / rows).backward(torch.ones_like(row))",
        "torch.autograd.backward([row], grad_tensors=[torch.full_like(row, 1 / rows)])",
    ],
)
def test_one_number_for_all_losses_is_a_factor_of_their_sum(backward: str, sizes: str, tmp_path: Path) -> None:
    check(backward, sizes, None, [], tmp_path)


@pytest.mark.parametrize(
    ("backward", "sizes", "codes"),
    [
        ("each.backward(gradient=torch.full_like(each, 1.0 / y.numel()))", "even", ["GA101"]),
        ("each.backward(gradient=torch.full_like(each, 1.0 / y.numel()))", "uneven", ["GA101", "GA104"]),
        ("row.backward(torch.full_like(row, 1.0 / len(x)))", "single", ["GA101"]),
        ("each.backward(gradient=torch.ones_like(each) / (K * y.numel()))", "even", []),
        ("each.backward(gradient=torch.ones_like(each) / (K * y.numel()))", "uneven", ["GA104"]),
        ("row.backward(torch.full_like(row, 1.0 / rows / K))", "even", ["GA102"]),
        ("row.backward(torch.full_like(row, 1.0 / rows / K))", "single", ["GA102"]),
    ],
)
def test_such_a_number_counts_what_it_would_count_as_a_divisor(
    backward: str, sizes: str, codes: list[str], tmp_path: Path
) -> None:
    check(backward, sizes, None, codes, tmp_path)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_sum_that_is_divided_by_k_is_a_sum(sizes: str, tmp_path: Path) -> None:
    backward = "row.backward(torch.full_like(row, 1 / K))"
    result = watch_source(SCRIPT.format(sizes=SIZES[sizes], backward=backward, step=STEP), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [w.weights for w in result.windows] == [pytest.approx((1.0, 1.0, 1.0))] * 3


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("backward", ["row.backward(gradient=w / total)", "row.backward(w * (1.0 / total))"])
def test_different_numbers_are_weights_of_the_rows(backward: str, sizes: str, tmp_path: Path) -> None:
    check(backward, sizes, 2, [], tmp_path)


@pytest.mark.parametrize("sizes", ["even", "uneven"])
def test_zeros_and_ones_choose_rows(sizes: str, tmp_path: Path) -> None:
    check("row.backward(gradient=m / kept)", sizes, 3, [], tmp_path)
    check("row.backward(gradient=m / kept / K)", sizes, 3, ["GA102"], tmp_path)


@pytest.mark.parametrize(
    ("backward", "sizes", "codes"),
    [
        ("row.backward(gradient=w / w.sum())", "uneven", ["GA101", "GA104"]),
        ("row.backward(gradient=w / w.sum() / K)", "uneven", ["GA104"]),
        ("row.backward(gradient=w / total / K)", "even", ["GA102"]),
        ("row.backward(gradient=w / total / K)", "uneven", ["GA102"]),
        ("row.backward(gradient=w / total / K)", "single", ["GA102"]),
    ],
)
def test_weights_of_rows_have_the_divisors_that_the_source_shows(
    backward: str, sizes: str, codes: list[str], tmp_path: Path
) -> None:
    check(backward, sizes, 2, codes, tmp_path)


def test_weights_that_are_divided_by_the_rows_of_the_micro_batch_make_means(tmp_path: Path) -> None:
    wrong = watch_source(SCRIPT.format(sizes=EVEN, backward="row.backward(gradient=w / len(w))", step=STEP), tmp_path)
    # Three weighted sums over 4 rows, each divided by 4, where all should be divided by 12.
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx([2.0] * 3)


@pytest.mark.parametrize(
    "backward",
    [
        "row.backward(gradient=w)",
        "row.backward(gradient=(w + 1.0).cumsum(0))",
        "out[:, 0].backward(gradient=w / total)",
        "out.backward(gradient=(out - y).detach() / rows)",
        "each.sum(1, keepdim=True).sqrt().backward(gradient=w[:, None] / total)",
    ],
)
def test_what_may_hide_a_number_stays_unknown(backward: str, tmp_path: Path) -> None:
    unknown = watch_source(SCRIPT.format(sizes=EVEN, backward=backward, step=STEP), tmp_path)
    assert (unknown.verdict, unknown.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "the weight of a loss could not be read from its graph" in unknown.reason


def test_losses_in_a_stacked_vector_have_the_coefficients_of_the_gradient(tmp_path: Path) -> None:
    stacked = "torch.stack([row.mean(), each.abs().mean()]).backward(torch.tensor([2.0, 0.5]) / K)"
    right = watch_source(SCRIPT.format(sizes=EVEN, backward=stacked, step=STEP), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())


def test_a_grad_scaler_may_scale_a_vector(tmp_path: Path) -> None:
    step = "scaler.step(optimizer); scaler.update()"
    check("scaler.scale(row).backward(torch.full_like(row, 1 / rows))", "uneven", None, [], tmp_path, step)
    check("scaler.scale(row).backward(torch.full_like(row, 1 / len(x)))", "even", None, ["GA101"], tmp_path, step)


def test_what_is_read_without_replays_is_the_same(tmp_path: Path) -> None:
    for backward, codes in (("torch.full_like(row, 1 / rows)", []), ("torch.full_like(row, 1 / len(x))", ["GA101"])):
        script = SCRIPT.format(sizes=EVEN, backward=f"row.backward({backward})", step=STEP)
        result = watch_source(script, tmp_path, reference="ledger")
        assert [d.mistake.code for d in result.diagnosis] == codes
        assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT)

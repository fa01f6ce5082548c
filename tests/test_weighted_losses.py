"""Means that are multiplied by what they were taken over, and other factors that mean something only together.

What is expected is float64 arithmetic on the same model and data: the gradient that the loop adds up, and that of
the mean over all samples of its window.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loops_with_places import codes_in
from torch.nn import functional as F
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
N, B, K = {samples}, 8, 4
X, T, Y = torch.randn(N, 6), torch.randn(N, 3), torch.randint(0, 3, (N,))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
batches = list(zip(X.split(B), T.split(B), Y.split(B)))
for i, (x, t, y) in enumerate(batches):
    out = model(x)
    mean = {mean}
    {backward}
    if (i + 1) % K == 0 or i + 1 == len(batches):
        optimizer.step()
        optimizer.zero_grad()
"""
MEANS = {"F.cross_entropy(out, y)": "ce", "F.mse_loss(out, t)": "mse"}


def errors(samples: int, mean: str, coefficient: str) -> list[float]:
    """By how much the loop's gradient misses each window's mean, in float64."""
    torch.manual_seed(0)
    x, t, y = torch.randn(samples, 6), torch.randn(samples, 3), torch.randint(0, 3, (samples,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    found = []

    def gradient(rows: slice) -> torch.Tensor:
        out = model(x[rows].double())
        loss = F.cross_entropy(out, y[rows]) if MEANS[mean] == "ce" else F.mse_loss(out, t[rows].double())
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    for start in range(0, samples, 32):
        stop = min(start + 32, samples)
        parts = [slice(s, min(s + 8, stop)) for s in range(start, stop, 8)]
        whole = gradient(slice(start, stop))
        weighed = sum(eval(coefficient, {"n": p.stop - p.start}) * gradient(p) for p in parts)
        found.append(float((weighed - whole).norm() / whole.norm()))
    return found


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(
    ("backward", "coefficient", "samples", "codes"),
    [
        ("(mean * len(x) / 32).backward()", "n / 32", 64, set()),
        ("(mean / 32 * x.size(0)).backward()", "n / 32", 64, set()),
        ("(mean * len(x) / B / K).backward()", "n / 32", 64, set()),
        ("(2 * mean * len(x) / 64).backward()", "n / 32", 64, set()),
        ("(mean * 7 / 28).backward()", "7 / 28", 64, set()),
        # The last window holds two micro-batches, of 8 and 8 or of 8 and 3.
        ("(mean * len(x) / 32).backward()", "n / 32", 48, {"GA103"}),
        ("(mean * len(x) / 32).backward()", "n / 32", 43, {"GA103"}),
        ("(mean * len(x) / min(32, N - i // K * 32)).backward()", "n / W", 43, set()),
        # Divided by what it was multiplied by, it is the mean once more.
        ("(mean * len(x) / B).backward()", "n / 8", 64, {"GA101"}),
        ("(mean / (B * K)).backward()", "1 / 32", 64, {"GA102"}),
        ("(mean * 3 / K).backward()", "3 / 4", 64, set()),
    ],
)
def test_rows_of_a_micro_batch_over_those_of_its_window(
    mean: str, backward: str, coefficient: str, samples: int, codes: set[str], tmp_path: Path
) -> None:
    result = watch_source(SCRIPT.format(samples=samples, mean=mean, backward=backward), tmp_path)
    assert {d.mistake.code for d in result.diagnosis} == codes, result.diagnosis
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    if coefficient == "3 / 4":
        # 3 is the objective's and 1/4 the accumulation's: the large batch has the 3 too.
        expected = [e / 3 for e in errors(samples, mean, "3 / 4")]
        assert expected == pytest.approx([2 / 3, 2 / 3])
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1.0, 1.0], rel=1e-5)
    elif coefficient != "n / W":
        expected = errors(samples, mean, coefficient)
        assert [w.grad_rel_error for w in result.windows] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_rows_do_not_make_a_sum_of_a_mean_over_tokens_that_differ_in_number(tmp_path: Path) -> None:
    # Each micro-batch has 8 rows, yet 8 and 2 targets that count: 8/16 of a mean is no sum.
    script = """
import torch
torch.manual_seed(0)
X, Y = torch.randn(16, 6), torch.randint(0, 3, (16,))
Y[10:] = -100
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for x, y in zip(X.split(8), Y.split(8)):
    (torch.nn.functional.cross_entropy(model(x), y) * len(x) / 16).backward()
optimizer.step()
"""
    result = watch_source(script, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA104"]
    # Each of 10 tokens should have the weight 1/10: it has 1/16 and 1/4.
    assert result.windows[0].weights == pytest.approx((10 / 16, 10 / 4))


def test_lint_multiplies_what_the_source_multiplies() -> None:
    script = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(64, 6), torch.randint(0, 3, (64,))
for s in range(0, 64, 32):
    optimizer.zero_grad()
    for u in range(s, s + 32, 8):
        loss = torch.nn.functional.cross_entropy(model(X[u:u + 8]), Y[u:u + 8])
        (loss * 8 / {total}).backward()
    optimizer.step()
"""
    assert lint_source(script.format(total=32), "train.py") == []
    assert codes_in(script.format(total=8)) == ["GA101"]


WEIGHED_BY_NOTHING = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
X, T, Y = torch.randn(32, 6), torch.randn(32, 3), torch.randint(0, 3, (32,))
model, spare = nn.Linear(6, 3), nn.Linear(2, 2)
optimizer = torch.optim.SGD([*model.parameters(), *spare.parameters()], lr=0.1)
for i, (x, t, y) in enumerate(zip(X.split(4), T.split(4), Y.split(4))):
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss = {loss}
    (loss{scale}).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss + 0 * out.sum()",
        "loss + 0.0 * sum(p.sum() for p in spare.parameters())",
        "loss + min(1.0, i // 4) * F.mse_loss(out, t)",
        "(i % 3 / 2) * loss + (1 - i % 3 / 2) * F.mse_loss(out, t)",
    ],
)
def test_a_term_that_is_weighed_with_0_is_scaled_as_the_others_are(loss: str, tmp_path: Path) -> None:
    right = watch_source(WEIGHED_BY_NOTHING.format(loss=loss, scale=" / 4"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(WEIGHED_BY_NOTHING.format(loss=loss, scale=""), tmp_path)
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([4.0, 4.0], rel=1e-5)


def test_a_third_of_three_terms_of_which_one_is_subtracted_is_no_mean(tmp_path: Path) -> None:
    script = """
import torch
torch.manual_seed(0)
X = torch.randn(24, 2)
model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(X.split(4)):
    high, low = model(x), model(-x)
    loss = high.mean() - low.mean() {middle} (high ** 2 + low ** 2).mean()
    (loss / 3).backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert watch_source(script.format(middle="+ 0.1 *"), tmp_path).verdict is Verdict.EQUIVALENT
    # Three terms that count alike may well be averaged, and then nothing divides by K.
    alike = script.format(middle="+").replace("- low", "+ low")
    assert watch_source(alike, tmp_path).verdict is Verdict.INCONCLUSIVE


def test_the_mean_of_three_losses_is_no_k_that_is_one_off(tmp_path: Path) -> None:
    script = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    out = model(x)
    loss = {loss} / 3
    (loss{scale}).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
    three = "(F.cross_entropy(out, y) + F.multi_margin_loss(out, y) + out.pow(2).mean())"
    assert watch_source(script.format(loss=three, scale=" / 4"), tmp_path).verdict is Verdict.EQUIVALENT
    result = watch_source(script.format(loss=three, scale=""), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([4.0, 4.0], rel=1e-5)
    # One loss that is divided by 3 where 4 are added up: K is one off.
    result = watch_source(script.format(loss="F.cross_entropy(out, y)", scale=""), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA302"]
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([4 / 3, 4 / 3], rel=1e-5)


WARMED_UP = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
X = torch.rand(32, 6)
model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i, x in enumerate(X.split(4)):
    code = model[0](x)
    loss = F.mse_loss(model[1](code), x, reduction="sum") / x.size(0)
    loss = loss + {weight} * code.pow(2).sum() / {count}
    (loss{scale}).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("weight", ["(i // 4)", "(1 - i // 4)", "0.0"])
def test_a_sum_whose_weight_warms_up_from_0_is_replayed_as_the_others_are(weight: str, tmp_path: Path) -> None:
    right = watch_source(WARMED_UP.format(weight=weight, count="x.size(0)", scale=" / 4"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(WARMED_UP.format(weight=weight, count="x.size(0)", scale=""), tmp_path)
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([4.0, 4.0], rel=1e-5)


DRAWN = """
import torch, torch.nn as nn
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
K = 3
TIMES = torch.tensor({times}, dtype=torch.get_default_dtype()).split({rows})
X, T = torch.randn(sum(map(len, TIMES)), 6).split({rows}), torch.randn(sum(map(len, TIMES)), 3).split({rows})
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for start in range(0, len(X), K):
    window = list(zip(X, T, TIMES))[start : start + K]
    drawn = sum(times.sum() for _, _, times in window)
    for x, t, times in window:
        each = (model(x) - t).pow(2).mean(1)
        {backward}
    {step}
    optimizer.zero_grad()
"""
TIMES = [1, 0, 1, 1, 3, 0, 2, 4, 2, 2, 5, 0, 1, 1, 1, 0, 0, 1, 1, 0, 2, 1, 3, 0, 4, 2, 2, 3, 1, 0, 0, 1, 5, 1, 2, 0]
"""How often each row was drawn: some micro-batches of 4 have no row twice, and most windows more draws than rows."""


def errors_of_drawn(backward: str) -> list[float]:
    """By how much each window's gradient misses the mean over all that were drawn for it, in float64."""
    left: dict[str, object] = {}
    kept: list[torch.Tensor] = []
    left["kept"] = kept
    step = "kept.append(torch.cat([p.grad.flatten() for p in model.parameters()]))"
    exec(DRAWN.format(times=TIMES, rows=4, backward=backward, step=step), left)
    model, parts = left["model"], [left["X"], left["T"], left["TIMES"]]
    assert isinstance(model, torch.nn.Module)
    x, t, times = (torch.cat(list(part)) for part in parts)  # type: ignore[call-overload]
    found = []
    for start, loop in zip(range(0, len(x), 12), kept, strict=True):
        rows = torch.arange(start, start + 12).repeat_interleave(times[start : start + 12].long())
        loss = F.mse_loss(model(x[rows]), t[rows])
        whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        found.append(float((loop - whole).norm() / whole.norm()))
    return found


@pytest.mark.parametrize(
    ("backward", "codes"),
    [
        ("((times * each).sum() / drawn).backward()", []),
        ("each.backward(gradient=times / drawn)", []),
        ("((times * each).sum() / drawn / K).backward()", ["GA102"]),
        ("((times * each).sum() / times.sum()).backward()", ["GA101", "GA104"]),
        ("((times * each).sum() / times.sum() / K).backward()", ["GA104"]),
    ],
)
def test_a_row_counts_as_often_as_it_was_drawn(backward: str, codes: list[str], tmp_path: Path) -> None:
    result = watch_source(DRAWN.format(times=TIMES, rows=4, backward=backward, step="optimizer.step()"), tmp_path)
    assert sorted({d.mistake.code for d in result.diagnosis}) == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT)
    expected = errors_of_drawn(backward)
    assert [w.grad_rel_error for w in result.windows] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (max(expected) > 1e-6) is bool(codes)
    assert [w.units for w in result.windows] == [sum(TIMES[i : i + 12]) for i in (0, 12, 24)]


def test_a_sum_with_counts_may_be_divided_by_the_rows_all_the_same(tmp_path: Path) -> None:
    for backward, codes in (("len(x) * K", []), ("len(x)", ["GA101"])):
        source = DRAWN.format(
            times=TIMES, rows=4, backward=f"((times * each).sum() / ({backward})).backward()", step="optimizer.step()"
        )
        assert [d.mistake.code for d in watch_source(source, tmp_path).diagnosis] == codes


ELEMENTS = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
K = {k}
model = nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3 * K):
    x, y, weights = torch.randn(5, 4), torch.randint(0, 6, (5,)), torch.rand(5)
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    {scaled}
    if (step + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize(
    ("scaled", "codes"),
    [
        ("(losses / K).mean().backward()", []),
        ("losses = losses / K; losses.mean().backward()", []),
        ("losses /= K; losses.mean().backward()", []),
        ("(losses * (1 / K)).mean().backward()", []),
        ("(losses * weights / K).mean().backward()", []),
        ("((losses / K).sum() / len(y)).backward()", []),
        ("((losses / len(y)).sum() / K).backward()", []),
        ("(losses / len(y)).mul(1 / K).sum().backward()", []),
        ("((losses[:, None].expand(-1, 6).sum(1) / len(model.weight)).mean() / K).backward()", []),
        ("((0.2 * losses).mean() / K).backward()", []),
        ("(0.2 * losses).mean().backward()", ["GA101"]),
        ("((losses / K).mean() / K).backward()", ["GA102"]),
        ("(losses / K / K).mean().backward()", ["GA102"]),
    ],
)
def test_what_scales_every_element_scales_the_loss(scaled: str, codes: list[str], k: int, tmp_path: Path) -> None:
    """Of K equal micro-batches, each mean has 1/K in the large batch's."""
    result = watch_source(ELEMENTS.format(k=k, scaled=scaled), tmp_path)
    verdict = Verdict.DEVIATES if codes else Verdict.EQUIVALENT
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason
    ratio = {"": 1.0, "GA101": k, "GA102": 1 / k}["".join(codes)]
    assert [window.grad_norm_ratio for window in result.windows] == pytest.approx([ratio] * 3)

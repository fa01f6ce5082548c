"""One window that is scaled otherwise than the others is the wrong one, and the others stay right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict

ROWS, K, RATE = 5, 3, 0.05

SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
torch.manual_seed(0)
loader = [(torch.randn(5, 2), torch.randn(5, 1)) for _ in range({batches})]
model = nn.Linear(2, 1, bias=False)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
K = 3
for i, (x, y) in enumerate(loader):
    loss = {loss}
{scale}
    if {test}:
        optimizer.step()
        optimizer.zero_grad()
"""
FULL = "(i + 1) % K == 0"
FLUSHED = f"{FULL} or i + 1 == len(loader)"

UNDIVIDED_WINDOW = """\
    if i // K == 2:
        loss.backward()
    else:
        (loss / K).backward()"""
UNDIVIDED_AT_FIRST = """\
    if i < 6:
        loss.backward()
    else:
        (loss / K).backward()"""
UNDIVIDED_AT_ONE_PLACE = """\
    if i // K != 2:
        loss = loss / K
    loss.backward()"""
UNDIVIDED_FLUSH = """\
    if i < 9:
        loss = loss / K
    loss.backward()"""
UNDIVIDED_MICRO_BATCH = """\
    if i != 7:
        loss = loss / K
    loss.backward()"""
DIVIDED_TWICE = """\
    if i // K == 2:
        (loss / K / K).backward()
    else:
        (loss / K).backward()"""


def script(loss: str, scale: str, batches: int, test: str) -> str:
    return SCRIPT.format(loss=loss, scale=scale, batches=batches, test=test)


def errors(objective: float, scales: list[float]) -> list[float]:
    """|g - g_ref| / |g_ref| of every window, g_ref that of one large batch, in float64 along the loop's own steps."""
    torch.manual_seed(0)
    data = [(torch.randn(5, 2).double(), torch.randn(5, 1).double()) for _ in scales]
    weight = torch.full((2, 1), 0.5, dtype=torch.float64)
    found = []
    for first in range(0, len(scales), K):
        own = range(first, min(first + K, len(scales)))
        parts = [objective * 2 * x.T @ (x @ weight - y) / len(x) for x, y in (data[i] for i in own)]
        x, y = (torch.cat([data[i][side] for i in own]) for side in (0, 1))
        large = objective * 2 * x.T @ (x @ weight - y) / len(x)
        got = sum((scales[i] * part for i, part in zip(own, parts, strict=True)), torch.zeros(2, 1))
        found.append(float((got - large).norm() / large.norm()))
        weight = weight - RATE * got
    return found


THIRD = 1 / 3
CASES = {
    "a window": (UNDIVIDED_WINDOW, [THIRD] * 6 + [1.0] * 3 + [THIRD] * 3, FULL, {(13, "GA101")}),
    "two of five windows": (UNDIVIDED_AT_FIRST, [1.0] * 6 + [THIRD] * 9, FULL, {(13, "GA101")}),
    "most windows": (UNDIVIDED_AT_FIRST, [1.0] * 6 + [THIRD] * 3, FULL, {(13, "GA101")}),
    "at one place": (UNDIVIDED_AT_ONE_PLACE, [THIRD] * 6 + [1.0] * 3 + [THIRD] * 3, FULL, {(14, "GA101")}),
    "a flush": (UNDIVIDED_FLUSH, [THIRD] * 9 + [1.0] * 2, FLUSHED, {(14, "GA101")}),
    "a micro-batch": (UNDIVIDED_MICRO_BATCH, [THIRD] * 7 + [1.0] + [THIRD] * 7, FULL, {(14, "GA101")}),
    "divided twice": (DIVIDED_TWICE, [THIRD] * 6 + [1 / 9] * 3 + [THIRD] * 3, FULL, {(13, "GA102")}),
}


@pytest.mark.parametrize("objective", [1.0, 0.7])
@pytest.mark.parametrize("name", CASES)
def test_only_the_odd_window_is_wrong_and_its_own_line_says_why(name: str, objective: float, tmp_path: Path) -> None:
    scale, scales, test, expected = CASES[name]
    loss = "mse_loss(model(x), y)" if objective == 1.0 else f"{objective} * mse_loss(model(x), y)"
    source = script(loss, scale, len(scales), test)
    result = watch_source(source, tmp_path)
    arithmetic = errors(objective, scales)
    assert [w.grad_rel_error for w in result.windows] == pytest.approx(arithmetic, rel=1e-4, abs=1e-5)
    wrong = {i for i, error in enumerate(arithmetic) if error > 1e-9}
    assert {w.index for w in result.windows if w.verdict is Verdict.DEVIATES} == wrong
    assert {w.index for w in result.windows if w.verdict is Verdict.EQUIVALENT} == set(range(len(arithmetic))) - wrong
    assert {(d.where.line, d.mistake.code) for d in result.diagnosis} == expected
    assert {index for d in result.diagnosis for index in d.windows} == wrong
    assert {(f.where.line, f.mistake.code) for f in lint_source(source, "train.py")} == expected


SUM_OVER_ROWS = "mse_loss(model(x), y, reduction='sum') / len(x)"


@pytest.mark.parametrize("name", ["a window", "two of five windows", "a flush"])
@pytest.mark.parametrize("objective", [1.0, 9.0, 0.7])
def test_a_sum_over_its_own_rows_is_a_mean_in_every_window(name: str, objective: float, tmp_path: Path) -> None:
    """Its own count, the objective and the division by K were applied at places of their own."""
    scale, scales, test, expected = CASES[name]
    source = script(f"{SUM_OVER_ROWS} * {objective}", scale, len(scales), test)
    result = watch_source(source, tmp_path)
    arithmetic = errors(objective, scales)
    assert [w.grad_rel_error for w in result.windows] == pytest.approx(arithmetic, rel=1e-4, abs=1e-5)
    assert {(d.where.line, d.mistake.code) for d in result.diagnosis} == expected


OTHER_OBJECTIVE = """\
    if i // K == 2:
        (0.4 * loss / K).backward()
    else:
        (loss / K).backward()"""


def test_another_objective_that_is_divided_by_k_is_right(tmp_path: Path) -> None:
    source = script("mse_loss(model(x), y)", OTHER_OBJECTIVE, 12, FULL)
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert not list(lint_source(source, "train.py"))


def test_losses_with_factors_of_their_own_are_not_judged_by_others(tmp_path: Path) -> None:
    # A coefficient that warms up from micro-batch to micro-batch: how the large batch would weight it is not known.
    source = script("mse_loss(model(x), y)", "    (min(1, (i + 1) / 5) * loss / K).backward()", 12, FULL)
    result = watch_source(source, tmp_path)
    assert [w.verdict for w in result.windows] == [Verdict.INCONCLUSIVE] * 2 + [Verdict.EQUIVALENT] * 2
    assert result.diagnosis == ()
    assert not list(lint_source(source, "train.py"))


@pytest.mark.parametrize("scale", ["loss.backward()", "(loss / 5).backward()", "(loss / K / K).backward()"])
def test_what_all_windows_do_is_no_odd_window(scale: str, tmp_path: Path) -> None:
    source = script("mse_loss(model(x), y)", f"    {scale}", 12, FULL)
    result = watch_source(source, tmp_path)
    assert {w.verdict for w in result.windows} == {Verdict.DEVIATES}

"""One mistake has one cause: what explains nothing further is not reported in addition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn({rows}, 2), torch.randn({rows}, 1)), batch_size=5)
model = nn.Linear(2, 1, bias=False)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
K = 3
"""
STEP = """\
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
HANDLED = """\
for i, (x, y) in enumerate(loader):
    try:
        if i == {fails}:
            raise RuntimeError("out of memory")
        (0.7 * mse_loss(model(x), y) / K).backward()
    except RuntimeError:
        optimizer.zero_grad()
"""
PASSED_OVER = """\
for i, (x, y) in enumerate(loader):
    if i != {fails}:
        (0.7 * mse_loss(model(x), y) / K).backward()
"""


def script(body: str, rows: int = 60) -> str:
    return SCRIPT.format(rows=rows) + body


def error_of(micro_batches: list[int], ran: list[int]) -> float:
    """|g - g_ref| / |g_ref| of the second of two windows, in float64: thirds of ``ran`` and the mean of all."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 2).double(), torch.randn(60, 1).double()
    weight = torch.full((2, 1), 0.5, dtype=torch.float64)

    def gradient(batches: list[int]) -> torch.Tensor:
        rows = [5 * batch + row for batch in batches for row in range(5)]
        return 0.7 * 2 * x[rows].T @ (x[rows] @ weight - y[rows]) / len(rows)

    if micro_batches[0] >= 3:
        weight = weight - 0.05 * gradient([0, 1, 2])
    got = sum((gradient([batch]) / 3 for batch in ran), torch.zeros(2, 1, dtype=torch.float64))
    large = gradient(micro_batches)
    return float((got - large).norm() / large.norm())


@pytest.mark.parametrize(
    ("fails", "ran", "left", "words"),
    [
        (4, [3, 5], [5], "but only 1 reaches the step: 1 was cleared at line 17, and 1 micro-batch never ran"),
        (5, [3, 4], [], "but none reaches the step: 2 were cleared at line 17"),
    ],
)
def test_a_handler_that_drops_a_batch_which_is_counted(
    fails: int, ran: list[int], left: list[int], words: str, tmp_path: Path
) -> None:
    result = watch_source(script(HANDLED.format(fails=fails) + STEP), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    # What the window ran is its large batch; of that the step got what had not been cleared.
    assert result.windows[1].grad_rel_error == pytest.approx(error_of(ran, left), rel=1e-4)
    (found,) = result.diagnosis
    assert (found.mistake.code, found.where.line, found.windows) == ("GA303", 19, (1,))
    assert words in found.message


@pytest.mark.parametrize("fails", [0, 1, 4])
def test_a_batch_that_was_passed_over_makes_a_window_short_and_not_its_boundary(fails: int, tmp_path: Path) -> None:
    source = script(PASSED_OVER.format(fails=fails) + STEP)
    result = watch_source(source, tmp_path)
    window = fails // 3
    ran = [batch for batch in range(3 * window, 3 * window + 3) if batch != fails]
    assert result.windows[window].grad_rel_error == pytest.approx(error_of(ran, ran), rel=1e-4)
    assert [(d.mistake.code, d.windows) for d in result.diagnosis] == [("GA303", (window,))]
    assert codes_in(source) == ["GA303"]
    assert "1 batch was given by a data loader, and no backward ran on it" in result.notes


def test_a_test_that_counts_from_0_is_still_off_by_one(tmp_path: Path) -> None:
    body = "for i, (x, y) in enumerate(loader):\n    (0.7 * mse_loss(model(x), y) / K).backward()\n" + STEP
    source = script(body.replace("(i + 1) % K", "i % K"), 65)
    result = watch_source(source, tmp_path)
    assert "GA302" in {d.mistake.code for d in result.diagnosis}
    assert "GA302" in codes_in(source)


CLEARED_BY_RULE = """\
for i, (x, y) in enumerate(loader):
    (0.7 * mse_loss(model(x), y) / K).backward()
    if i % K == 1:
        optimizer.zero_grad()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_clearing_in_every_window_is_misplaced_and_no_interruption(tmp_path: Path) -> None:
    source = script(CLEARED_BY_RULE)
    result = watch_source(source, tmp_path)
    assert {d.mistake.code for d in result.diagnosis} <= {"GA201", "GA202"}
    assert set(codes_in(source)) <= {"GA201", "GA202"}
    assert result.verdict is Verdict.DEVIATES


NOT_COUNTED = """\
count = 0
for i, (x, y) in enumerate(loader):
    if i == 4:
        continue
    (0.7 * mse_loss(model(x), y) / K).backward()
    count += 1
    if count % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
JOINED = """\
total = 0
for i, (x, y) in enumerate(loader):
    total = total + mse_loss(model(x), y) / K
    if (i + 1) % K == 0:
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = 0
"""
DRAWN_AHEAD = """\
batches = iter(loader)
while window := [batch for _, batch in zip(range(K), batches)]:
    for x, y in window:
        (mse_loss(model(x), y) / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ONE_AHEAD = """\
batches = iter(loader)
following = next(batches)
i = 0
while following is not None:
    (x, y), following = following, next(batches, None)
    (mse_loss(model(x), y) / K).backward()
    i += 1
    if i % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_batch_that_is_neither_run_nor_counted_is_a_note(tmp_path: Path) -> None:
    result = watch_source(script(NOT_COUNTED, 65), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert "1 batch was given by a data loader, and no backward ran on it" in result.notes


@pytest.mark.parametrize("body", [JOINED, DRAWN_AHEAD, ONE_AHEAD])
def test_batches_that_are_run_later_or_together_are_not_passed_over(body: str, tmp_path: Path) -> None:
    result = watch_source(script(body), tmp_path)
    assert result.verdict is Verdict.EQUIVALENT
    assert not any("no backward ran" in note for note in result.notes)


IN_BFLOAT16 = """\
model.bfloat16()
for i in range(2 * 400):
    x, y = torch.rand(5, 2) + 1, torch.rand(5, 1) + 9
    (mse_loss(model(x.bfloat16()), y.bfloat16()) / 400).backward()
    if (i + 1) % 400 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_rounding_lost_is_in_the_headline(tmp_path: Path) -> None:
    result = watch_source(script(IN_BFLOAT16), tmp_path)
    most = max(window.grad_rel_error or 0.0 for window in result.windows)
    assert most > 0.05
    assert result.reason == (
        "all 2 steps match the large-batch gradient, except for rounding in bfloat16, which lost up to "
        f"{most:.0%} of it"
    )
    (found,) = result.diagnosis
    assert f"lost {most:.1%} of the gradient" in found.message
    assert result.exit_status == 1


def test_a_clearing_in_one_of_two_windows_is_not_at_every_micro_batch(tmp_path: Path) -> None:
    result = watch_source(script(HANDLED.format(fails=4) + STEP, 30), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert "GA201" not in {d.mistake.code for d in result.diagnosis}
    assert not any("at every micro-batch" in d.message for d in result.diagnosis)

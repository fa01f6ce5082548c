"""K that changes during training: right where the divisor changes too, and reported as what it is where it does not.

What is expected is plain arithmetic: k equal micro-batches, each divided by 4, are k/4 of the large batch's gradient.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
for epoch, k in enumerate([1, 2, 4]):
    for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
        loss = torch.nn.functional.cross_entropy(model(x), y) / {divisor}
        loss.backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_divisor_that_changes_with_k_is_right(tmp_path: Path) -> None:
    source = SCRIPT.format(divisor="k")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert lint_source(source, "train.py") == []


def test_a_divisor_that_stays_is_no_window_that_was_interrupted(tmp_path: Path) -> None:
    source = SCRIPT.format(divisor="accum_steps").replace("for epoch", "accum_steps = 4\nfor epoch", 1)
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA103"]
    assert "skipped" not in result.diagnosis[0].message
    expected = [1 / 4] * 8 + [2 / 4] * 4 + [1.0] * 2
    assert [window.grad_norm_ratio for window in result.windows] == pytest.approx(expected, rel=1e-5)
    assert codes_in(source) == ["GA103"]


def test_one_short_window_between_long_ones_was_interrupted(tmp_path: Path) -> None:
    source = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(48, 6), torch.randint(0, 3, (48,))
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    if i != 5:
        (torch.nn.functional.cross_entropy(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA303"]
    assert [window.grad_norm_ratio for window in result.windows] == pytest.approx([1.0, 3 / 4, 1.0], rel=1e-5)


BUDGET = """
import torch
torch.manual_seed(0)
model = torch.nn.Embedding(9, 9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lengths = iter([12, 18, 20, 22, 6, 12, 8, 22, 6, 12, 12, 28, 4][:{batches}])
while True:
    tokens = 0
    while tokens < 40 and (length := next(lengths, 0)):
        x = torch.randint(9, (length, 1))
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten(), reduction="sum").backward()
        tokens += length
    if tokens < 40:
        break
    for p in model.parameters():
        p.grad /= tokens
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("batches", [12, 13])
def test_windows_that_are_filled_up_to_a_budget_of_tokens_leak_nothing(batches: int, tmp_path: Path) -> None:
    result = watch_source(BUDGET.format(batches=batches), tmp_path)
    # The last micro-batch of thirteen waits for a step that does not come: that alone is reported.
    assert [d.mistake.code for d in result.diagnosis] == ["GA301"] * (batches - 12), result.reason
    assert not any("leak" in d.message for d in result.diagnosis)
    assert all(window.verdict is Verdict.EQUIVALENT for window in result.windows)

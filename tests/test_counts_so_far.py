"""Sums that are divided by what a loop has counted of its window until then: GA104, in both engines.

What each unit weighs is plain arithmetic: all units of the window, over those that were counted by its micro-batch.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict

PAGE = """\
import torch
from torch import nn
torch.manual_seed(4)
SIZES = {sizes}
batches = [(torch.randn(n, 3), torch.randint(0, 2, (n,))) for n in SIZES]
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(reduction="sum")
for first in range(0, len(batches), 3):
    window = batches[first:first + 3]
    {before}
    for x, y in window:
        {count}
        (criterion(model(x), y) / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SIZES = [4, 7, 2, 5, 5, 5, 3, 6]
SO_FAR = {"sizes": SIZES, "before": "held = 0", "count": "held += len(y)", "divisor": "held"}
EQUAL = {"sizes": [5] * 9}


def test_a_count_that_has_not_come_to_its_end_weighs_the_first_more(tmp_path: Path) -> None:
    result = watch_source(PAGE.format(**SO_FAR), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA104"]
    assert "divided by the units counted so far" in result.diagnosis[0].in_words
    for number, report in enumerate(result.windows):
        held = list(accumulate(SIZES[3 * number : 3 * number + 3]))
        assert report.weights == pytest.approx([held[-1] / own for own in held])


def test_lint_says_the_same() -> None:
    source = PAGE.format(**SO_FAR | {"sizes": [4, 7, 2] * 3})
    assert [finding.mistake.code for finding in lint_source(source, "train.py")] == ["GA104"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"before": "held = sum(len(y) for _, y in window)", "count": "pass"}, id="counted before"),
        pytest.param(EQUAL | {"count": "held = len(y)", "divisor": "(held * len(window))"}, id="means"),
        pytest.param(EQUAL | {"divisor": "15"}, id="a count that divides nothing"),
    ],
)
def test_other_counts_are_what_they_are(change: dict[str, object], tmp_path: Path) -> None:
    source = PAGE.format(**SO_FAR | change)
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert not lint_source(source, "train.py")


def test_a_count_that_goes_on_from_window_to_window_stays_open(tmp_path: Path) -> None:
    """What is meant by it is not known."""
    source = PAGE.format(**SO_FAR).replace("held = 0", "held = 0 if not first else held")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())

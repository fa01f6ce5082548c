"""Losses of several terms of which one is scaled wrongly: the error is known, though one backward has added them up.

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
F = torch.nn.functional
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
K = 4
model = torch.nn.Linear(3, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
inputs, values, classes = torch.randn(48, 3), torch.randn(48, 5), torch.randint(0, 5, (48,))
if {ignored}:
    classes[torch.rand(48) < 0.4] = -100
for n, rows in enumerate(torch.arange(48).split(6)):
    out = model(inputs[rows])
    first, second = F.mse_loss(out, values[rows]), {second}
    ({loss}).backward()
    if (n + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
CLASSES = "F.cross_entropy(out, classes[rows])"


def expected_errors(share: float, ignored: bool) -> list[float]:
    """Of each window ‖g - g_ref‖ / ‖g_ref‖, where the first term is right and the second has ``share`` of each mean."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model = torch.nn.Linear(3, 5)
        inputs, values, classes = torch.randn(48, 3), torch.randn(48, 5), torch.randint(0, 5, (48,))
        if ignored:
            classes[torch.rand(48) < 0.4] = -100
        found = []
        for rows in torch.arange(48).split(24):

            def gradient(loss: torch.Tensor) -> torch.Tensor:
                return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])

            first = torch.nn.functional.mse_loss(model(inputs[rows]), values[rows])
            second = torch.nn.functional.cross_entropy(model(inputs[rows]), classes[rows])
            each = [torch.nn.functional.cross_entropy(model(inputs[own]), classes[own]) for own in rows.split(6)]
            right = gradient(first) + gradient(second)
            is_ = gradient(torch.nn.functional.mse_loss(model(inputs[rows]), values[rows])) + share * sum(
                map(gradient, each)
            )
            found.append(float((is_ - right).norm() / right.norm()))
        return found
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("loss", "ignored", "share", "codes"),
    [("first / K + second", False, 1.0, ["GA101"]), ("(first + second) / K", True, 0.25, ["GA104"])],
)
def test_one_term_of_two(loss: str, ignored: bool, share: float, codes: list[str], tmp_path: Path) -> None:
    result = watch_source(LOOP.format(second=CLASSES, loss=loss, ignored=ignored), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, codes)
    assert [w.grad_rel_error for w in result.windows] == pytest.approx(expected_errors(share, ignored))


def test_two_terms_that_are_right(tmp_path: Path) -> None:
    result = watch_source(LOOP.format(second=CLASSES, loss="first / K + second / K", ignored=False), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_a_term_that_is_not_divided_and_is_zero_here_is_no_deviation(tmp_path: Path) -> None:
    hinge = "F.relu(out - 100).mean()"
    result = watch_source(LOOP.format(second=hinge, loss="first / K + second", ignored=False), tmp_path)
    assert result.verdict is not Verdict.DEVIATES


def test_a_term_that_is_in_a_loss_twice_is_not_passed(tmp_path: Path) -> None:
    result = watch_source(LOOP.format(second=CLASSES, loss="first / K + first", ignored=False), tmp_path)
    assert result.verdict is not Verdict.EQUIVALENT

"""verify on models that are given one vector at a time, without a dimension for samples, against plain arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

LOOP = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
torch.manual_seed(2)

class Context(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.every = nn.Linear(6, 4), nn.Linear(6, 4)
    def forward(self, x):
        return self.each(x) + torch.tanh(self.every(x.mean(0)))

net = {network}
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
data = [{item} for i in range(9)]
K = 3
for i, (x, y) in enumerate(data):
    loss = {loss}
    (loss / {divisor}).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""

NETWORK = "nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))"
VECTORS = "(torch.randn(6), torch.randn(4))"
POINTS = "(torch.randn(6), torch.randn(1 + i % 2, 2))"
TO_POINTS = "(net(x).view(2, 2)[: len(y)] - y).abs().sum()"
ROWS = "(torch.randn(5, 6), torch.randn(5, 4))"


def watched(folder: Path, loss: str, item: str = VECTORS, divisor: str = "K", network: str = NETWORK) -> VerifyResult:
    return watch_source(LOOP.format(loss=loss, item=item, divisor=divisor, network=network), folder)


@pytest.mark.parametrize(("loss", "item"), [("mse_loss(net(x), y)", VECTORS), (TO_POINTS, POINTS)])
def test_a_vector_is_one_sample(tmp_path: Path, loss: str, item: str) -> None:
    result = watched(tmp_path, loss, item)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert any("each micro-batch is one sample" in note for note in result.notes)


@pytest.mark.parametrize(("divisor", "ratio", "code"), [("1", 3.0, "GA101"), ("K / K", 1 / 3, "GA102")])
def test_its_loss_is_scaled_as_any_other(tmp_path: Path, divisor: str, ratio: float, code: str) -> None:
    result = watched(tmp_path, "mse_loss(net(x), y)", divisor=divisor)
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([ratio] * 3, rel=1e-5)
    assert {d.mistake.code for d in result.diagnosis} == {code}


@pytest.mark.parametrize(
    ("loss", "item", "network"),
    [
        # The mean of a batch is a vector, too.
        ("mse_loss(net(x.mean(0)), y.mean(0))", ROWS, NETWORK),
        # So is what only one layer of a model is given of it.
        ("mse_loss(net(x), y)", ROWS, "Context()"),
        # And what says how all rows of a batch are weighed.
        ("mse_loss(torch.softmax(y @ net(x), 0) @ y, y.sum(0))", "(torch.randn(6), torch.randn(5, 4))", NETWORK),
    ],
)
def test_what_was_made_of_the_rows_of_a_batch_is_not_passed(tmp_path: Path, loss: str, item: str, network: str) -> None:
    assert watched(tmp_path, loss, item, network=network).verdict is not Verdict.EQUIVALENT


STEPS = """
import torch
from torch import nn

torch.manual_seed(5)
field = nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 2))
optimizer = torch.optim.SGD(field.parameters(), lr=0.02)
data = [torch.randn(3 + (i * 5) % 7, 2) for i in range(8)]
K = 4
for first in range(0, 8, K):
    window = data[first : first + K]
    points = sum(len(path) - 1 for path in window)
    for path in window:
        z, error = path[0], 0.0
        for at in path[1:]:
            z = {step}
            error = error + (z - at).square().sum()
        ({scaled}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("step", "scaled", "verdict"),
    [
        ("z + 0.1 * field(z)", "error / points", Verdict.EQUIVALENT),
        # Each is one sample, but the mean over its moments weighs those of short paths more.
        ("z + 0.1 * field(z)", "error / (len(path) - 1) / K", Verdict.INCONCLUSIVE),
        ("z + 0.1 * field(z)", "error / points / K", Verdict.INCONCLUSIVE),
        # What is given to the model again is other data, which may be other samples.
        ("at + 0.1 * field(at)", "error / points", Verdict.INCONCLUSIVE),
        ("z + 0.1 * field(z + at)", "error / points", Verdict.INCONCLUSIVE),
    ],
)
def test_what_a_model_makes_of_a_vector_step_by_step_is_one_sample(
    tmp_path: Path, step: str, scaled: str, verdict: Verdict
) -> None:
    result = watch_source(STEPS.format(step=step, scaled=scaled), tmp_path)
    assert result.verdict is verdict, result.reason
    if verdict is Verdict.EQUIVALENT:
        assert any("each micro-batch is one sample" in note for note in result.notes)

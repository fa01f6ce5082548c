"""verify on micro-batches whose losses a loop adds up sample by sample, against float64 arithmetic.

A micro-batch holds several bags of unlike sizes, of which the model takes one at a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

K = 2
UNLIKE, ALIKE = (4, 3, 5, 1, 3), (3, 3, 3, 3)

LOOP = """
import torch
from torch import nn

class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.all = nn.Linear(3, 8), nn.Linear(8, 1)
    def forward(self, bag):
        return self.all(torch.tanh(self.each(bag)).sum(0)).squeeze()

torch.manual_seed(1)
net = {network}
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
held = [[torch.rand({rows}, 3) for i in range(n)] for n in {bags}]
data = [[(bag, {target}) for bag in own] for own in held]
for start in range(0, len(data), 2):
    window = data[start : start + 2]
    count = sum(map(len, window))
    for batch in window:
        {loss}
    optimizer.step()
    optimizer.zero_grad()
"""

SQUARE = "sum((net(x) - y) ** 2 for x, y in batch)"
MSE = "sum(nn.functional.mse_loss(net(x), y) for x, y in batch)"
ADDED_UP = "n = 0\n        for own in window: n += len(own)"
AFTER = "for p in net.parameters() if batch is window[-1] else []:"
STACKED = "torch.stack([nn.functional.mse_loss(net(x), y) for x, y in batch])"


def watched(
    folder: Path,
    loss: str,
    bags: tuple[int, ...] = UNLIKE,
    *,
    network: str = "Bags()",
    rows: str = "2 + i",
    target: str = "bag[:, 0].sum()",
) -> VerifyResult:
    """The result of the loop, which runs ``loss`` for each micro-batch."""
    return watch_source(LOOP.format(loss=loss, bags=bags, network=network, rows=rows, target=target), folder)


def norm_ratios(counts: tuple[int, ...], weights: tuple[tuple[float, ...], ...]) -> list[float]:
    """|g| / |g_true| at each step, where micro-batch j weighs each of its bags ``weights[step][j]``, by arithmetic."""
    torch.manual_seed(1)
    each, every = nn.Linear(3, 8), nn.Linear(8, 1)
    parameters = [*each.parameters(), *every.parameters()]
    data = [[torch.rand(2 + i, 3) for i in range(n)] for n in counts]
    parameters = [p.detach().double().requires_grad_() for p in parameters]
    found = []
    for step, own in enumerate(weights):
        window = data[step * K : (step + 1) * K]

        def gradient(factors: list[float], batches: list[list[torch.Tensor]] = window) -> torch.Tensor:
            w, b, v, c = parameters
            total = torch.zeros((), dtype=torch.float64)
            for factor, batch in zip(factors, batches, strict=True):
                for bag in batch:
                    out = torch.tanh(bag.double() @ w.T + b).sum(0) @ v[0] + c[0]
                    total = total + factor * (out - bag.double()[:, 0].sum()) ** 2
            return torch.cat([g.flatten() for g in torch.autograd.grad(total, parameters)])

        got, true = gradient(list(own)), gradient([1 / sum(map(len, window))] * len(window))
        found.append(float(got.norm() / true.norm()))
        with torch.no_grad():
            for p, g in zip(parameters, got.split([p.numel() for p in parameters]), strict=True):
                p -= 0.01 * g.view_as(p)
    return found


@pytest.mark.parametrize("bags", [UNLIKE, ALIKE])
@pytest.mark.parametrize(
    "loss",
    [
        f"({SQUARE} / count).backward()",
        f"({MSE} / count).backward()",
        f"{SQUARE}.backward(gradient=torch.tensor(1.0 / count))",
        f"({STACKED}.sum() / count).backward()",
        f"({STACKED}.mean() * len(batch) / count).backward()",
        # Nothing but their values shows what these numbers count.
        f"{ADDED_UP}\n        ({MSE} / n).backward()",
        f"{MSE}.backward()\n        {AFTER} p.grad /= count",
    ],
)
def test_losses_of_samples_that_are_divided_by_their_number_are_right(
    tmp_path: Path, loss: str, bags: tuple[int, ...]
) -> None:
    result = watched(tmp_path, loss, bags)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert result.windows[0].units == sum(bags[:K])


@pytest.mark.parametrize("bags", [UNLIKE, ALIKE])
@pytest.mark.parametrize(
    "loss",
    [
        f"({SQUARE} / count / len(window)).backward()",
        f"({MSE} / count / len(window)).backward()",
        f"({MSE} / count).backward()\n        {AFTER} p.grad /= len(window)",
    ],
)
def test_they_are_divided_twice(tmp_path: Path, loss: str, bags: tuple[int, ...]) -> None:
    result = watched(tmp_path, loss, bags)
    assert result.verdict is Verdict.DEVIATES, result.reason
    assert {d.mistake.code for d in result.diagnosis} == {"GA102"}
    assert result.windows[0].grad_norm_ratio == pytest.approx(1 / K, rel=1e-5)


def test_means_over_unlike_numbers_of_samples_are_no_mean(tmp_path: Path) -> None:
    result = watched(tmp_path, f"({MSE} / len(batch) / len(window)).backward()")
    assert result.verdict is Verdict.DEVIATES, result.reason
    assert "GA104" in {d.mistake.code for d in result.diagnosis}
    own = tuple(tuple(1 / n / len(part) for n in part) for part in (UNLIKE[:2], UNLIKE[2:4], UNLIKE[4:]))
    ratios = norm_ratios(UNLIKE, own)
    assert [w.grad_norm_ratio for w in result.windows][:2] == pytest.approx(ratios[:2], rel=1e-4)


@pytest.mark.parametrize(
    "loss",
    [
        f"{SQUARE}.backward()",
        f"{MSE}.backward()",
        f"({MSE} / len(window)).backward()",
        f"seen = (0 if batch is window[0] else seen) + len(batch)\n        ({MSE} / seen).backward()",
        f"({MSE} / (count - len(window[-1]))).backward()",
        f"({MSE} / (len(window[0]) * len(window))).backward()",
    ],
    ids=["not at all", "nor these", "by micro-batches", "by those so far", "without the last", "by the first alone"],
)
def test_what_is_not_divided_by_their_number_is_not_passed(tmp_path: Path, loss: str) -> None:
    bags = (4, 3, 5, 2, 3, 4)
    assert watched(tmp_path, loss, bags).verdict is not Verdict.EQUIVALENT


def test_what_each_of_them_is_a_mean_of_may_be_the_samples(tmp_path: Path) -> None:
    """The same loop over batches of unlike sizes: their means, divided by how many there are, are a mean of means."""
    rows = "nn.functional.mse_loss(net(x)[:, 0], y)"
    result = watched(
        tmp_path,
        f"(sum({rows} for x, y in batch) / count).backward()",
        network="nn.Linear(3, 1)",
        target="bag[:, 0] ** 2",
    )
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason
    assert result.diagnosis == ()


@pytest.mark.parametrize(
    "network",
    [
        "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))",
        "nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([4, 4], elementwise_affine=False), nn.Linear(4, 1))",
    ],
)
def test_rows_of_one_call_may_be_coupled(tmp_path: Path, network: str) -> None:
    """That the calls have nothing to do with each other says nothing about the rows of one."""
    rows = "nn.functional.mse_loss(net(x)[:, 0], y)"
    result = watched(
        tmp_path,
        f"(sum({rows} for x, y in batch) / count).backward()",
        network=network,
        rows="4",
        target="bag[:, 0] ** 2",
    )
    assert result.verdict is not Verdict.EQUIVALENT


def test_losses_that_are_put_together_otherwise_are_no_sum(tmp_path: Path) -> None:
    result = watched(tmp_path, f"({STACKED}.logsumexp(0) / count).backward()")
    assert result.verdict is not Verdict.EQUIVALENT


def test_samples_that_are_compared_with_each_other_are_coupled(tmp_path: Path) -> None:
    loss = (
        f"scores = torch.stack([net(x) for x, _ in batch]); ({STACKED}.sum() / count - scores.std() / count).backward()"
    )
    result = watched(tmp_path, loss.replace("; ", "\n        "), ALIKE)
    assert result.verdict is not Verdict.EQUIVALENT


@pytest.mark.parametrize("mean", ["torch.stack(scores).mean().detach()", "torch.stack(scores).mean().item()"])
def test_what_all_of_a_micro_batch_were_compared_with_couples_them(tmp_path: Path, mean: str) -> None:
    lines = ["scores = [net(x) for x, _ in batch]", f"mean = {mean}"]
    lines.append("(sum((s - mean - y) ** 2 for s, (_, y) in zip(scores, batch)) / count).backward()")
    assert watched(tmp_path, "\n        ".join(lines)).verdict is not Verdict.EQUIVALENT


def test_what_all_micro_batches_share_couples_none(tmp_path: Path) -> None:
    loss = "(sum((net(x) * 1.5 - y + shift - 0.125) ** 2 for x, y in batch) / count).backward()"
    assert watched(tmp_path, f"shift = torch.tensor(0.25)\n        {loss}").verdict is Verdict.EQUIVALENT


EXITS = """
import torch
from collections import deque
from torch import nn
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
class Exits(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)])
        self.exits = nn.ModuleList([nn.Linear(6, 2) for _ in range(3)])
    def forward(self, x):
        for stage, leave in zip(self.stages, self.exits):
            x = torch.tanh(stage(x))
            yield leave(x)
net = Exits()
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net.stages, net.exits)]
x, y = torch.randn(21, 5), torch.randint(2, (21,))
pending, taken = deque(), []
def settle():
    mean = sum(pending) / {divisor}
    for optimizer in optimizers:
        optimizer.zero_grad()
    mean.backward()
    for optimizer in optimizers:
        optimizer.step()
    pending.clear()
for epoch in range(2):
    for rows in torch.randperm(21).split(3):
        losses = [nn.functional.cross_entropy(logits, y[rows]) for logits in net(x[rows])]
        pending.append(sum(w * loss for w, loss in zip((0.2, 0.3, 0.5), losses)))
        if len(pending) >= 3:
            settle()
    settle()
"""


def test_losses_of_several_terms_are_listed_and_sent_backward_once(tmp_path: Path) -> None:
    """Three terms for each of three batches, and of one batch at the end: the length of the list counts the batches."""
    result = watch_source(EXITS.format(divisor="len(pending)"), tmp_path)
    assert (result.verdict, len(result.windows)) == (Verdict.EQUIVALENT, 12), result.reason


def test_a_constant_that_divides_lists_of_losses_is_reported(tmp_path: Path) -> None:
    """It may be the objective's, as every window has one backward: what it would mean otherwise is in a note."""
    result = watch_source(EXITS.format(divisor="3"), tmp_path)
    assert any("by 3 was read as part of the objective" in note for note in result.notes)

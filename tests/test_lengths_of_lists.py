"""The length of the list that a window is counts micro-batches, because a loop over it ends right before the step.

Weights are those of exact arithmetic: m equal micro-batches, each divided by d, are m/d of the large batch. A constant
with a name of its own belongs to the objective, whatever it equals.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

HEAD = """
import itertools
import torch
from torch import nn
torch.manual_seed(0)
K = {k}
SCALE = {scale}
loader = [(torch.randn(2, 4), torch.randn(2, 3)) for _ in range({count})]
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
def scaled(loss, parts):
    return loss / len(parts)
"""
BY_GRADIENT = """    for p in model.parameters():
        p.grad.div_(len(window))
"""
STEP = """    optimizer.step()
    optimizer.zero_grad()
"""
CUT = """for start in range(0, len(loader), K):
    window = loader[start:start + K]
"""
TAKEN = """batches = iter(loader)
while window := list(itertools.islice(batches, K)):
"""
OVER = """    for x, y in window:
        raw = criterion(model(x), y) / SCALE
        ({loss}).backward()
"""


def judged(source: str, folder: Path) -> tuple[VerifyResult, list[str], list[str]]:
    """verify's result and codes, and lint's codes."""
    result = watch_source(source, folder, reference="ledger")
    return result, [d.mistake.code for d in result.diagnosis], codes_in(source)


def loop(cut: str, loss: str, after: str = "", *, k: int = 9, scale: int = 5, count: int = 5) -> str:
    return HEAD.format(k=k, scale=scale, count=count) + cut + OVER.format(loss=loss) + after + STEP


NUMBERED = """    for n in range(len(window)):
        raw = criterion(model(window[n][0]), window[n][1]) / SCALE
        ({loss}).backward()
"""
RIGHT = {
    "gradients": loop(CUT, "raw", BY_GRADIENT),
    "losses": loop(CUT, "raw / len(window)"),
    "a name": loop(CUT, "raw / m", k=9).replace("    for x", "    m = len(window)\n    for x"),
    "one over it": loop(CUT, "raw * (1 / len(window))"),
    "a function of a list": loop(CUT, "scaled(raw, window)"),
    "kept from being nothing": loop(CUT, "raw / max(len(window), 1)"),
    "taken from an iterator": loop(TAKEN, "raw / len(window)"),
    "gradients, taken from an iterator": loop(TAKEN, "raw", BY_GRADIENT),
    "numbered": loop(CUT, "raw / len(window)").replace("for x, y in window", "for n, (x, y) in enumerate(window)"),
    "by its places": HEAD.format(k=9, scale=5, count=5) + CUT + NUMBERED.format(loss="raw / len(window)") + STEP,
    "more windows": loop(CUT, "raw / len(window)", k=5, count=15),
    "a remainder": loop(CUT, "raw / len(window)", k=5, count=13),
    "a constant that equals the remainder": loop(CUT, "raw / len(window)", k=6, count=11),
}


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_window_divided_by_its_length_is_right_whatever_a_constant_equals(source: str, tmp_path: Path) -> None:
    result, codes, found = judged(source, tmp_path)
    assert (result.verdict, codes, found) == (Verdict.EQUIVALENT, [], []), result.reason


WRONG = {
    # The window's length as well as K: 1/5 of the large batch.
    "twice": (loop(CUT, "raw / len(window) / K", k=5), "GA102", 1 / 5),
    # Nothing but the objective's constant, which equals the length of the only window.
    "not at all": (loop(CUT, "raw"), "GA101", 5.0),
    "not at all, in whole windows": (loop(CUT, "raw", k=5, count=10), "GA101", 5.0),
}


@pytest.mark.parametrize(("source", "code", "weight"), WRONG.values(), ids=WRONG)
def test_the_length_of_a_window_hides_no_mistake(source: str, code: str, weight: float, tmp_path: Path) -> None:
    result, codes, found = judged(source, tmp_path)
    assert (result.verdict, codes, found) == (Verdict.DEVIATES, [code], [code]), result.reason
    assert all(w.grad_norm_ratio == pytest.approx(weight, rel=1e-5) for w in result.windows)


PAIRS = """
for i, (x, y) in enumerate(loader):
    parts = [x[:, :2], x[:, 2:]]
    for part in parts:
        x = torch.cat([part, part], 1)
        (criterion(model(x), y) / len(parts)).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_list_inside_a_micro_batch_is_no_window(tmp_path: Path) -> None:
    # K = 2 micro-batches with the mean of two losses each: the mean is the objective's, and nothing divides by K.
    source = HEAD.format(k=2, scale=5, count=6) + PAIRS
    result = watch_source(source, tmp_path, reference="ledger")
    assert result.verdict is not Verdict.EQUIVALENT
    right = source.replace("/ len(parts)", "/ len(parts) / K")
    assert watch_source(right, tmp_path, reference="ledger").verdict is not Verdict.DEVIATES


def test_the_length_of_another_list_is_a_number_like_others(tmp_path: Path) -> None:
    heads = HEAD.format(k=5, scale=5, count=10) + "heads = [1, 2, 3, 4, 5]\n"
    body = CUT + OVER.format(loss="criterion(model(x), y) / len(heads)") + STEP
    result, codes, _ = judged(heads + body, tmp_path)
    assert (result.verdict, codes) == (Verdict.DEVIATES, ["GA101"]), result.reason


TASKS = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
K = {k}
trunk, heads = nn.Linear(4, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 3), nn.Linear(6, 1)])
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)
def losses(x, level, group, flag):
    h = torch.tanh(trunk(x))
    return dict(
        level=F.mse_loss(heads[0](h)[:, 0], level),
        group=F.cross_entropy(heads[1](h), group),
        flag=F.binary_cross_entropy_with_logits(heads[2](h)[:, 0], flag),
    )
for update in range(3):
    optimizer.zero_grad()
    held = []
    for turn in range(K):
        x = torch.randn(2, 4)
        held.append(x)
        tasks = losses(x, x[:, 0], x[:, 1:].argmax(1), (x[:, 0] > 0).float())
        named = [tasks["level"], tasks["group"], tasks["flag"]]
        ({loss}).backward()
    optimizer.step()
"""
MEANS = {"a dictionary": "sum(tasks.values()) / len(tasks)", "a list": "sum(named) / len(named)"}


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)
def test_the_number_of_losses_that_are_added_up_is_no_k(mean: str, k: int, tmp_path: Path) -> None:
    # The mean over 3 tasks is the objective's, in K = 3 as in K = 5, and each of the K micro-batches is weighted Kx.
    result, codes, found = judged(TASKS.format(loss=mean, k=k), tmp_path)
    assert (result.verdict, codes, found) == (Verdict.DEVIATES, ["GA101"], ["GA101"]), result.reason
    assert all(w.grad_norm_ratio == pytest.approx(k, rel=1e-5) for w in result.windows)


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("loss", [*(f"{mean} / K" for mean in MEANS.values()), "sum(tasks.values()) / K"])
def test_k_divides_the_sum_or_the_mean_of_as_many_losses(loss: str, k: int, tmp_path: Path) -> None:
    result, codes, found = judged(TASKS.format(loss=loss, k=k), tmp_path)
    assert (result.verdict, codes, found) == (Verdict.EQUIVALENT, [], []), result.reason


TOTALS = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
corpus = [(torch.randn(2, 4), torch.randn(2, 6), torch.randint(20, 60, (2,))) for _ in range(8)]
for start in range(0, len(corpus), 3):
    window = corpus[start:start + 3]
    total = {total}
    for x, y, counts in window:
        loss = (model(x) - y).abs().sum(1).log1p().sum()
        ({loss}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TOTAL = "sum(int(counts.sum()) for _, _, counts in window)"


@pytest.mark.parametrize(
    "total",
    [
        TOTAL,
        "max(1, sum([c.sum().item() for _, _, c in window]))",
        "sum(map(lambda one: int(one[2].sum()), window))",
        "sum(c.sum() for *_, c in window)",
        "torch.stack([c.sum() for *_, c in window]).sum().item()",
        "torch.tensor([int(c.sum()) for *_, c in window]).sum().clamp(min=1)",
    ],
)
def test_a_number_that_was_summed_over_the_window_counts_it(total: str, tmp_path: Path) -> None:
    """Whatever is counted: the large batch divides its sum by the same number, which exceeds the rows."""
    result = watch_source(TOTALS.format(total=total, loss="loss / total"), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert {weight for window in result.windows for weight in window.weights} == {1.0}


@pytest.mark.parametrize(
    ("total", "loss", "verdict", "codes"),
    [
        (TOTAL, "loss / total * (1 / len(window))", Verdict.DEVIATES, ["GA102"]),
        (TOTAL, "(loss / total) / len(window)", Verdict.DEVIATES, ["GA102"]),
        (TOTAL.replace("in window", "in window[:-1]"), "loss / total", Verdict.INCONCLUSIVE, []),
        (TOTAL.replace("in window", "in corpus[start:start + 2]"), "loss / total", Verdict.INCONCLUSIVE, []),
    ],
)
def test_another_total_or_a_second_division(
    total: str, loss: str, verdict: Verdict, codes: list[str], tmp_path: Path
) -> None:
    result = watch_source(TOTALS.format(total=total, loss=loss), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason

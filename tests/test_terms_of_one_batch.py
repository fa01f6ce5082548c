"""Heads and losses with a backward each, all over the same micro-batch, are terms of one objective.

What the wrong loops deviate by is that of float64 gradients of whole windows, computed here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict

SETUP = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(9)
torch.set_default_dtype(torch.float64)
trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 2)])
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)
xs, first, second = torch.rand(35, 4), torch.randint(0, 3, (35,)), torch.randint(0, 2, (35,))
"""
OF_A_LIST = "batches = [(xs[i:i + 7], [first[i:i + 7], second[i:i + 7]]) for i in range(0, 35, 7)]\n"
OF_A_LOADER = "batches = DataLoader(TensorDataset(xs, torch.stack([first % 2, second], 1)), batch_size=7)\n"
PLAIN = """\
for epoch in range(2):
    for x, ys in batches:
        optimizer.zero_grad()
        for head, y in zip(heads, ys):
            cross_entropy(head(trunk(x)), y).backward()
        optimizer.step()
"""
ACCUMULATED = """\
K, count = 5, 0
for epoch in range(2):
    for x, ys in batches:
        for head, y in zip(heads, ys):
            (cross_entropy(head(trunk(x)), y){divided}).backward()
        count += 1
        if count == K:
            optimizer.step()
            optimizer.zero_grad()
            count = 0
"""
SUPERVISED = """\
K = 5
for epoch in range(2):
    for i, (x, ys) in enumerate(batches):
        hidden = trunk(x)
        for weight, head, y in zip((1.0, 0.4), heads, ys):
            (weight * cross_entropy(head(hidden), y){divided}).backward(retain_graph=True)
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("reference", ["both", "ledger", "sketch"])
@pytest.mark.parametrize("loop", [PLAIN, ACCUMULATED.format(divided=" / K"), SUPERVISED.format(divided=" / K")])
def test_each_micro_batch_has_as_many_terms_as_heads(loop: str, reference: str, tmp_path: Path) -> None:
    result = watch_source(SETUP + OF_A_LIST + loop, tmp_path, reference=reference)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert {window.micro_batches for window in result.windows} == ({1} if loop is PLAIN else {5})
    assert lint_source(SETUP + OF_A_LIST + loop, "train.py") == []


def test_a_loader_that_gives_them_together_tells_no_other_story(tmp_path: Path) -> None:
    loop = PLAIN.replace("zip(heads, ys)", "zip(heads, ys.unbind(1))")
    result = watch_source(SETUP + OF_A_LOADER + loop, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


@pytest.mark.parametrize("loop", [ACCUMULATED, SUPERVISED])
def test_a_sum_of_micro_batches_is_still_off_by_their_number(loop: str, tmp_path: Path) -> None:
    result = watch_source(SETUP + OF_A_LIST + loop.format(divided=""), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]
    # A sum of five means against their mean.
    assert result.windows[0].grad_rel_error == pytest.approx(4.0)


@pytest.mark.parametrize("reference", ["both", "sketch"])
def test_samples_that_each_count_as_a_micro_batch_are_micro_batches(reference: str, tmp_path: Path) -> None:
    """The very same data again and again, but the source counts each of them."""
    loop = """\
x, y = xs[:7], first[:7]
K = 4
for i in range(12):
    cross_entropy(heads[0](trunk(x)), y).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    result = watch_source(SETUP + loop, tmp_path, reference=reference)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]
    assert {window.micro_batches for window in result.windows} == {4}


@pytest.mark.parametrize("reference", ["both", "ledger"])
def test_parts_of_a_batch_are_micro_batches(reference: str, tmp_path: Path) -> None:
    """Two parts of each of five batches: the mean over a window has ten, whatever the loop counts."""
    loop = """\
K, count = 5, 0
for epoch in range(2):
    for x, (y, _) in batches:
        for part, labels in zip(x.split([4, 3]), y.split([4, 3])):
            (cross_entropy(heads[0](trunk(part)), labels) / K).backward()
        count += 1
        if count == K:
            optimizer.step()
            optimizer.zero_grad()
            count = 0
"""
    result = watch_source(SETUP + OF_A_LIST + loop, tmp_path, reference=reference)
    assert result.verdict is Verdict.DEVIATES
    assert {window.micro_batches for window in result.windows} == {10}
    assert result.windows[0].grad_rel_error == pytest.approx(_error_of_parts())


def _error_of_parts() -> float:
    torch.manual_seed(9)
    trunk = nn.Sequential(nn.Linear(4, 6, dtype=torch.float64), nn.Tanh())
    head, _ = nn.Linear(6, 3, dtype=torch.float64), nn.Linear(6, 2, dtype=torch.float64)
    x, y = torch.rand(35, 4, dtype=torch.float64), torch.randint(0, 3, (35,))
    weights = [*trunk.parameters(), *head.parameters()]

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])

    whole = gradient(cross_entropy(head(trunk(x)), y))
    bounds = [(i, i + 4) for i in range(0, 35, 7)] + [(i + 4, i + 7) for i in range(0, 35, 7)]
    own = sum(gradient(cross_entropy(head(trunk(x[a:b])), y[a:b]) / 5) for a, b in bounds)
    return float((own - whole).norm() / whole.norm())


TASKS = """\
size, other = 7, {other}
one = DataLoader(TensorDataset(xs, first), batch_size=size)
two = DataLoader(TensorDataset(xs.flip(0), second), batch_size=other)
for epoch in range(2):
    for batches in {together}:
        optimizer.zero_grad()
        for head, (x, y) in zip(heads, batches):
            cross_entropy(head(trunk(x)), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("reference", ["both", "sketch"])
@pytest.mark.parametrize("other", [7, 5])
def test_batches_that_several_loaders_gave_together_are_one_micro_batch(
    other: int, reference: str, tmp_path: Path
) -> None:
    loop = TASKS.format(other=other, together="zip(one, two)")
    result = watch_source(SETUP + loop, tmp_path, reference=reference)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert {window.micro_batches for window in result.windows} == {1}
    assert lint_source(SETUP + loop, "train.py") == []


ITERATORS = """\
one = DataLoader(TensorDataset(xs, first), batch_size=7)
two = DataLoader(TensorDataset(xs.flip(0), second), batch_size=7)
kept = []
for window in range(6):
    batches = []
    for loader in {loaders}:
        iterator = iter(loader)
        batches.append(next(iterator))
        {fate}
    for head, (x, y) in zip({heads}, batches):
        cross_entropy(head(trunk(x)), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("fate", ["kept.append(iterator)", "del iterator"])
@pytest.mark.parametrize(
    ("loaders", "heads", "micro_batches"), [("(one, two)", "heads", 1), ("(one, one)", "(heads[0], heads[0])", 2)]
)
def test_an_iterator_that_is_gone_is_not_taken_for_the_next(
    loaders: str, heads: str, micro_batches: int, fate: str, tmp_path: Path
) -> None:
    # What is made where it was has its address: two loaders are not one, and one loader is not two.
    result = watch_source(SETUP + ITERATORS.format(loaders=loaders, heads=heads, fate=fate), tmp_path)
    assert {window.micro_batches for window in result.windows} == {micro_batches}


@pytest.mark.parametrize("reference", ["both", "sketch"])
def test_batches_that_one_loader_gave_are_several(reference: str, tmp_path: Path) -> None:
    loop = """\
drawn = iter(DataLoader(TensorDataset(xs, first), batch_size=5))
for window in range(2):
    batches = [next(drawn) for _ in range(3)]
    for x, y in batches:
        cross_entropy(heads[0](trunk(x)), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = watch_source(SETUP + loop, tmp_path, reference=reference)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]
    assert [window.micro_batches for window in result.windows] == [3, 3]
    assert result.windows[0].grad_rel_error == pytest.approx(2.0, rel=0.02)


ONE_OF_EACH = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
model = torch.nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = [
    DataLoader(TensorDataset(torch.randn(30, 6), torch.randint(0, 4, (30,))), batch_size=5) for _ in range(2)
]
K = {k}
for batches in zip(*loaders):
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss{scale}).backward()
    {boundary}
"""
STEP = "optimizer.step(); optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("k", "scale", "boundary", "verdict"),
    [
        # A window of a batch of each domain, divided by their number; or the sum over two tasks.
        (2, " / K", STEP, "equivalent"),
        (2, "", STEP, "equivalent"),
        # Three turns make a window: what divides by another K than the number of the loaders divides too little.
        (3, " / K", STEP, "deviates"),
    ],
)
def test_a_window_of_one_batch_of_each_loader_may_be_divided_by_their_number(
    k: int, scale: str, boundary: str, verdict: str, tmp_path: Path
) -> None:
    result = watch_source(ONE_OF_EACH.format(k=k, scale=scale, boundary=boundary), tmp_path)
    assert result.verdict.value == verdict

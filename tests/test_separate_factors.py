"""What belongs together and what does not: sides of a quotient, counts that change, turns, a number of rows.

Whether a loop is right is decided here by the one-batch gradient in float64 of what its comment says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loops_with_places import codes_in
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

TASKS = """\
import torch
from torch.nn.functional import l1_loss, mse_loss, smooth_l1_loss
torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(24, 3), torch.randn(24, 3)
weights = {{"near": {first}, "far": 1 / 3, "edge": 0.6}}
LOSSES = {{"near": mse_loss, "far": l1_loss, "edge": smooth_l1_loss}}
K = {steps}
for i, (a, b) in enumerate(zip(x.split(4), y.split(4))):
    out = model(a)
    losses = {{name: loss(out, b) for name, loss in LOSSES.items()}}
    for name in losses:
        w = weights[name]{divided}
        (w * losses[name]).backward(retain_graph=True)
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("first", ["1.0", "0.7"])
def test_weights_of_tasks_over_k_are_two_numbers(steps: int, first: str, tmp_path: Path) -> None:
    right = watch_source(TASKS.format(first=first, steps=steps, divided=" / K"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())


def test_weights_of_tasks_alone_divide_by_nothing(tmp_path: Path) -> None:
    # Of unlike numbers; 1 / 3 is no third of a window of two.
    wrong = watch_source(TASKS.format(first="0.7", steps=2, divided=""), tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"])
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([2.0, 2.0, 2.0])


COUNTED = """\
import torch
from torch.nn.functional import cross_entropy
torch.manual_seed(2)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = [3, 5, 2, 4, 6, 3]
items = [{{"x": torch.randn(n, 3), "y": torch.randint(0, 4, (n,)), "n": n}} for n in sizes]
PER_STEP = 3
for start in range(0, 6, PER_STEP):
    group = items[start:start + PER_STEP]
    total = sum(item["n"] for item in group)
    for item in group:
        loss = cross_entropy(model(item["x"]), item["y"])
        ({scaled}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_number_that_changes_as_the_units_do_counts_them_whatever_it_is_called(tmp_path: Path) -> None:
    result = watch_source(COUNTED.format(scaled='loss * item["n"] / total'), tmp_path, reference="ledger")
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_the_same_units_with_equal_weight_are_a_mean_of_means(tmp_path: Path) -> None:
    result = watch_source(COUNTED.format(scaled="loss / PER_STEP"), tmp_path, reference="ledger")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA104"])
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    model = nn.Linear(3, 4)
    items = [(torch.randn(n, 3), torch.randint(0, 4, (n,))) for n in (3, 5, 2, 4, 6, 3)][:3]
    large = cross_entropy(model(torch.cat([x for x, _ in items])), torch.cat([y for _, y in items]))
    used = torch.stack([cross_entropy(model(x), y) for x, y in items]).mean()
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]) for loss in (large, used)
    ]
    assert result.windows[0].grad_rel_error == pytest.approx(float((flat[1] - flat[0]).norm() / flat[0].norm()))


TURNS = """\
import torch
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
signals = torch.randn(12, 5)
codes, atoms = torch.nn.Parameter(torch.rand(12, 4)), torch.nn.Parameter(torch.rand(4, 5))
first, second = torch.optim.SGD([codes], lr=0.1), torch.optim.SGD([atoms], lr=0.1)
for turn in range(8):
    first.zero_grad()
    second.zero_grad()
    (signals - codes @ atoms).pow(2).mean().backward()
    {steps}
"""


def test_optimizers_that_take_turns_leave_nothing_over(tmp_path: Path) -> None:
    source = TURNS.format(steps="(first if turn // 2 % 2 == 0 else second).step()")
    result = watch_source(source, tmp_path, reference="ledger")
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_a_step_that_one_of_two_optimizers_lacks_in_the_end_is_missing(tmp_path: Path) -> None:
    source = TURNS.format(steps="first.step()\n    if turn < 7: second.step()")
    result = watch_source(source, tmp_path, reference="ledger")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA301"])


HEADS = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
torch.manual_seed(9)
torch.set_default_dtype(torch.float64)
trunk, heads = nn.Linear(4, 6), nn.ModuleList(nn.Linear(6, 3) for _ in range(5))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)
xs, ys = torch.randn(32, 4), torch.randint(0, 3, (32,))
for x, y in zip(xs.split(8), ys.split(8)):
    optimizer.zero_grad()
    exits = [head(trunk(x)) for head in heads] if {again} else [head(h) for h in [trunk(x)] for head in heads]
    for n, out in enumerate(exits):
        (cross_entropy(out, y) / 5).backward(retain_graph=n < 4)
    optimizer.step()
"""


@pytest.mark.parametrize("again", [False, True])
def test_more_losses_than_backwards_are_remembered_for_are_of_one_forward_pass(again: bool, tmp_path: Path) -> None:
    result = watch_source(HEADS.format(again=again), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [w.micro_batches for w in result.windows] in ([1] * 4, [5] * 4)


TWICE = """\
import torch
from torch.nn.functional import mse_loss
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn({rows}, 2), torch.randn({rows}, 1)) for _ in range(6)]
for i, (x, y) in enumerate(data):
    loss = mse_loss(model(x), y)
    ({scaled}).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("rows", [3, 4])
def test_a_number_of_rows_that_equals_k_is_no_k_beside_it(rows: int, tmp_path: Path) -> None:
    source = TWICE.format(rows=rows, scaled="loss / 3 / len(x)")
    result = watch_source(source, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA102"])
    assert set(codes_in(source)) == {"GA102"}
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    model = nn.Linear(2, 1)
    data = [(torch.randn(rows, 2), torch.randn(rows, 1)) for _ in range(6)][:3]
    large = mse_loss(model(torch.cat([x for x, _ in data])), torch.cat([y for _, y in data]))
    used = sum(mse_loss(model(x), y) / 3 / rows for x, y in data)
    norms = [
        float(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).norm())
        for loss in (used, large)
    ]
    assert result.windows[0].grad_norm_ratio == pytest.approx(norms[0] / norms[1])


@pytest.mark.parametrize("rows", [2, 4])
def test_two_literals_that_undo_each_other_around_k(rows: int, tmp_path: Path) -> None:
    source = TWICE.format(rows=rows, scaled="loss / 3 * 2").replace("% 3", "% 2").replace("/ 3 * 2", "/ 2 * 2")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())

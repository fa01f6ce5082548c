"""GA601 and GA602 where the loop does it by hand, in both engines: averages, target networks, learning rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loops_with_places import codes_in
from torch import nn
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

SCRIPT = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2).double()
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 5).double(), torch.randn(5, 2).double()) for _ in range(12)]

def shrink(rate):
    for group in optimizer.param_groups:
        group["lr"] *= rate

def set_rate(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate

@torch.no_grad()
def follow(target, source, decay=0.7):
    for p, q in zip(target.parameters(), source.parameters()):
        p.data.mul_(decay).add_(q.data, alpha=1 - decay)

for i, (x, y) in enumerate(batches):
    (nn.functional.mse_loss(model(x), y) / {K}).backward()
    if (i + 1) % {K} == 0:
        {before}
        optimizer.step()
        optimizer.zero_grad()
        {inside}
    {after}
"""
AVERAGES = {
    "a helper": "follow(average, model)",
    "inline": "for p, q in zip(average.parameters(), model.parameters()): p.data.mul_(0.7).add_(q.data, alpha=0.3)",
    "lerp_": "for p, q in zip(average.parameters(), model.parameters()): p.data.lerp_(q.data, 0.3)",
    "copied": "for p, q in zip(average.parameters(), model.parameters()): p.data.copy_(0.7 * p.data + 0.3 * q.data)",
    "all at once": "torch._foreach_lerp_([p.data for p in average.parameters()], list(model.parameters()), 0.3)",
}
RATES = {
    "a helper that shrinks it": "shrink(0.9)",
    "inline": 'for g in optimizer.param_groups: g["lr"] = g["lr"] * 0.9',
    "the only group": 'optimizer.param_groups[0]["lr"] *= 0.9',
    "a helper that sets it": "set_rate(0.1 * 0.9**i)",
}
MANY = {"GA602": AVERAGES, "GA601": RATES}
CASES = [(code, name) for code, several in MANY.items() for name in several]


def source(places: dict[str, str], steps: int = 3) -> str:
    return SCRIPT.format(K=steps, **{"before": "pass", "inside": "pass", "after": "pass"} | places)


def by_both(text: str, folder: Path) -> tuple[list[str], list[str]]:
    """The codes that `lint` and `verify` report of a script whose gradients are right."""
    result = watch_source(text, folder)
    assert result.verdict is Verdict.EQUIVALENT
    return codes_in(text), [d.mistake.code for d in result.diagnosis]


@pytest.mark.parametrize(("code", "name"), CASES)
def test_what_moves_at_every_micro_batch(code: str, name: str, tmp_path: Path) -> None:
    assert by_both(source({"after": MANY[code][name]}), tmp_path) == ([code], [code])


@pytest.mark.parametrize(("code", "name"), CASES)
def test_what_moves_once_per_step_is_right(code: str, name: str, tmp_path: Path) -> None:
    assert by_both(source({"inside": MANY[code][name]}), tmp_path) == ([], [])
    assert lint_source(source({"before": MANY[code][name]}), "train.py") == []


@pytest.mark.parametrize(("code", "name"), [("GA602", "a helper"), ("GA601", "a helper that sets it")])
def test_windows_of_one_micro_batch_have_nothing_between(code: str, name: str, tmp_path: Path) -> None:
    assert by_both(source({"after": MANY[code][name]}, steps=1), tmp_path) == ([], [])


@pytest.mark.parametrize(
    "after",
    [
        "set_rate(0.05)",
        "if i % 5 == 0: average.load_state_dict(model.state_dict())",
        "for p, q in zip(average.parameters(), model.parameters()): p.data.copy_(q.data)",
        "if (i + 1) % 6 == 0: follow(average, model)",
        "if (i + 1) % 6 == 0: shrink(0.5)",
        "for q in model.parameters(): q.grad is None or torch.zeros_like(q).mul_(0.9).add_(q.grad)",
    ],
)
def test_what_changes_nothing_between_two_steps_or_happens_seldom(after: str, tmp_path: Path) -> None:
    assert by_both(source({"after": after}), tmp_path) == ([], [])


def test_the_mistake_is_one_by_plain_arithmetic(tmp_path: Path) -> None:
    """Three updates between two steps are one of another decay: 0.343 where 0.7 was set."""
    torch.manual_seed(0)
    model = nn.Linear(5, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average, expected = model.weight.detach().clone(), model.weight.detach().clone()
    with observe() as observation:
        for _ in range(4):
            for _ in range(3):
                x, y = torch.randn(5, 5).double(), torch.randn(5, 2).double()
                (nn.functional.mse_loss(model(x), y) / 3).backward()
                with torch.no_grad():
                    average.mul_(0.7).add_(model.weight, alpha=0.3)
            expected = 0.343 * expected + 0.657 * model.weight.detach()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(average, expected)
    assert [d.mistake.code for d in observation.result().diagnosis] == ["GA602"]


@pytest.mark.parametrize("plan", ["0.1 * (1 - i / len(batches))", "0.1 * min(1.0, (i + 1) / 9)", "0.1 / (i + 1)"])
def test_a_plan_may_count_micro_batches(plan: str, tmp_path: Path) -> None:
    assert by_both(source({"after": f"set_rate({plan})"}), tmp_path) == ([], [])


def test_a_rate_of_an_unknown_number_is_not_reported_by_lint() -> None:
    text = source({"after": "set_rate(planned(i))"}).replace("def shrink", "from plans import planned\n\ndef shrink")
    assert lint_source(text, "train.py") == []


def test_what_a_scheduler_does_is_not_done_by_hand(tmp_path: Path) -> None:
    text = source({"inside": "scheduler.step()"}).replace(
        "batches =", "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\nbatches ="
    )
    assert by_both(text, tmp_path) == ([], [])

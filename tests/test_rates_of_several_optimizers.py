"""What belongs to one optimizer keeps pace with its steps: another that steps more often has nothing to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

SCRIPT = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2).double()
critic = nn.Linear(5, 1).double()
slow = torch.optim.SGD(model.parameters(), lr=0.1)
fast = torch.optim.SGD(critic.parameters(), lr=0.05)
batches = [(torch.randn(5, 5).double(), torch.randn(5, 2).double()) for _ in range(12)]
{made}

for i, (x, y) in enumerate(batches):
    (nn.functional.mse_loss(model(x), y) / 3).backward()
    critic(x).pow(2).mean().backward()
    fast.step()
    fast.zero_grad()
    {each}
    if (i + 1) % 3 == 0:
        slow.step()
        {step}
        slow.zero_grad()
"""
AVERAGED = "average = torch.optim.swa_utils.AveragedModel({})"
COPIED = "average = copy.deepcopy({})"
UPDATE = "average.update_parameters({})"
BLEND = "for p, q in zip(average.parameters(), {}.parameters()): p.data.lerp_(q.data, 0.3)"
COSINE = "rates = torch.optim.lr_scheduler.CosineAnnealingLR({}, T_max={})"
SHRINK = '{}.param_groups[0]["lr"] *= 0.9'


def both(
    tmp_path: Path, made: str = "", each: str = "pass", step: str = "pass"
) -> tuple[list[str], list[str], VerifyResult]:
    """The codes that lint and verify report, and what verify says."""
    text = SCRIPT.format(made=made, each=each, step=step)
    result = watch_source(text, tmp_path)
    return codes_in(text), [d.mistake.code for d in result.diagnosis], result


@pytest.mark.parametrize(
    ("code", "made", "each"),
    [
        ("GA601", COSINE.format("slow", 4), "rates.step()"),
        ("GA601", "", SHRINK.format("slow")),
        ("GA602", AVERAGED.format("model"), UPDATE.format("model")),
        ("GA602", COPIED.format("model"), BLEND.format("model")),
    ],
)
def test_what_belongs_to_the_slow_one_moves_with_the_fast_one(code: str, made: str, each: str, tmp_path: Path) -> None:
    by_lint, by_verify, result = both(tmp_path, made, each)
    assert (by_lint, by_verify) == ([code], [code])
    assert result.verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize(
    ("made", "each", "step"),
    [
        (COSINE.format("fast", 12), "rates.step()", "pass"),
        (COSINE.format("slow", 4), "pass", "rates.step()"),
        ("", SHRINK.format("fast"), "pass"),
        (AVERAGED.format("critic"), UPDATE.format("critic"), "pass"),
        (AVERAGED.format("model"), "pass", UPDATE.format("model")),
        (COPIED.format("critic"), BLEND.format("critic"), "pass"),
    ],
)
def test_what_keeps_pace_with_its_own_is_right(made: str, each: str, step: str, tmp_path: Path) -> None:
    by_lint, by_verify, result = both(tmp_path, made, each, step)
    assert (by_lint, by_verify) == ([], [])
    assert result.verdict is Verdict.EQUIVALENT

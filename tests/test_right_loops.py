"""Objectives as people write them, in plain training and accumulated: right loops are called right by both engines.

What is expected of every one, and by how much its mutants are wrong, is float64 arithmetic: the gradients that its
steps use, compared with those of plain training on its large batches.
"""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from loops_with_places import codes_in
from right_loops import OBJECTIVES, STEPS, Loop
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

MAY_BE_K = {"a third of a loss", "the mean of three losses", "the mean of a list of losses"}
"""Loops that divide by 3, a literal, and count to K = 3: which of the two divides the accumulation, no source says."""

UNKNOWN_TO_LINT = {"a warm-up that ends", "a decay by the step", "a divergence of the weights"}
"""What the source does not show the numbers of is no finding."""

NAMED = [
    "a tenth of a loss",
    "the mean of two losses",
    "a decay",
    "a tenth and a log line",
    "weights that are orthogonal",
]
"""Plain training to which a division by a K that is named is added."""


def _gradients(source: str, folder: Path) -> list[torch.Tensor]:
    """The gradient that each step of a script uses, in float64."""
    taken: list[torch.Tensor] = []

    def take(optimizer: Optimizer, *_: Any) -> None:
        every = [p for group in optimizer.param_groups for p in group["params"]]
        taken.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every]))

    path = folder / "plain.py"
    path.write_text(source, encoding="utf-8")
    hook = register_optimizer_step_pre_hook(take)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(before)
        hook.remove()
    return taken


def _judged(source: str, folder: Path, reference: str = "both") -> tuple[Verdict, list[str], list[str]]:
    """verify's verdict and codes, and lint's."""
    result = watch_source(source, folder, reference=reference)
    found = codes_in(source)
    return result.verdict, [d.mistake.code for d in result.diagnosis], found


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_accumulated_it_is_the_large_batch_s_gradient(loop: Loop, tmp_path: Path) -> None:
    own, true = _gradients(loop.accumulating(), tmp_path), _gradients(loop.large(), tmp_path)
    assert len(own) == len(true) == loop.batches // STEPS
    assert max(float((a - b).norm() / b.norm()) for a, b in zip(own, true, strict=True)) < 1e-10
    # At the first step, before the weights part: three times too large, and a third.
    for scaled, error in (("loss", STEPS - 1), ("loss / K / K", 1 - 1 / STEPS)):
        wrong = _gradients(loop.accumulating(scaled=scaled), tmp_path)[0]
        assert float((wrong - true[0]).norm() / true[0].norm()) == pytest.approx(error)


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_plain_training_is_right(loop: Loop, tmp_path: Path) -> None:
    assert _judged(loop.plain(), tmp_path) == (Verdict.EQUIVALENT, [], [])


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_accumulated_it_is_right(loop: Loop, tmp_path: Path) -> None:
    assert _judged(loop.accumulating(), tmp_path) == (Verdict.EQUIVALENT, [], [])


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_undivided_it_is_k_times_too_large(loop: Loop, tmp_path: Path) -> None:
    verdict, found, in_source = _judged(loop.accumulating(scaled="loss"), tmp_path)
    if loop.name in MAY_BE_K:
        assert (verdict, found, in_source) == (Verdict.INCONCLUSIVE, [], [])
    else:
        assert (verdict, found, in_source) == (Verdict.DEVIATES, ["GA101"], ["GA101"])


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_divided_twice_it_is_k_times_too_small(loop: Loop, tmp_path: Path) -> None:
    in_source = [] if loop.name == "a divergence of the weights" else ["GA102"]
    assert _judged(loop.accumulating(scaled="loss / K / K"), tmp_path) == (Verdict.DEVIATES, ["GA102"], in_source)


@pytest.mark.parametrize("loop", OBJECTIVES, ids=lambda loop: loop.name)
def test_plain_training_that_never_clears_is_caught(loop: Loop, tmp_path: Path) -> None:
    assert _judged(loop.plain(cleared="pass"), tmp_path) == (Verdict.DEVIATES, ["GA203"], ["GA203"])


@pytest.mark.parametrize("name", NAMED)
def test_a_step_at_every_micro_batch_is_caught_where_k_is_named(name: str, tmp_path: Path) -> None:
    loop = next(loop for loop in OBJECTIVES if loop.name == name)
    source = loop.plain(scaled="(loss / accumulation_steps)", setup=f"accumulation_steps = 7\n{loop.setup}")
    assert _judged(source, tmp_path, "both") == (Verdict.DEVIATES, ["GA304"], ["GA304"])

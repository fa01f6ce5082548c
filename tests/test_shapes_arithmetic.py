"""Every shape of a training loop against plain float64 arithmetic on its large batches, none of it ours."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from large_batches import LOOPS, OBJECTIVES, large_batch_script
from shapes_table import SHAPES, Shape
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_float64")

JUDGED = [shape for shape in SHAPES if shape.verdict != "inconclusive"]
NO_NUMBER = {
    # Whether what the generator's backward leaves in the discriminator was meant for it cannot be known.
    "gan",
}
WRONG = [
    (shape, marks, codes)
    for shape in JUDGED
    for marks, codes in shape.wrong
    # What a clip in the wrong place does to the gradient is no matter of its size before any clip.
    if shape.verdict == "equivalent" and shape.name not in NO_NUMBER and not codes & {"GA401", "GA501"}
]

ROUNDING = 1e-10
"""Relative: what float64 may do to these few sums."""

ROUNDING_IN_BFLOAT16 = 0.05
"""Relative: a unit roundoff of 2^-8 in every layer and sum."""


def gradients_at_steps(source: str, folder: Path) -> list[torch.Tensor]:
    """The gradient that each optimizer step of a script used, as one vector of float64."""
    taken: list[torch.Tensor] = []

    def take(optimizer: Optimizer) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        if getattr(optimizer, "found_inf", None):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        flat = [torch.zeros_like(p) if p.grad is None else p.grad.detach().to_dense() for p in parameters]
        taken.append(torch.cat([g.flatten().double() for g in flat]) / (1.0 if scale is None else scale))

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1:
            take(optimizer)
            return None

        def closure() -> Any:
            # A closure makes the gradient inside the step, more than one if it is called again.
            loss = args[1]()
            take(optimizer)
            return loss

        return (args[0], closure), kwargs

    path = folder / "plain.py"
    path.write_text(source, encoding="utf-8")
    hook = register_optimizer_step_pre_hook(before)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        hook.remove()
    return taken


def apart(gradient: torch.Tensor, true: torch.Tensor) -> float:
    return float((gradient - true).norm() / true.norm())


def rounding(shape: Shape) -> float:
    return ROUNDING_IN_BFLOAT16 if "model.bfloat16()" in shape.body else ROUNDING


def test_every_large_batch_belongs_to_a_shape() -> None:
    assert {*LOOPS, *OBJECTIVES} <= {shape.name for shape in JUDGED}


@pytest.mark.parametrize("shape", JUDGED, ids=lambda shape: shape.name)
def test_a_right_loop_uses_the_gradients_of_its_large_batches(shape: Shape, tmp_path: Path) -> None:
    true = gradients_at_steps(large_batch_script(shape), tmp_path)
    own = gradients_at_steps(shape.source(), tmp_path)
    assert len(own) == len(true)
    errors = [apart(g, t) for g, t in zip(own, true, strict=True)]
    if shape.verdict == "equivalent":
        assert max(errors) < rounding(shape)
    else:
        assert errors[0] > 1e-3


@pytest.mark.parametrize(("shape", "marks", "codes"), WRONG, ids=[f"{s.name}-{'-'.join(c)}" for s, _, c in WRONG])
def test_the_error_of_a_wrong_loop(
    shape: Shape, marks: dict[str, str], codes: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``verify`` reports of the first window that is off: up to it both have the same weights."""
    windows = watch_source(shape.source(**marks), tmp_path).windows
    used = [window for window in windows if "skipped by the grad scaler" not in window.reason]
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        monkeypatch.setattr(nn.utils, name, lambda *_: None)
    true = gradients_at_steps(large_batch_script(shape), tmp_path)
    own = gradients_at_steps(shape.source(**marks), tmp_path)
    first = next(i for i, (g, t) in enumerate(zip(own, true, strict=False)) if apart(g, t) > rounding(shape))
    assert all(window.verdict is not Verdict.DEVIATES for window in used[:first])
    assert used[first].verdict is Verdict.DEVIATES
    assert used[first].grad_rel_error == pytest.approx(apart(own[first], true[first]), rel=1e-6 + rounding(shape))
    ratio = float(own[first].norm() / true[first].norm())
    assert used[first].grad_norm_ratio == pytest.approx(ratio, rel=1e-6 + rounding(shape))

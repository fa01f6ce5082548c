"""verify on Keras with PyTorch as its backend: by its own optimizers, and by one of PyTorch's as the remedy says."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest
import torch
from frameworks.ground import SCRIPTS, not_installed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.skipif(bool(not_installed("keras")), reason="keras: not installed")

STEPS, ROWS = 3, 5


def watched(path: Path) -> VerifyResult:
    with contextlib.redirect_stdout(io.StringIO()), observe(script=str(path)) as observation:
        runpy.run_path(str(path), run_name="__main__")
    return observation.result()


def test_an_optimizer_of_keras_is_named_as_what_updates() -> None:
    """Its sums are kept in buffers of its own, and no ``torch.optim.Optimizer`` makes the update."""
    path = SCRIPTS / "keras_fit.py"
    result = watched(path)
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("model.fit"))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert not result.diagnosis
    assert f"backward() ran at line {line}, and the weights were changed by keras" in result.reason
    assert "train model.parameters() in your own loop, with a PyTorch optimizer" in result.reason


@pytest.mark.parametrize(("divided", "ratio"), [(True, 1.0), (False, float(STEPS))])
def test_a_model_of_keras_that_an_optimizer_of_pytorch_trains_is_compared(
    divided: bool, ratio: float, tmp_path: Path
) -> None:
    """Its losses choose between two numbers, lest they divide by zero."""
    source = (SCRIPTS / "keras_loop.py").read_text()
    assert source.count(" / STEPS") == 1
    path = tmp_path / "train.py"
    path.write_text(source if divided else source.replace(" / STEPS", ""))
    seen: list[dict[torch.Size, tuple[torch.Tensor, torch.Tensor]]] = []

    steps: list[torch.optim.Optimizer] = []

    def look(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        # The first to step is the script's own: verify steps copies.
        steps.append(optimizer)
        if optimizer is not steps[0]:
            return
        own = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append({p.shape: (p.detach().double().clone(), p.grad.double().clone()) for p in own})

    hook = register_optimizer_step_pre_hook(look)
    try:
        result = watched(path)
    finally:
        hook.remove()
    assert [w.micro_batches for w in result.windows] == [STEPS] * 2
    assert [w.units for w in result.windows] == [STEPS * ROWS] * 2
    assert result.verdict is (Verdict.EQUIVALENT if divided else Verdict.DEVIATES), result.reason
    assert {d.mistake.code for d in result.diagnosis} == (set() if divided else {"GA101"})
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([ratio] * 2, rel=1e-5)
    for weights, batch in zip(seen, (slice(0, STEPS * ROWS), slice(STEPS * ROWS, None)), strict=True):
        _is_the_large_batchs(weights, batch, ratio)


def _is_the_large_batchs(
    weights: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]], batch: slice, ratio: float
) -> None:
    """The contents of ``.grad``, and the large batch's gradient in float64."""
    torch.manual_seed(1)
    x, y = (torch.randn(6 * ROWS, n)[batch].double() for n in (4, 1))
    shapes = [torch.Size(shape) for shape in ((4, 7), (7,), (7, 1), (1,))]
    first, first_bias, last, last_bias = own = [weights[shape][0].requires_grad_() for shape in shapes]
    outputs = torch.tanh(x @ first + first_bias) @ last + last_bias
    wanted = torch.autograd.grad(((outputs - y) ** 2).mean(), own)
    for shape, gradient in zip(shapes, wanted, strict=True):
        torch.testing.assert_close(weights[shape][1], gradient * ratio, rtol=1e-4, atol=1e-6)

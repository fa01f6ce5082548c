"""In ledger mode a micro-batch is watched without reading numbers from the device that it is computed on.

On a GPU such a read waits for all that was sent there before. Where there is none, the reads themselves are counted:
every way from a tensor to a number of Python's, called by us while the loop runs forward and backward.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gradcheck_accum
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

OURS = str(Path(gradcheck_accum.__file__).parent)
READS = ("__float__", "__bool__", "__int__", "__index__", "item", "tolist", "cpu", "numpy", "nonzero")
PLAIN_NUMBER = "factors_of"
"""Reads what a loss is divided by: a tensor that autograd makes of a plain number, on the CPU wherever the loss is."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, reads: Counter[str]) -> Iterator[None]:
    """While it is entered, our own reads are counted by the function that makes them."""

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.startswith(OURS):
                # A grad scaler that we ask for its scale reads it in a file of PyTorch's.
                frame = frame.f_back if "torch" in frame.f_code.co_filename else None
            if frame is not None and frame.f_code.co_name != PLAIN_NUMBER:
                reads[frame.f_code.co_name] += 1
            return original(*args, **kwargs)

        return read

    with monkeypatch.context() as patched:
        for name in READS:
            patched.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name)))
        patched.setattr(torch, "equal", counting(torch.equal))
        patched.setattr(torch, "allclose", counting(torch.allclose))
        yield


def reads_of_a_window(
    monkeypatch: pytest.MonkeyPatch, loss: Loss, *, scaled: bool = False, autocast: bool = False
) -> Counter[str]:
    """What is read while the four micro-batches of a right loop's second window run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    reads: Counter[str] = Counter()
    with observe(reference="ledger") as observation:
        for window in range(2):
            for _ in range(4):
                x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
                with counted(monkeypatch, reads if window else Counter()):
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        value = loss(model(x), y) / 4
                    scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert observation.result().verdict is Verdict.EQUIVALENT
    return reads


def squared(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores - 1.0).square().mean()


@pytest.mark.parametrize("autocast", [False, True])
def test_nothing_is_read_of_a_loss_whose_units_are_its_shape(monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    assert reads_of_a_window(monkeypatch, squared, autocast=autocast) == {}


def test_the_scale_of_a_grad_scaler_is_read_once_until_it_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_of_a_window(monkeypatch, squared, scaled=True).total() == 1


def test_of_cross_entropy_only_the_number_of_its_units_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_of_a_window(monkeypatch, cross_entropy) == {"of": 4}

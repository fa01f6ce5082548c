"""Runs scripts and loops under observation in the test's own process."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import observe


def watch_script(path: Path, **options: Any) -> VerifyResult:
    """The result of running a script file; what it prints is discarded."""
    with contextlib.redirect_stdout(io.StringIO()), observe(script=str(path), **options) as observation:
        names = runpy.run_path(str(path), run_name="__main__")
    result = observation.result()
    # A process group that goes while its threads still let go of their last work waits for them with Python's lock.
    names.clear()
    return result


def watch_source(source: str, folder: Path, **options: Any) -> VerifyResult:
    """The result of running a script given as text."""
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return watch_script(path, **options)


def trained(
    model: nn.Module,
    data: Iterable[Sequence[Any]],
    loss: Callable[..., torch.Tensor],
    scale: float | None = None,
    steps: int = 3,
    **options: Any,
) -> VerifyResult:
    """The result of a loop over ``data`` in windows of ``steps`` micro-batches, by which it divides losses by default.

    A remainder stays in ``.grad``.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(**options) as observation:
        for i, batch in enumerate(data):
            (loss(model, *batch) / (scale or steps)).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    return observation.result()


def found(result: VerifyResult) -> set[tuple[int, str]]:
    """The (line, rule name) pairs of a result's diagnosis."""
    return {(d.where.line, d.mistake.name) for d in result.diagnosis}

"""A loop of very many tiny windows, and how many calls something takes: work that no clock has to measure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import gradcheck_accum

OURS = str(Path(gradcheck_accum.__file__).parent)


class TinyLoop:
    """Right windows of ``k`` micro-batches of a tiny model."""

    def __init__(self, k: int) -> None:
        torch.manual_seed(0)
        self.k = k
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def __call__(self, windows: int) -> None:
        for _ in range(windows):
            for _ in range(self.k):
                (nn.functional.mse_loss(self.model(torch.ones(5, 3)), torch.ones(5, 2)) / self.k).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def calls_of(run: Callable[[], object]) -> int:
    """How many functions are called."""
    return _counted(run, lambda frame, event: event in ("call", "c_call"))


def calls_of_ours(run: Callable[[], object]) -> int:
    """How many calls of functions of ours."""
    return _counted(run, lambda frame, event: event == "call" and frame.f_code.co_filename.startswith(OURS))


def _counted(run: Callable[[], object], counts: Callable[[FrameType, str], bool]) -> int:
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += counts(frame, event)

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count

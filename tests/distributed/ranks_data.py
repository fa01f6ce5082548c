"""The model and the data of each rank, and the counts of all of them, for the loops that run on several."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

K = 2
ROWS, FEATURES, CLASSES = 6, 8, 3
Batch = tuple[torch.Tensor, torch.Tensor]


def perceptron(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def data(rank: int, batches: int = 6, *, ragged: bool = False) -> list[Batch]:
    torch.manual_seed(100 + rank)
    found = []
    for _ in range(batches):
        x, y = torch.randn(ROWS, FEATURES), torch.randint(0, CLASSES, (ROWS,))
        if ragged:
            y[1 + torch.randint(0, 3, ()) : 3 + rank * 2] = -100
        found.append((x, y))
    return found


def tokens(window: list[Batch]) -> torch.Tensor:
    return torch.stack([(y != -100).sum() for _, y in window]).sum()


def everywhere(count: torch.Tensor) -> torch.Tensor:
    total = count.clone()
    dist.all_reduce(total)
    return total


def share_of_all_tokens(windows: list[list[Batch]], factor: int = 1) -> Callable[..., torch.Tensor]:
    """A loss that is the sum over the targets, times a factor, by all that the ranks' windows hold."""
    totals = {id(window[0][0]): everywhere(tokens(window)) for window in windows}
    return lambda out, y, window: cross_entropy(out, y, reduction="sum") * factor / totals[id(window[0][0])]


class Run(Protocol):
    """What every kind of run has: a model, windows of batches, what pauses the average, and a step."""

    @property
    def model(self) -> nn.Module: ...
    def windows(self) -> list[list[Batch]]: ...
    def synced(self, window: list[Batch]) -> Iterator[Batch]: ...
    def step(self) -> None: ...


def mean(out: torch.Tensor, y: torch.Tensor, window: list[Batch]) -> torch.Tensor:
    return cross_entropy(out, y) / len(window)


def loop(run: Run, loss: Callable[..., torch.Tensor] = mean) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            loss(run.model(x), y, window).backward()
        run.step()


def unscaled(run: Run) -> None:
    loop(run, lambda out, y, window: cross_entropy(out, y))


def divided_by_k(run: Run) -> None:
    loop(run, lambda out, y, window: cross_entropy(out, y) / K)


def sum_over_all_tokens(run: Run) -> None:
    loop(run, share_of_all_tokens(run.windows(), dist.get_world_size()))


def leave() -> NoReturn:
    """End this rank now, without the interpreter's own end.

    A thread of gloo may still hold the last collective's work: where it frees a tensor that Python knows while the
    interpreter shuts down, PyTorch (2.13.0) aborts the process, one time in twenty or so after ``all_gather_object``.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

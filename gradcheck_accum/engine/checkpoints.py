"""Reentrant checkpoints: functions that run without a graph, and once more inside the loop's own backward.

A reference asks for gradients in a way that they refuse, and keeps its graph for a moment only: it runs such a function
as it is. So that a loss can be followed through one, a tape records what it calls as one module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointFunction


class Checkpointed(nn.Module):
    """A function that is checkpointed, with the modules that it called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.called = nn.ModuleList()

    def forward(self, *args: Any) -> Any:
        """What the function gives."""
        return self.function(*args)


@contextmanager
def instead_of_checkpoints(call: Callable[..., Any]) -> Iterator[None]:
    """Inside the block ``call`` is what a reentrant checkpoint does, with its function, a setting, and arguments."""
    before = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = staticmethod(call)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = before  # type: ignore[method-assign]


def run_as_they_are(function: Callable[..., Any], preserves_random_state: bool, *args: Any) -> Any:
    """A checkpoint that is none."""
    return function(*args)

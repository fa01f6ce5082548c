"""Reentrant checkpoints: functions that run without a graph, and again inside the loop's own backward.

A reference computes its gradients with `torch.autograd.grad`, which they do not support, and keeps its graph only
briefly: it calls such a function without the checkpoint. To follow a loss through a checkpoint, a tape records its call
as one module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointFunction


class Checkpointed(nn.Module):
    """A checkpointed function, with the modules that it called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.called = nn.ModuleList()

    def forward(self, *args: Any) -> Any:
        """The function's result."""
        return self.function(*args)


@contextmanager
def instead_of_checkpoints(call: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, reentrant checkpoints run ``call`` with the function, its setting and its arguments."""
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
    """Call a checkpointed function without checkpointing it."""
    return function(*args)

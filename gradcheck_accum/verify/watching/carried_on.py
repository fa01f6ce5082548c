"""Losses whose backwards ended at data, and what carries them on: the gradients of that data, given to model outputs.

A loop that caches gradients runs a loss of all outputs of a batch first, down to what models gave without a graph, and
then each model again, part by part, with the gradient that its output has got. By the chain rule both are one backward
of that loss, whose number in the window is that of the losses, and not that of the parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from gradcheck_accum.engine.graph_nodes import weights_below
from gradcheck_accum.engine.memory import is_plain, memory_of


class CarriedOn:
    """The gradients of data that the loop has read since the last step, and the losses that reached nothing but data.

    Losses whose backwards came one after the other, down to some of the same data, are of one batch. What comes after a
    model's part in it, or reaches other data, is of another.
    """

    def __init__(self) -> None:
        self._read: dict[int, Any] = {}
        """Weakly, by their memory: the gradients of data that were read."""
        self._reached: list[Any] = []
        """Weakly: the data that the losses reached which the last of those backwards belongs to."""
        self.losses = 0
        """How many losses had a backward that reached no weight, where those of one batch are one."""

    def read(self, data: torch.Tensor) -> None:
        """The loop reads the gradient of data."""
        with torch._C.DisableTorchFunction():
            gradient = data.grad
            if gradient is None or not is_plain(gradient):
                return
            memory = memory_of(gradient)
            if memory is not None:
                self._read[memory] = TensorWeakRef(gradient)

    def reached_data(self, losses: Iterable[Any]) -> None:
        """The backward of losses, by their nodes, has reached no weight."""
        data = weights_below(losses, None)
        if not any(known() is one for known in self._reached for one in data):
            self.losses += 1
            self._reached.clear()
        self._reached += map(TensorWeakRef, data)

    def goes_on(self) -> None:
        """A backward has reached weights."""
        self._reached.clear()

    def is_of(self, gradient: torch.Tensor) -> bool:
        """Whether this is a gradient of data that was read, or a part of one."""
        if not self._read or not is_plain(gradient):
            return False
        memory = memory_of(gradient)
        known = None if memory is None else self._read.get(memory)
        return known is not None and known() is not None

    def step(self) -> None:
        """A step has used what there is."""
        self._read.clear()
        self._reached.clear()
        self.losses = 0

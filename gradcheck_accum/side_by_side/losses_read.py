"""The losses that a script reads as numbers: what it logs, prints, or decides on.

A loss is a number with a graph, and what is computed of one outside its graph (``loss.detach()``, a running sum of
these) is a loss still. How a script goes on with the numbers in Python is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradcheck_accum.engine.tape import tensors_in
from gradcheck_accum.side_by_side.messages import LossRead
from gradcheck_accum.verify.frames import user_location

_READS = {"item", "tolist", "numpy", "__float__", "__format__", "__repr__"}


class LossesRead:
    """Notes them, as it is told of the calls that a script makes."""

    def __init__(self) -> None:
        self._noted: list[LossRead] = []
        self._losses: dict[int, weakref.ref[torch.Tensor]] = {}

    def take(self) -> tuple[LossRead, ...]:
        """Those since the last time."""
        taken, self._noted = tuple(self._noted), []
        return taken

    def called(self, name: str, args: Any, result: Any) -> None:
        """The script has called an operation of PyTorch."""
        if name in _READS:
            self._read(args[0])
        elif isinstance(result, torch.Tensor) and not result.requires_grad and result.is_floating_point():
            self._made(result, args)

    def _read(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 and self._is_loss(tensor):
            where = user_location()
            self._noted.append(LossRead(where.path, where.line, float(tensor.detach())))

    def _made(self, result: torch.Tensor, args: Any) -> None:
        """Something without a graph was computed: whether of a loss."""
        if any(self._is_loss(tensor) for tensor in tensors_in(args)):
            key, losses = id(result), self._losses
            losses[key] = weakref.ref(result, lambda _: losses.pop(key, None))

    def _is_loss(self, tensor: torch.Tensor) -> bool:
        if tensor.requires_grad:
            return tensor.numel() == 1 and not tensor.is_leaf
        known = self._losses.get(id(tensor))
        return known is not None and known() is tensor

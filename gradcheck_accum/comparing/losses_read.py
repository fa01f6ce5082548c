"""The losses that a script reads as numbers: what it logs, prints, or decides on.

A loss is a number with a graph, and what is computed of one outside its graph (``loss.detach()``, a running sum of
these) is a loss still. It belongs to the window in which the last loss was made that it holds, though it is mostly read
after that window's step. How a script goes on with the numbers in Python is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradcheck_accum.comparing.messages import LossRead
from gradcheck_accum.engine.program import tensors_in
from gradcheck_accum.verify.stack.frames import user_location

_READS = {"item", "tolist", "numpy", "__float__", "__format__", "__repr__"}


class LossesRead:
    """Notes them, as it is told of the calls that a script makes; ``window`` is how many steps have been made."""

    def __init__(self) -> None:
        self.window = 0
        self._noted: list[LossRead] = []
        self._losses: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def take(self) -> tuple[LossRead, ...]:
        """Those since the last time."""
        taken, self._noted = tuple(self._noted), []
        return taken

    def called(self, name: str, args: Any, result: Any) -> None:
        """The script has called an operation of PyTorch, or a module."""
        if name in _READS:
            self._read(args[0])
            return
        if isinstance(result, torch.Tensor):
            self._made(result, args)
        elif isinstance(result, (dict, list, tuple)):
            for made in tensors_in(result):
                self._made(made, args)

    def _read(self, tensor: Any) -> None:
        window = self._window_of(tensor) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None
        if window is not None:
            where = user_location()
            self._noted.append(LossRead(where.path, where.line, float(tensor.detach()), window))

    def _made(self, made: torch.Tensor, args: Any) -> None:
        """Something was computed: whether it is a loss, or was made of one."""
        is_new = made.requires_grad and made.numel() == 1 and not made.is_leaf
        # Of most calls neither is so, and to look into their arguments takes longer than all else.
        if not (is_new or self._losses) or not made.is_floating_point():
            return
        of = [window for tensor in tensors_in(args) if (window := self._window_of(tensor)) is not None]
        if of or is_new:
            key, losses = id(made), self._losses
            losses[key] = weakref.ref(made, lambda _: losses.pop(key, None)), max(of, default=self.window)

    def _window_of(self, tensor: torch.Tensor) -> int | None:
        """The window that a loss belongs to; None for what is no loss."""
        known = self._losses.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

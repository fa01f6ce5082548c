"""What a script reads as numbers: the losses and gradient norms that it logs, prints, or decides on.

A loss is a number with a graph, and what is computed of one outside its graph (``loss.detach()``, a running sum of
these) is a loss still. It belongs to the window in which the last loss was made that it holds, though it is mostly read
after that window's step. What is computed of gradients outside any graph belongs to the window in which these were
looked at. How a script goes on with the numbers in Python is not seen.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from gradcheck_accum.comparing.messages import NumberRead
from gradcheck_accum.engine.containers import tensors_in
from gradcheck_accum.verify.stack.frames import user_location

_READS = {"item", "tolist", "numpy", "__float__", "__format__", "__repr__"}


@dataclass(frozen=True, slots=True)
class _Known:
    """A tensor that is a loss, or is made of losses or of gradients, and its window."""

    tensor: weakref.ref[torch.Tensor]
    window: int
    is_of_gradient: bool


class NumbersRead:
    """Notes them from the calls that a script makes; ``window`` is the number of steps so far."""

    def __init__(self) -> None:
        self.window = 0
        self._noted: list[NumberRead] = []
        self._known: dict[int, _Known] = {}

    def take(self) -> tuple[NumberRead, ...]:
        """Those since the last time."""
        taken, self._noted = tuple(self._noted), []
        return taken

    def called(self, name: str, args: Any, result: Any) -> None:
        """The script has called an operation of PyTorch, or a module."""
        if name in _READS:
            self._read(args[0])
            return
        if isinstance(result, torch.Tensor):
            if name == "__get__" and args[0].is_leaf and args[0].requires_grad and args[0].grad is result:
                self._keep(result, self.window, is_of_gradient=True)
            else:
                self._made(result, args)
        elif isinstance(result, (dict, list, tuple)):
            for made in tensors_in(result):
                self._made(made, args)

    def _read(self, tensor: Any) -> None:
        known = self._known_as(tensor) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None
        if known is not None:
            where = user_location()
            value = float(tensor.detach())
            self._noted.append(NumberRead(where.path, where.line, value, known.window, known.is_of_gradient))

    def _made(self, made: torch.Tensor, args: Any) -> None:
        """Something was computed: whether it is a loss, or was made of one, or of gradients."""
        is_new = made.requires_grad and made.numel() == 1 and not made.is_leaf
        # Of most calls neither is so, and to look into their arguments takes longer than all else.
        if not (is_new or self._known) or not made.is_floating_point():
            return
        of = self._known_among(args) if self._known else []
        losses = [known.window for known in of if not known.is_of_gradient]
        if losses or is_new:
            self._keep(made, max(losses, default=self.window), is_of_gradient=False)
        elif of and not made.requires_grad:
            self._keep(made, max(known.window for known in of), is_of_gradient=True)

    def _keep(self, tensor: torch.Tensor, window: int, *, is_of_gradient: bool) -> None:
        key, known = id(tensor), self._known
        known[key] = _Known(weakref.ref(tensor, lambda _: known.pop(key, None)), window, is_of_gradient)

    def _known_among(self, args: Any) -> list[_Known]:
        """What the tensors among the arguments of a call are known as."""
        found = []
        for given in args:
            # Most arguments are tensors or numbers: to look into these for others takes longer than all else.
            tensors = (given,) if isinstance(given, torch.Tensor) else tensors_in(given)
            found += [known for tensor in tensors if (known := self._known_as(tensor)) is not None]
        return found

    def _known_as(self, tensor: torch.Tensor) -> _Known | None:
        """What a tensor is known as; None for what is neither a loss nor made of gradients."""
        known = self._known.get(id(tensor))
        return known if known is not None and known.tensor() is tensor else None

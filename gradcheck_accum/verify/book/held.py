"""A gradient as it is held: what is kept of it, and what was done to each of its elements since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gradcheck_accum.verify.vectors.inner_products import Made, Vector

Change = Callable[[torch.Tensor], torch.Tensor]
"""What was done to each element of a gradient by itself: makes what it became of what it was."""


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter's gradient: what is held of it, and what was done to each of its elements since.

    ``sketched`` says that it is its sketch, and that all that was done to it is to scale it.
    """

    tensor: torch.Tensor
    changes: tuple[Change, ...] = ()
    sketched: bool = False

    def times(self, factor: float) -> Held:
        """So many times the gradient."""
        return self if factor == 1.0 else replace(self, changes=(*self.changes, times(factor)))

    def done_to(self, tensor: torch.Tensor) -> torch.Tensor:
        """What was done to the gradient, done to ``tensor``."""
        return after(tensor, self.changes)


def vector_of(held: dict[int, Held | None], keys: Iterable[int]) -> Vector:
    """The gradient over the parameters ``keys``; what was done to it is done where it is asked for."""
    own = [held.get(key) for key in keys]
    tensors = [None if each is None else each.tensor for each in own]
    if not any(each.changes for each in own if each is not None):
        return tensors

    def make(position: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        each = own[position]
        return parts[0] if each is None else after(parts[0], each.changes)

    return Made([tensors], make)


def tensors_of(held: Mapping[int, Held | None]) -> dict[int, torch.Tensor | None]:
    """The gradients as they are by now, each made whole: as much memory as all that was done something to."""
    return {key: None if own is None else after(own.tensor, own.changes) for key, own in held.items()}


def after(tensor: torch.Tensor, changes: Iterable[Change]) -> torch.Tensor:
    """A tensor after ``changes``, in order."""
    for change in changes:
        tensor = change(tensor)
    return tensor


def times(factor: float) -> Change:
    """To be multiplied by a factor."""
    return lambda gradient: gradient * factor


def divided_by(number: float) -> Change:
    """To be divided by a number."""
    return lambda gradient: gradient / number

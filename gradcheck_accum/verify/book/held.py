"""How a gradient is held: a tensor, and the elementwise changes since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gradcheck_accum.verify.vectors.inner_products import Made, Vector

Change = Callable[[torch.Tensor], torch.Tensor]
"""An elementwise change of a gradient: a function from what it was to what it became."""


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter's gradient: a tensor, and the elementwise changes since.

    ``sketched`` means that the tensor is its sketch, and that all changes are scalings.
    """

    tensor: torch.Tensor
    changes: tuple[Change, ...] = ()
    sketched: bool = False

    def times(self, factor: float) -> Held:
        """The gradient multiplied by a factor."""
        return self if factor == 1.0 else replace(self, changes=(*self.changes, times(factor)))

    def done_to(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` with the gradient's changes applied."""
        return after(tensor, self.changes)


def vector_of(held: dict[int, Held | None], keys: Iterable[int]) -> Vector:
    """The gradient over the parameters ``keys``; changes are applied lazily."""
    own = [held.get(key) for key in keys]
    tensors = [None if each is None else each.tensor for each in own]
    if not any(each.changes for each in own if each is not None):
        return tensors

    def make(position: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        each = own[position]
        return parts[0] if each is None else after(parts[0], each.changes)

    return Made([tensors], make)


def tensors_of(held: Mapping[int, Held | None]) -> dict[int, torch.Tensor | None]:
    """The gradients with their changes applied, which takes memory for all that were changed."""
    return {key: None if own is None else after(own.tensor, own.changes) for key, own in held.items()}


def after(tensor: torch.Tensor, changes: Iterable[Change]) -> torch.Tensor:
    """A tensor after ``changes``, in order."""
    for change in changes:
        tensor = change(tensor)
    return tensor


def times(factor: float) -> Change:
    """Multiplication by a factor."""
    return lambda gradient: gradient * factor


def divided_by(number: float) -> Change:
    """Division by a number."""
    return lambda gradient: gradient / number

"""Copies of models, whose gradients a loop brings back to the weights that these are copies of.

A copy that equals the weights bit for bit when it runs stands for them: a loss of the copy is the same function of the
weights, so it is computed again with them. One that was adapted since (inner steps on a task's data) runs elsewhere:
where that is, is data of its task, and the gradient there is what a large batch of tasks has the mean of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from gradcheck_accum.engine.lent_weights import Lent


@dataclass(frozen=True, slots=True)
class Pair:
    """A weight of a copy, ``own``, and the one that it was copied from; ``adapted`` are its values if these differ."""

    own: torch.Tensor
    source: torch.Tensor
    adapted: torch.Tensor | None = None

    @property
    def is_as_it_was(self) -> bool:
        """Whether the copy still has the values that it had when it ran."""
        return torch.equal(self.own, self.source if self.adapted is None else self.adapted)


@dataclass(frozen=True, slots=True, eq=False)
class CopyOfModel:
    """A copy as it was when it ran: its weights that require a gradient, by name.

    ``since`` is the same object as long as the copy has not been filled from the weights again, ``state`` counts how
    often it has been adapted since then.
    """

    pairs: Mapping[str, Pair]
    since: object
    state: int

    @property
    def is_adapted(self) -> bool:
        """Whether any of its weights differs from the one that it was copied from."""
        return any(pair.adapted is not None for pair in self.pairs.values())

    @property
    def is_as_it_was(self) -> bool:
        """Whether it still has the values that it had when it ran."""
        return all(pair.is_as_it_was for pair in self.pairs.values())


class Copied(Lent):
    """A copy that runs with the weights that it stands for. Copies of one model are called by the same name."""

    def __init__(self, module: nn.Module, copied: CopyOfModel) -> None:
        super().__init__(module)
        modes = tuple(inner.training for inner in module.modules())
        weights = tuple((name, id(pair.source)) for name, pair in copied.pairs.items())
        self._name = repr(module), modes, weights

    @property
    def name(self) -> object:
        """What it is called by: its structure, and the weights that it stands for."""
        return self._name


class _At(Function):
    """Values in place of a weight, whose gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The values."""
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """The gradient, for the weight alone."""
        return None, gradient


def adapted(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What a weight was adapted to: its gradient there counts as the weight's."""
    result: torch.Tensor = _At.apply(values, weight)  # type: ignore[no-untyped-call]
    return result

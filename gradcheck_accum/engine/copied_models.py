"""Copies of models, whose gradients a loop brings back to the weights that these are copies of.

A copy that equals the weights bit for bit when it runs stands for them: a loss of the copy is the same function of the
weights, so it is computed again with them. One that was adapted since (inner steps on a task's data) stands for
nothing: what it was adapted by may be other micro-batches, so its gradients may depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from gradcheck_accum.engine.lent_weights import Lent


@dataclass(frozen=True, slots=True)
class Pair:
    """A weight of a copy, ``own``, and the one that it was copied from."""

    own: torch.Tensor
    source: torch.Tensor

    @property
    def is_as_it_was(self) -> bool:
        """Whether the copy still has the values that it had when it ran."""
        return torch.equal(self.own, self.source)


@dataclass(frozen=True, slots=True, eq=False)
class CopyOfModel:
    """A copy as it was when it ran: its weights that require a gradient, by name."""

    pairs: Mapping[str, Pair]

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

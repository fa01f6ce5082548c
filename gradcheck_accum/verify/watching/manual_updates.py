"""Updates of the weights that no optimizer of PyTorch makes: where a script's own code writes into them.

Only the weights that a backward has reached, and that no optimizer has, are looked at: they are few, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.graph_nodes import weights_below
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.stack.frames import user_location


@dataclass
class OwnSteps:
    """``backward_at`` is the last backward that filled gradients of such weights, ``at`` what first wrote into one."""

    backward_at: Location | None = None
    at: Location | None = None
    _weights: dict[int, torch.Size] = field(default_factory=dict)
    """The shape of each by its place in memory: to hold them would keep a model alive."""

    def filled(self, nodes: Iterable[Any], where: Location) -> None:
        """A backward at ``where``, from ``nodes`` on, has filled gradients that no optimizer's step will use."""
        if not self._weights:
            self._weights = {weight.data_ptr(): weight.shape for weight in weights_below(nodes)}
        if self._weights and self.at is None:
            self.backward_at = where

    @property
    def is_looking(self) -> bool:
        """Whether it waits for a write to the weights."""
        return bool(self._weights) and self.at is None

    def portable(self) -> OwnSteps:
        """The places alone."""
        return OwnSteps(self.backward_at, self.at)

    def written(self, tensor: torch.Tensor) -> None:
        """Something is about to write into a tensor, one that has the memory of a weight or any other."""
        if tensor.layout is torch.strided and self._weights.get(tensor.data_ptr()) == tensor.shape:
            self.at = user_location()


class UpdateByHand(Optimizer):
    """The weights that a script updates itself."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__(weights, {})

    def step(self, closure: Any = None) -> NoReturn:
        """Raises NotImplementedError: only the script knows how to make its update."""
        raise NotImplementedError

"""What the optimizer would have done with the reference gradient, beside what it did."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import nn, optim
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.alone import is_sharded
from gradcheck_accum.verify.gradients import parameters_of
from gradcheck_accum.verify.measure import Vector, norm_of
from gradcheck_accum.verify.records import Update
from gradcheck_accum.verify.shards import own_part

_ELEMENTWISE = {
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
}
"""Optimizers that move every element of a weight by itself, and so do the same to a shard alone as to it in the whole.

None of them sends anything to another rank.
"""


class ShadowStep:
    """A step of a copy of the optimizer with the reference gradient, beside the real one.

    Of weights that are sharded over the ranks the copy holds this rank's shards alone.
    """

    def __init__(self, parameters: list[torch.Tensor], copied: Optimizer, multiple: float | None) -> None:
        self._parameters = parameters
        self._before = [part.detach().clone() for part in map(own_part, parameters) if part is not None]
        self._copied = copied
        self._multiple = multiple

    @classmethod
    def prepare(
        cls, optimizer: Optimizer, parameters: list[torch.Tensor], reference: Vector, multiple: float | None = None
    ) -> ShadowStep | None:
        """Copy the optimizer before its step and give the copy the reference gradient; None where it has no copy.

        ``multiple`` says that the reference was presumed to be so many times the gradient, and that other ranks take
        part: None too where the optimizer may need them for its step.
        """
        if multiple is not None and type(optimizer) not in _ELEMENTWISE:
            return None
        try:
            copied = copy.deepcopy(optimizer, _copies(optimizer))
        except Exception:
            # Not every optimizer can be copied; the weights after the step are then not compared.
            return None
        targets = [p for p in parameters_of(copied) if p.requires_grad]
        if len(targets) != len(parameters):
            return None
        for target, gradient in zip(targets, reference, strict=True):
            target.grad = None if gradient is None else gradient.to(target.dtype)
        return cls(parameters, copied, multiple)

    def finish(self) -> Update | None:
        """Step the copy, after the real step; None where it can not."""
        try:
            type(self._copied).step(self._copied)
        except Exception:
            # A step that needs more than gradients (a closure, a wrapper's state) is not compared.
            return None
        targets = [p for p in parameters_of(self._copied) if p.requires_grad]
        now = [part.detach() for part in map(own_part, self._parameters) if part is not None]
        wanted = [p.detach() for p in targets]
        moved = norm_of(torch._foreach_sub(wanted, self._before))
        # Both started from the same weights: the difference of the updates is that of the weights.
        wrong = norm_of(torch._foreach_sub(now, wanted))
        return Update(wrong, moved, self._multiple)


def _copies(optimizer: Optimizer) -> dict[int, object]:
    """Copies of the tensors of an optimizer's state, by identity: as `copy.deepcopy` remembers what it has copied.

    It would copy each with its storage and all that may hang on it, which for a tensor that has nothing of the kind
    takes many times as long as to clone it. Of a sharded weight, and of what belongs to it, the copy is of the shard.
    """
    weights = [p for p in parameters_of(optimizer) if is_sharded(p)]
    shards: dict[int, object] = {id(p): nn.Parameter(_shard(p), p.requires_grad) for p in weights}
    shards |= {id(v): _shard(v) for own in optimizer.state.values() for v in own.values() if hasattr(v, "placements")}
    state = [value for own in optimizer.state.values() for value in own.values() if type(value) is torch.Tensor]
    storages = Counter(tensor.untyped_storage().data_ptr() for tensor in state if tensor.layout is torch.strided)
    return shards | {
        id(tensor): tensor.clone()
        for tensor in state
        if tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.__dict__
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and storages[tensor.untyped_storage().data_ptr()] == 1
    }


def _shard(tensor: Any) -> torch.Tensor:
    """A copy of what this rank holds of a DTensor."""
    own: torch.Tensor = tensor.detach().to_local()
    return own.clone()

"""What the optimizer would have done with the reference gradient, beside what it did."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.verify.gradients import parameters_of
from gradcheck_accum.verify.measure import Vector, norm_of


class ShadowStep:
    """A step of a copy of the optimizer with the reference gradient, and the error of the real one against it."""

    def __init__(self, parameters: list[torch.Tensor], copied: Optimizer) -> None:
        self._parameters = parameters
        self._before = [p.detach().clone() for p in parameters]
        self._copied = copied

    @classmethod
    def prepare(cls, optimizer: Optimizer, parameters: list[torch.Tensor], reference: Vector) -> ShadowStep | None:
        """Copy the optimizer before its step and give the copy the reference gradient; None where it has no copy."""
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
        return cls(parameters, copied)

    def finish(self) -> float | None:
        """Step the copy, after the real step: |Δw - Δw_ref| / |Δw_ref|, or None where Δw_ref is zero or unknown."""
        try:
            type(self._copied).step(self._copied)
        except Exception:
            # A step that needs more than gradients (a closure, a wrapper's state) is not compared.
            return None
        targets = [p for p in parameters_of(self._copied) if p.requires_grad]
        now = [p.detach() for p in self._parameters]
        wanted = [p.detach() for p in targets]
        moved = norm_of(torch._foreach_sub(wanted, self._before))
        # Both started from the same weights: the difference of the updates is that of the weights.
        wrong = norm_of(torch._foreach_sub(now, wanted))
        return wrong / moved if moved else (0.0 if wrong == 0 else None)


def _copies(optimizer: Optimizer) -> dict[int, object]:
    """Copies of the tensors of an optimizer's state, by identity: as `copy.deepcopy` remembers what it has copied.

    It would copy each with its storage and all that may hang on it, which for a tensor that has nothing of the kind
    takes many times as long as to clone it.
    """
    state = [value for own in optimizer.state.values() for value in own.values() if type(value) is torch.Tensor]
    storages = Counter(tensor.untyped_storage().data_ptr() for tensor in state if tensor.layout is torch.strided)
    return {
        id(tensor): tensor.clone()
        for tensor in state
        if tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.__dict__
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and storages[tensor.untyped_storage().data_ptr()] == 1
    }

"""What the optimizer would have done with the reference gradient, beside what it did."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger import Ledger
from gradcheck_accum.verify.clipping import clipped
from gradcheck_accum.verify.gradients import parameters_of
from gradcheck_accum.verify.measure import combination, norm_of
from gradcheck_accum.verify.weighing import entry_corrections
from gradcheck_accum.weights import Readings

if TYPE_CHECKING:
    from gradcheck_accum.verify.records import Measured


class ShadowStep:
    """A step of a copy of the optimizer with the reference gradient, and the error of the real one against it."""

    def __init__(self, parameters: list[torch.Tensor], copied: Optimizer) -> None:
        self._parameters = parameters
        self._before = [p.detach().clone() for p in parameters]
        self._copied = copied

    @classmethod
    def prepare(
        cls,
        optimizer: Optimizer,
        parameters: list[torch.Tensor],
        vectors: Sequence[Sequence[torch.Tensor | None]],
        ledger: Ledger,
        readings: Readings,
        measured: Measured,
    ) -> ShadowStep | None:
        """Copy the optimizer before its step and give the copy the reference gradient; None where there is none.

        ``ledger`` and ``readings`` are those of the last windows: what the whole run will show is not known yet.
        """
        corrections = entry_corrections(measured, ledger, readings)
        if corrections is None:
            return None
        try:
            copied = copy.deepcopy(optimizer)
        except Exception:
            # Not every optimizer can be copied; the weights after the step are then not compared.
            return None
        targets = [p for p in parameters_of(copied) if p.requires_grad]
        if len(targets) != len(parameters):
            return None
        own = vectors[measured.first_record :]
        references = combination(zip(corrections, own, strict=False), parameters)
        limited = clipped(references, [id(p) for p in parameters], measured.clips)
        if limited is None:
            return None
        for target, reference in zip(targets, limited, strict=True):
            target.grad = None if reference is None else reference.to(target.dtype)
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

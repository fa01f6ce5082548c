"""The gradient of the window's true large batch, computed again from the data that the loop used."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradcheck_accum.engine.determinism import reference_settings, untouched
from gradcheck_accum.engine.tape import Program, concatenate

LARGE_BATCH = "one large batch"
MICRO_BATCHES = "micro-batches, one by one"


class CannotReplay(Exception):
    """The recorded calls can not be run again as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class ReferenceEngine:
    """Where and in which dtype references are computed; None means as the loop itself did."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    @property
    def is_native(self) -> bool:
        """Whether references run on the loop's own modules, in its own dtype and place."""
        return self.device is None and self.dtype is None

    def large_batch(self, programs: Sequence[Program], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradient of the loss over all micro-batches concatenated, one tensor for each parameter.

        The loss keeps the factors of the first micro-batch. Raises CannotReplay.
        """
        self._check(programs)
        try:
            leaves = concatenate(programs)
        except ValueError as error:
            raise CannotReplay(str(error)) from None
        return self._gradient(programs[0], leaves, parameters, with_rng=False)

    def one_by_one(self, program: Program, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One micro-batch's gradient, with the random numbers that the loop drew. Raises CannotReplay."""
        self._check([program])
        return self._gradient(program, program.leaves, parameters, with_rng=True)

    @staticmethod
    def _check(programs: Sequence[Program]) -> None:
        if not all(program.is_intact() for program in programs):
            raise CannotReplay("the data was changed in place after it was used")

    def _gradient(
        self, program: Program, leaves: list[torch.Tensor], parameters: Sequence[torch.Tensor], *, with_rng: bool
    ) -> list[torch.Tensor]:
        with untouched(program.modules), reference_settings(), torch.enable_grad():
            try:
                if not self.is_native:
                    program, leaves, parameters = self._moved(program, leaves, parameters)
                loss = program.run(leaves, with_rng=with_rng)
                wanted = [p for p in parameters if p.requires_grad]
                grads = torch.autograd.grad(loss, wanted, allow_unused=True)
            except Exception as error:
                # The script's own code runs here, on a batch of another size: whatever it raises means the same.
                raise CannotReplay(
                    f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                ) from error
        found = dict(zip((id(p) for p in wanted), grads, strict=True))
        return [_dense(found.get(id(p)), p) for p in parameters]

    def _moved(
        self, program: Program, leaves: list[torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> tuple[Program, list[torch.Tensor], list[torch.Tensor]]:
        """Copies of modules, leaves and parameters in the engine's dtype and place."""
        memo: dict[int, object] = {}
        own = {id(m): copy.deepcopy(m, memo) for m in program.modules}
        copied = [copy.deepcopy(p, memo) for p in parameters]
        for module in own.values():
            module.to(device=self.device, dtype=self.dtype)
        for tensor in copied:
            tensor.data = self._move(tensor.data)
        moved_leaves = [copy.deepcopy(leaf, memo) if leaf.requires_grad else self._move(leaf) for leaf in leaves]
        steps = [
            (own[id(f)] if isinstance(f, nn.Module) else f, args, kwargs, None if self.dtype else autocast)
            for f, args, kwargs, autocast in program.steps
        ]
        moved = Program(steps, program.leaves, program.versions, program.result, program.rng_states, program.random)
        return moved, moved_leaves, copied

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if tensor.is_floating_point() else None
        return tensor.detach().to(device=self.device, dtype=dtype)


def _dense(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient.detach()

"""Tensors inside ``torch.func.grad``: each wraps one that the script has, and is gone when the call has returned."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def is_in_grad_alone() -> bool:
    """Whether ``torch.func.grad`` (or ``grad_and_value``) is under way, and inside no other transform."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return len(stack) == 1 and stack[0].key() == torch._C._functorch.TransformType.Grad


def outside() -> AbstractContextManager[None]:
    """Inside the block, what is computed is no part of any transform."""
    block: AbstractContextManager[None] = torch._C._DisableFuncTorch()
    return block


def as_outside(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that one inside ``torch.func.grad`` wraps, or a tensor itself that wraps none."""
    functorch = torch._C._functorch
    return functorch.get_unwrapped(tensor) if functorch.is_functorch_wrapped_tensor(tensor) else tensor

"""Tensors inside ``torch.func.grad``: each wraps one that the script has, and is gone when the call has returned.

Inside ``torch.func.vmap`` a tensor is one sample; it wraps the tensor that holds all of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_GRAD, _VMAP = torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Vmap


def are_transforms_active() -> bool:
    """Whether any transform is under way; asked for every call that a loop makes."""
    return bool(torch._C._are_functorch_transforms_active())


def is_in_grad_alone() -> bool:
    """Whether ``torch.func.grad`` (or ``grad_and_value``) is under way, and inside no other transform."""
    return _transforms() == [_GRAD]


def is_in_grad_of_samples() -> bool:
    """Whether ``torch.func.grad`` is under way inside ``vmap``, which goes through samples, and inside nothing else."""
    return _transforms() == [_VMAP, _GRAD]


def _transforms() -> list[Any]:
    """The transforms that are under way, the outermost first."""
    return [interpreter.key() for interpreter in torch._C._functorch.get_interpreter_stack() or ()]


def outside() -> AbstractContextManager[None]:
    """Inside the block, what is computed is no part of any transform."""
    block: AbstractContextManager[None] = torch._C._DisableFuncTorch()
    return block


def as_outside(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that one inside ``torch.func.grad`` wraps, or a tensor itself that wraps none."""
    functorch = torch._C._functorch
    return functorch.get_unwrapped(tensor) if functorch.is_functorch_wrapped_tensor(tensor) else tensor


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of those that exist inside a transform alone."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def all_samples(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor of all samples, along its first dimension, of which one inside ``vmap`` is one; None if it is none."""
    functorch, own = torch._C._functorch, tensor
    while is_wrapped(own) and not functorch.is_batchedtensor(own):
        own = functorch.get_unwrapped(own)
    if not is_wrapped(own):
        return None
    dimension, whole = functorch.maybe_get_bdim(own), functorch.get_unwrapped(own)
    with outside():
        return whole.movedim(dimension, 0) if dimension else whole


def number_of(tensor: torch.Tensor) -> float | None:
    """The number that a tensor holds; None if that of another sample is another one."""
    if not is_wrapped(tensor):
        return float(tensor)
    whole = all_samples(tensor)
    own = as_outside(tensor) if whole is None else whole
    with outside():
        first = own.flatten()[0]
        return float(first) if bool((own == first).all()) else None

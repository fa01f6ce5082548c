"""Tensors as their bytes."""

from __future__ import annotations

import ctypes

import torch


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor's elements, in the order of their indices.

    They are read where they are if the tensor is contiguous and on the CPU. PyTorch itself gives them only through
    NumPy, which need not be installed.
    """
    flat = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    content = (ctypes.c_ubyte * (flat.numel() * flat.element_size())).from_address(flat.data_ptr())
    content.tensor = flat  # type: ignore[attr-defined]  # holds the memory for as long as someone reads it
    return memoryview(content).cast("B")

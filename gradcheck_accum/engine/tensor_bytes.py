"""Tensors as their bytes."""

from __future__ import annotations

from typing import Any

import torch


def raw(tensor: torch.Tensor, rows: int = 1) -> Any:
    """The bytes of a dense tensor on the CPU, as an array of so many rows."""
    flat = tensor.detach().cpu().reshape(rows, tensor.numel() // rows)
    # A tensor whose last dimension has one element is contiguous whatever its stride there is, and is then no bytes.
    if not flat.is_contiguous() or flat.stride(-1) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (flat.shape[1], 1))
    return flat.view(torch.uint8).numpy()

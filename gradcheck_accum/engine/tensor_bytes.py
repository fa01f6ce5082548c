"""Tensors as their bytes."""

from __future__ import annotations

from typing import Any

import torch


def raw(tensor: torch.Tensor, rows: int = 1) -> Any:
    """The bytes of a dense CPU tensor, as an array with ``rows`` rows."""
    flat = tensor.detach().cpu().reshape(rows, tensor.numel() // rows)
    # A tensor whose last dimension is 1 counts as contiguous whatever its stride there, but cannot be viewed as bytes.
    if not flat.is_contiguous() or flat.stride(-1) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (flat.shape[1], 1))
    return flat.view(torch.uint8).numpy()

"""Tensors and related types as data that another process can read (`gradcheck_accum.portable`)."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.tensor_bytes import raw
from gradcheck_accum.portable import Leaf


def _parts_of_tensor(tensor: torch.Tensor) -> object:
    """Its bytes, as `torch.save` is several times slower for small tensors. Other kinds are left to `torch.save`."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
        file = io.BytesIO()
        torch.save(tensor, file)
        return file.getvalue()
    return [raw(tensor), tensor.dtype, list(tensor.shape), str(tensor.device)]


def _tensor(parts: Any) -> torch.Tensor:
    if isinstance(parts, bytes):
        found = torch.load(io.BytesIO(parts), weights_only=True)
        if not isinstance(found, torch.Tensor):
            raise ValueError("no tensor")
        return found
    content, dtype, shape, device = parts
    if not content:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape).to(device)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError("no dtype")
    return found


TENSORS = [
    Leaf(torch.Tensor, _parts_of_tensor, _tensor),
    Leaf(torch.dtype, lambda dtype: str(dtype).removeprefix("torch."), _dtype),
    Leaf(torch.device, str, torch.device),
    Leaf(torch.Size, list, torch.Size),
]
"""For `Portable`: the parts of PyTorch's own types."""

OF_OPTIMIZERS = [*TENSORS, Leaf(deque, lambda queue: [queue.maxlen, *queue], lambda parts: deque(parts[1:], parts[0]))]
"""The same, and those of optimizers."""

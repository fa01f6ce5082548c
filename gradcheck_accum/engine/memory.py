"""What calls write into: which tensors share memory, and how a view lies in its buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_IN_PLACE_OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        "setitem",
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
        *("iand", "ior", "ixor", "ilshift", "irshift"),
    )
)


_OF_ITSELF_ALONE = frozenset({"requires_grad_", "detach_", "share_memory_", "rename_"})
"""Methods that change what a tensor is, and not what it holds."""


def may_write(function: Any) -> bool:
    """Whether a function of PyTorch's, by its name, writes into its first argument."""
    name = getattr(function, "__name__", "")
    if name.endswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_") and name not in _OF_ITSELF_ALONE


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory element by element: no sparse one does, nor one of rows of unlike lengths."""
    return tensor.layout is torch.strided and not tensor.is_nested


def memory_of(tensor: torch.Tensor) -> int | None:
    """What tells the memory of a tensor from others as long as it is held; None where it has none of its own."""
    try:
        # A storage without data (a tensor of no elements, or on the meta device) has an identity too.
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor, or any that shares its counter, has been written into; None where nobody counts."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The versions of several tensors: this is asked of every call that a loop makes."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def written_among(tensors: Sequence[torch.Tensor], versions: Sequence[int | None]) -> tuple[int, ...]:
    """The positions of the tensors whose versions are not ``versions`` any more."""
    now = versions_of(tensors)
    if now == versions:
        return ()
    return tuple(i for i, (one, other) in enumerate(zip(now, versions, strict=True)) if one != other)


@dataclass(frozen=True, slots=True)
class Region:
    """How a view lies in the buffer that it is of; ``every_row`` says that it is the same part of each of its rows."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    every_row: bool

    @classmethod
    def of(cls, view: torch.Tensor, buffer: torch.Tensor) -> Region | None:
        """The region of a view, None where the buffer's own elements are not in order."""
        if not buffer.is_contiguous() or view.dtype is not buffer.dtype:
            return None
        offset = int(view.storage_offset()) - int(buffer.storage_offset())
        rows = view.shape[:1] == buffer.shape[:1] != torch.Size() and view.stride(0) == buffer.stride(0) > offset
        sizes = tuple(view.shape[1:]) if rows else tuple(view.shape)
        return cls(sizes, tuple(view.stride()), offset, rows)

    def __call__(self, buffer: torch.Tensor) -> torch.Tensor:
        """The region of another buffer, which may have another number of rows."""
        sizes = (buffer.shape[0], *self.sizes) if self.every_row else self.sizes
        return buffer.as_strided(sizes, self.strides, int(buffer.storage_offset()) + self.offset)

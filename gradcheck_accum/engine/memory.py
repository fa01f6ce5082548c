"""What calls write into: which tensors share memory, and where a view lies in its base."""

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
"""In-place methods that change a tensor's properties but not its values."""


def may_write(function: Any) -> bool:
    """Whether a PyTorch function, judging by its name, writes into its first argument."""
    name = getattr(function, "__name__", "")
    if name.endswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_") and name not in _OF_ITSELF_ALONE


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is stored element by element: neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def memory_of(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's memory, unique while the tensor is alive; None if it has none of its own."""
    try:
        # A storage without data (an empty tensor, or one on the meta device) has an identity too.
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor, or any that shares its version counter, was modified in place; None if it has no counter."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The versions of several tensors; called for every call that a loop makes."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def written_among(tensors: Sequence[torch.Tensor], versions: Sequence[int | None]) -> tuple[int, ...]:
    """The positions of the tensors whose versions are no longer ``versions``."""
    now = versions_of(tensors)
    if now == versions:
        return ()
    return tuple(i for i, (one, other) in enumerate(zip(now, versions, strict=True)) if one != other)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a view lies in its base; ``every_row`` says that it is the same part of each row."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    every_row: bool

    @classmethod
    def of(cls, view: torch.Tensor, buffer: torch.Tensor) -> Region | None:
        """The region of a view, or None if the elements of its base are not contiguous."""
        if not buffer.is_contiguous() or view.dtype is not buffer.dtype:
            return None
        offset = int(view.storage_offset()) - int(buffer.storage_offset())
        rows = view.shape[:1] == buffer.shape[:1] != torch.Size() and view.stride(0) == buffer.stride(0) > offset
        sizes = tuple(view.shape[1:]) if rows else tuple(view.shape)
        return cls(sizes, tuple(view.stride()), offset, rows)

    def __call__(self, buffer: torch.Tensor) -> torch.Tensor:
        """The same region of another buffer, which may have a different number of rows."""
        sizes = (buffer.shape[0], *self.sizes) if self.every_row else self.sizes
        return buffer.as_strided(sizes, self.strides, int(buffer.storage_offset()) + self.offset)

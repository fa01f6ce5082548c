"""Copy-on-write for recorded data.

A micro-batch is replayed when its window is complete, on the data as it was when it was used. By then, the loop may
have filled the same memory with other data (labels that are 1 for one backward and 0 for the next). So data that a
recording holds is copied right before it is overwritten, and only then.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Protocol

import torch

from gradcheck_accum.engine.memory import is_plain, memory_of, version_of


class Holder(Protocol):
    """Needs the values of tensors unchanged; both lists may be modified in place."""

    @property
    def held(self) -> tuple[list[torch.Tensor], list[int | None]]:
        """The tensors, and their versions when they were used."""


@dataclass(slots=True)
class CopiesOnWrite:
    """Tracks which holders share which memory."""

    _holders: dict[int, list[weakref.ref[Holder]]] = field(default_factory=dict)

    def hold(self, holder: Holder) -> None:
        """While ``holder`` is alive, copy its tensors before they are overwritten.

        Tensors that require a gradient are not copied: a replay needs the very same object.
        """
        data = (tensor for tensor in holder.held[0] if not tensor.requires_grad and is_plain(tensor))
        memories = {memory_of(tensor) for tensor in data} - {None}
        for memory in memories:
            own = self._holders.setdefault(memory, [])  # type: ignore[arg-type]
            own.append(weakref.ref(holder, lambda gone, memory=memory: self._let_go(memory, gone)))  # type: ignore[misc]

    def about_to_write(self, tensor: object) -> None:
        """Called before a tensor's memory is overwritten."""
        if not self._holders or not isinstance(tensor, torch.Tensor):
            return
        memory = memory_of(tensor)
        holders = self._holders.pop(memory, ()) if memory is not None else ()
        # A tensor that several holders share stays one object: its identity shows that they share it.
        copies: dict[object, torch.Tensor] = {}
        for reference in holders:
            holder = reference()
            if holder is not None:
                _copy_out_of(memory, *holder.held, copies)

    def _let_go(self, memory: int, gone: weakref.ref[Holder]) -> None:
        own = self._holders.get(memory, [])
        if gone in own:
            own.remove(gone)
        if not own:
            self._holders.pop(memory, None)


def _copy_out_of(
    memory: int | None, tensors: list[torch.Tensor], versions: list[int | None], copies: dict[object, torch.Tensor]
) -> None:
    for index, tensor in enumerate(tensors):
        is_data = not tensor.requires_grad and is_plain(tensor)
        if not is_data or memory_of(tensor) != memory or version_of(tensor) != versions[index]:
            continue
        key = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if key not in copies:
            copies[key] = tensor.detach().clone()
        tensors[index], versions[index] = copies[key], version_of(copies[key])

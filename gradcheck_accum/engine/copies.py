"""Copies of data, made right before it is written into.

What was recorded of a micro-batch is run again when its window is complete, on the data as it was when it was used. A
loop may have filled the same memory with other data by then (labels that are 1 for one backward and 0 for the next): it
is copied where somebody holds it, and only then.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Protocol

import torch

from gradcheck_accum.engine.memory import is_plain, memory_of


class Holder(Protocol):
    """Who needs the values of tensors as they are; both lists may be changed in place."""

    @property
    def held(self) -> tuple[list[torch.Tensor], list[int]]:
        """The tensors, and the versions that they had when they were used."""


@dataclass(slots=True)
class CopiesOnWrite:
    """Knows who holds which memory."""

    _holders: dict[int, list[weakref.ref[Holder]]] = field(default_factory=dict)

    def hold(self, holder: Holder) -> None:
        """What ``holder`` holds is copied for it before it is written into, as long as it lives.

        What takes a gradient is none of it: who replays it looks for the very tensor.
        """
        data = (tensor for tensor in holder.held[0] if not tensor.requires_grad and is_plain(tensor))
        memories = {memory_of(tensor) for tensor in data} - {None}
        for memory in memories:
            own = self._holders.setdefault(memory, [])  # type: ignore[arg-type]
            own.append(weakref.ref(holder, lambda gone, memory=memory: self._let_go(memory, gone)))  # type: ignore[misc]

    def about_to_write(self, tensor: object) -> None:
        """A tensor's memory is about to be written into."""
        if not self._holders or not isinstance(tensor, torch.Tensor):
            return
        memory = memory_of(tensor)
        holders = self._holders.pop(memory, ()) if memory is not None else ()
        # What several hold stays one tensor, by which it is known that they have it in common.
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
    memory: int | None, tensors: list[torch.Tensor], versions: list[int], copies: dict[object, torch.Tensor]
) -> None:
    for index, tensor in enumerate(tensors):
        is_data = not tensor.requires_grad and is_plain(tensor)
        if not is_data or memory_of(tensor) != memory or tensor._version != versions[index]:
            continue
        key = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if key not in copies:
            copies[key] = tensor.detach().clone()
        tensors[index], versions[index] = copies[key], copies[key]._version

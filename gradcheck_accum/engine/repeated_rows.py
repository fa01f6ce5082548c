"""Tensors all of whose rows were made of one: a row that the loop has repeated, and what was computed from it alone.

The answers to one prompt begin with the prompt, and a label that is expanded to a picture's tiles is the picture's.
Such rows have nothing of their own that they would bring along into another micro-batch: they may be parts of one
sample. What is computed from a repeated row and from other rows is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gradcheck_accum.engine.containers import tensors_in

REPEATING = frozenset({"broadcast_to", "expand", "expand_as", "repeat", "repeat_interleave", "tile"})
"""Calls that may repeat one row."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """The row that was repeated: where it lay in memory, and a copy."""

    place: int
    values: torch.Tensor


@dataclass(slots=True)
class RepeatedRows:
    """Notes such tensors, as long as they are alive."""

    _made: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    def __bool__(self) -> bool:
        """Whether any are alive."""
        return bool(self._made)

    def note(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note the results of a call that have no graph, if they are such rows."""
        if not self._made and name not in REPEATING:
            return
        made = [tensor for tensor in tensors_in(result) if tensor.dim() and not tensor.requires_grad]
        if name in REPEATING and len(made) == 1 and args and isinstance(args[0], torch.Tensor):
            source = args[0]
            if len(made[0]) > 1 and _is_one_row_of(source, made[0]) and self.row_of(source) is None:
                self._made[made[0]] = OneRow(source.data_ptr(), source.detach().clone())
                return
        given = [tensor for tensor in tensors_in((args, kwargs)) if tensor.dim()]
        for tensor in made:
            row = _only([self.row_of(own) for own in given if len(own) == len(tensor)] or [*map(self.row_of, given)])
            if row is not None:
                self._made[tensor] = row

    def row_of(self, tensor: torch.Tensor) -> OneRow | None:
        """The row that all rows of a tensor were made of; None if they are not known to be made of one."""
        known: OneRow | None = self._made.get(tensor)  # type: ignore[no-untyped-call]
        return known


def _only(rows: Sequence[OneRow | None]) -> OneRow | None:
    """The row that all are; None if there are others, or none."""
    return rows[0] if rows and all(row is rows[0] for row in rows) else None


def _is_one_row_of(source: torch.Tensor, repeated: torch.Tensor) -> bool:
    """Whether each row of ``repeated`` is all of ``source``."""
    return repeated.numel() == len(repeated) * source.numel() and (source.dim() < 2 or len(source) == 1)

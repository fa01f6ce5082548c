"""Gradients that are not read: what shows without their values is whether they are there, and their versions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger.events import Cause, Event, Opaque, Reason, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import UNREAD
from gradcheck_accum.verify.book.marks import NONE, Mark
from gradcheck_accum.verify.book.parameters import ParameterBook, parameters_of
from gradcheck_accum.verify.vectors.inner_products import dense

PARTLY_CLEARED = Reason(
    "only some of the gradients that a step uses were cleared: clear all of them", Cause.PARTLY_CLEARED
)


class UnreadBook(ParameterBook):
    """Knows the identity and the version of every gradient, and which of them are not read."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, Mark] = {}
        self.unread: dict[int, Mark | None] = {}
        """The parameters whose gradients are not read; with the mark of what was left, where they will be from the next
        backward on."""

    def is_unread(self, optimizer: Optimizer) -> bool:
        """Whether any gradient of an optimizer has not been read."""
        return bool(self.unread) and any(id(p) in self.unread for p in parameters_of(optimizer))

    def read_from_now_on(self, keys: Iterable[int]) -> None:
        """What arrives at these parameters is read again. What is left there is usually cleared before that."""
        for key in keys:
            if key in self.unread and self.unread[key] is None:
                self.unread[key] = self._state(key)

    def changed_unread(self) -> set[int]:
        """The parameters whose gradients, which are not read, have changed since the last thorough comparison."""
        changed = {key for key in self.unread if not self._is_as_at(key, self._seen.get(key, NONE))}
        return {key for key in changed if self.gradient(key) is not None}

    def _left_over(self, where: Location) -> tuple[list[Event], list[int]]:
        """What was done to gradients that are left of windows that were not read, and whose they are: they are now."""
        left = {key: mark for key, mark in self.unread.items() if mark is not None}
        if not left:
            return [], []
        cells, events = self.cells(), list[Event]()
        # What was zero when its window ended was not cleared: it only looks as if it were.
        changed = {key for key, mark in left.items() if not self._is_as_at(key, mark)}
        zero = {key for key in left if is_cleared(self.gradient(key))}
        for store in sorted({cells[key] for key, mark in left.items() if mark.tensor is not None and key in cells}):
            own = {key for key, mark in left.items() if mark.tensor is not None and cells.get(key) == store}
            stores = frozenset({store})
            if own <= zero:
                events.append(ZeroGrad(where=where, stores=stores, seen_later=True))
            elif own & zero & changed:
                events.append(Opaque(where=where, stores=stores, reason=PARTLY_CLEARED))
            elif own & changed:
                events.append(Opaque(where=where, stores=stores, reason=UNREAD))
        for key in left:
            del self.unread[key]
        return events, list(left)

    def _mark(self, key: int) -> None:
        self._seen[key] = self._state(key)

    def _state(self, key: int) -> Mark:
        """The mark of a parameter's gradient."""
        return Mark.of(self.parameters[key].grad, self.gradient(key))

    def _is_as_at(self, key: int, mark: Mark, *, writes: int = 0) -> bool:
        """Whether a parameter's gradient is the one of a mark, and has been written into ``writes`` times since."""
        return mark.is_of(self.parameters[key].grad, self.gradient(key), writes=writes)


def is_cleared(gradient: torch.Tensor | None) -> bool:
    """Whether there is no gradient, or only zeros."""
    return gradient is None or not bool(dense(gradient).any())

"""Where the loop multiplies or divides gradients itself, and by what: ``p.grad.div_(K)``.

How much that was shows when the gradients are looked at next; what the number is called shows only while it is done.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from gradcheck_accum.ledger.events import Event, ScaleGrads
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.provenance.operands import origins_of_operand
from gradcheck_accum.verify.stack.frames import scaling_frame


class GradientScalings:
    """The operations on the gradients of a book's parameters since they were looked at."""

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self._places: dict[int, int] | None = None
        """The parameter whose gradient is at each place of the memory; None where they may have moved since."""
        self._origins: dict[int, frozenset[str]] = {}

    def seen(self, operand: Any) -> None:
        """``operand``, a tensor or several, is about to be multiplied or divided."""
        targets = operand if isinstance(operand, (list, tuple)) else (operand,)
        if not targets or type(targets[0]) is not torch.Tensor or targets[0].requires_grad or self._book.sharded:
            return
        if self._places is None:
            self._places = self._book.places()
        keys = [self._places.get(t.data_ptr()) for t in targets if type(t) is torch.Tensor]
        own = [key for key in keys if key is not None]
        if not own:
            return
        origins = origins_of_operand(scaling_frame())
        for key in own:
            # What is scaled by two numbers is scaled by a third.
            self._origins[key] = origins if key not in self._origins else frozenset()

    def with_origins(self, event: Event, changed: Collection[int]) -> Event:
        """``event``, and where it is a scaling of gradients that were ``changed``, with its number's origins."""
        if not isinstance(event, ScaleGrads):
            return event
        cells = self._book.cells()
        found = {self._origins.get(key, frozenset()) for key in changed if cells.get(key) in event.stores}
        origins = found.pop() if len(found) == 1 else frozenset()
        return replace(event, factor=replace(event.factor, origins=origins)) if origins else event

    def forget(self) -> None:
        """The gradients have been looked at: what was done before is known."""
        self._origins.clear()
        self._places = None

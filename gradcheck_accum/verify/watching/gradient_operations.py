"""Where the loop scales or clamps gradients itself, and by what: ``p.grad.div_(K)``, ``p.grad.clamp_(-1, 1)``.

What was done shows when the gradients are looked at next; what the number is called, and where it was, shows only while
it is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradcheck_accum.engine.transformed import is_wrapped
from gradcheck_accum.ledger.events import Clip, Event, ScaleGrads
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.provenance.operands import origins_of_operand
from gradcheck_accum.verify.stack.frames import scaling_frame, user_location


@dataclass(frozen=True, slots=True)
class _Clamp:
    limit: float
    where: Location


class GradientOperations:
    """The operations on the gradients of a book's parameters since they were looked at."""

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self._places: dict[int, int] | None = None
        """The parameter whose gradient is at each place of the memory; None where they may have moved since."""
        self._origins: dict[int, frozenset[str]] = {}
        self._clamps: dict[int, _Clamp] = {}

    def scales(self, operand: Any) -> None:
        """``operand``, a tensor or several, is about to be multiplied or divided."""
        own = self._among(operand if isinstance(operand, (list, tuple)) else (operand,))
        if not own:
            return
        origins = origins_of_operand(scaling_frame())
        for key in own:
            # What is scaled by two numbers is scaled by a third.
            self._origins[key] = origins if key not in self._origins else frozenset()

    def clamps(self, args: Any, kwargs: Any) -> None:
        """A tensor is about to be clamped, with these arguments."""
        own = self._among(args[:1])
        low, high = _limits(*args[1:], **kwargs) if own else (None, None)
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and -low == high > 0:
            self._clamps |= dict.fromkeys(own, _Clamp(float(high), user_location()))
            self._book.may_have_changed(own)

    def _among(self, targets: Sequence[Any]) -> list[int]:
        """The parameters whose gradients are among these tensors."""
        if not targets or type(targets[0]) is not torch.Tensor or targets[0].requires_grad or self._book.sharded:
            return []
        if self._places is None:
            self._places = self._book.places()
        # A tensor of a transform has no memory of its own, and no gradient of the loop's is one.
        own = (t for t in targets if type(t) is torch.Tensor and not is_wrapped(t))
        at = ((self._places.get(t.data_ptr()), t) for t in own)
        return [key for key, t in at if key is not None and self._is_gradient(key, t)]

    def _is_gradient(self, key: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor is at a parameter's gradient now: one that was let go since leaves its place to others."""
        gradient = self._book.gradient(key) if key in self._book.parameters else None
        return gradient is not None and gradient.data_ptr() == tensor.data_ptr()

    @property
    def limits(self) -> dict[int, float]:
        """The limit that each parameter's gradient was clamped to."""
        return {key: clamp.limit for key, clamp in self._clamps.items()}

    def clamped(self, stores: Collection[str]) -> tuple[frozenset[int], float]:
        """The parameters of ``stores`` whose gradients were clamped, and the limit; called where there is only one."""
        cells = self._book.cells()
        own = {key: clamp.limit for key, clamp in self._clamps.items() if cells.get(key) in stores}
        return frozenset(own), next(iter(own.values()))

    def with_origins(self, event: Event, changed: Collection[int]) -> Event:
        """``event``, with the origins of its number or the place of its call, if it is one of these operations.

        ``changed`` are the parameters whose gradients have changed.
        """
        cells = self._book.cells()
        if isinstance(event, Clip):
            return replace(event, where=next(self._clamps[k].where for k in changed if cells.get(k) in event.stores))
        if not isinstance(event, ScaleGrads):
            return event
        found = {self._origins.get(key, frozenset()) for key in changed if cells.get(key) in event.stores}
        origins = found.pop() if len(found) == 1 else frozenset()
        return replace(event, factor=replace(event.factor, origins=origins)) if origins else event

    def backward_begins(self) -> None:
        """A backward is entered: it may put gradients where none were."""
        self._places = None

    def forget(self) -> None:
        """The gradients have been looked at: what was done before is known."""
        self._origins.clear()
        self._clamps.clear()
        self._places = None


def _limits(min: Any = None, max: Any = None, **_: Any) -> tuple[Any, Any]:
    """The limits of a call of ``clamp``, whose parameters have these names."""
    return min, max

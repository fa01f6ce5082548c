"""Inner steps: gradients of weights that a loop steps on within a micro-batch, and the data that they are gradients of.

A gradient that ``torch.autograd.grad`` returns without a graph (first-order meta-learning) is on no tape, nor is what
is computed from it until it meets weights. It is no data all the same: no sample holds any of it. It is noted with the
data of its loss, which tells a task, whose loss is of other data, from a step that a batch makes on itself
(sharpness-aware minimization).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gradcheck_accum.engine.containers import tensors_in
from gradcheck_accum.engine.memory import is_plain

Data = frozenset["weakref.ref[torch.Tensor]"]
"""Tensors, as long as they are alive."""


@dataclass(slots=True)
class InnerGradients:
    """Notes gradients of weights that have no graph, and what is computed from them; no tensor is kept alive."""

    _made: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    def __bool__(self) -> bool:
        """Whether any are alive."""
        return bool(self._made)

    def returned(self, gradients: Iterable[torch.Tensor], data: Iterable[torch.Tensor]) -> None:
        """Gradients were returned, of a loss that was computed from ``data``."""
        of = frozenset(weakref.ref(tensor) for tensor in data if self.data_of(tensor) is None)
        for gradient in gradients:
            self._keep(gradient, of)

    def note(self, args: Any, kwargs: Any, result: Any) -> None:
        """Note what a call has computed from them, if it has no graph."""
        if not self._made:
            return
        given = (self.data_of(tensor) for tensor in tensors_in((args, kwargs)))
        found = [own for own in given if own is not None]
        if found:
            for tensor in tensors_in(result):
                self._keep(tensor, frozenset[weakref.ref[torch.Tensor]]().union(*found))

    def data_of(self, tensor: torch.Tensor) -> Data | None:
        """The data of the gradients that a tensor was computed from; None if it was computed from none."""
        known: Data | None = self._made.get(tensor)  # type: ignore[no-untyped-call]
        return known

    def _keep(self, tensor: torch.Tensor, of: Data) -> None:
        if not tensor.requires_grad:
            self._made[tensor] = of


def is_any_equal(data: Iterable[torch.Tensor], of: Data) -> bool:
    """Whether any of ``data`` has the content of a tensor that a gradient's loss was computed from.

    It may have been made again (cast, moved to a device).
    """
    alive = _alive(of)
    return any(_are_equal(own, other) for own in data for other in alive)


def is_any_among(data: Iterable[torch.Tensor], of: Data) -> bool:
    """Whether any of ``data`` is one of the tensors that a gradient's loss was computed from, or lies where it does."""
    alive = _alive(of)
    return any(own is other or own.data_ptr() == other.data_ptr() != 0 for own in data for other in alive)


def _alive(of: Data) -> list[torch.Tensor]:
    return [tensor for one in of if (tensor := one()) is not None and is_plain(tensor)]


def _are_equal(own: torch.Tensor, other: torch.Tensor) -> bool:
    alike = own.shape == other.shape and own.dtype is other.dtype and own.device == other.device
    return own is other or (alike and is_plain(own) and torch.equal(own, other))

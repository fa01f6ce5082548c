"""The gradients that ``backward`` is given: numbers that multiply a loss, and weights of the losses in a vector.

The backward of a vector with a gradient is the backward of the sum of their product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from gradcheck_accum.engine.graph_nodes import LOSSES, PASSED_ON, Part, factors_in, only_input
from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.engine.weighted_sums import counted_units
from gradcheck_accum.ledger.events import Factor, Operation
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.provenance.given_gradients import Side, sides_of_gradient, sides_of_gradients
from gradcheck_accum.verify.stack.frames import location_of, scaling_frame
from gradcheck_accum.verify.watching.carried_on import CarriedOn

_AS_CLOSE = 1e-5
"""How far a product of numbers and weights may be off due to rounding in float32."""
_REARRANGED = (*PASSED_ON, "SelectBackward", "SliceBackward", "TransposeBackward", "PermuteBackward", "TBackward")
_OUTPUTS = ("Addmm", "MmBackward", "BmmBackward", "MvBackward", "Addmv", "Convolution", "NativeLayerNorm", "Embedding")
"""Nodes of what a model gives, and no loss has yet been computed from."""


Number = tuple[float, frozenset[str], bool]
"""A part of a factor that the source shows as a number."""


@dataclass(frozen=True, slots=True)
class Given:
    """The gradient for a loss: ``factors`` of all of it, and ``weights`` of its elements, None if these are all 1.

    ``is_of_vector`` says that there is one for each element of a tensor with dimensions.
    """

    factors: tuple[Factor, ...] = ()
    weights: torch.Tensor | None = None
    is_of_vector: bool = False

    @property
    def number(self) -> float:
        """The product of the factors."""
        return math.prod(factor.value or 0.0 for factor in self.factors)


@dataclass(slots=True)
class GivenGradients:
    """Reads gradient arguments, and remembers for each place what kind they were.

    A vector of one element, or of equal weights, does not show whether it is a number or weights of rows.
    """

    tape: Tape
    carried: CarriedOn
    _of_numbers: set[Location] = field(default_factory=set)
    _of_rows: set[Location] = field(default_factory=set)

    def read(self, losses: list[torch.Tensor], gradients: Any) -> list[Given] | None:
        """What each loss was given; None if that is unknown."""
        own = list(gradients) if isinstance(gradients, (list, tuple)) else [gradients] * len(losses)
        if len(own) != len(losses):
            return None
        if all(gradient is None for gradient in own):
            return [Given()] * len(own) if all(loss.numel() == 1 for loss in losses) else None
        frame = scaling_frame()
        every = [sides_of_gradient(frame)] if len(own) == 1 else sides_of_gradients(frame, len(own))
        found = [self._read(*each, frame) for each in zip(losses, own, every, strict=True)]
        known = [given for given in found if given is not None]
        return known if len(known) == len(own) else None

    def _read(self, loss: torch.Tensor, gradient: Any, sides: list[Side], frame: FrameType) -> Given | None:
        if gradient is None:
            return Given() if loss.numel() == 1 else None
        if not isinstance(gradient, torch.Tensor) or gradient.requires_grad or gradient.is_complex():
            return None
        if not gradient.numel() or gradient.numel() != loss.numel():
            return None
        where = location_of(frame)
        first = float(gradient.reshape(-1)[0])
        if not loss.dim():
            return Given(_factors(sides, first, where))
        if self.carried.is_of(gradient):
            return Given(weights=gradient, is_of_vector=True)
        _, others = _apart(sides)
        is_uniform = gradient.numel() == 1 or bool((gradient == first).all())
        if is_uniform and not any(isinstance(side.value, torch.Tensor) and side.value.dim() for side in others):
            if not others or (gradient.numel() > 1 and where not in self._of_rows) or where in self._of_numbers:
                self._of_numbers.add(where)
                return Given(_factors(sides, first, where), is_of_vector=True)
            if where not in self._of_rows:
                return None
        if where in self._of_numbers:
            return None
        self._of_rows.add(where)
        return self._of_weights(loss, gradient, sides, where)

    def _of_weights(
        self, loss: torch.Tensor, gradient: torch.Tensor, sides: list[Side], where: Location
    ) -> Given | None:
        """Weights of the elements, and the numbers that the source multiplies or divides them by.

        None if they may hide a number: if the source does not show what they are divided by, and they are neither
        whole numbers (a mask, counts) nor normalized by the micro-batch.
        """
        numbers, others = _apart(sides)
        known = _product(numbers)
        if not known or not math.isfinite(known):
            return None
        weights = gradient if not numbers else self._rest(gradient, others, known)
        counts = counted_units([weights]) is not None
        if not counts and self.tape.preparations.shares_of(weights, None, False) is None:
            is_shown = bool(numbers) and len(others) == 1 and not others[0].inverted
            if not is_shown or not _is_of_losses(loss):
                return None
        return Given(factors_in(numbers, known, where) if numbers else (), weights, is_of_vector=True)

    def _rest(self, gradient: torch.Tensor, others: list[Side], known: float) -> torch.Tensor:
        """The gradient without the ``known`` number in it: the very tensor of the source, if that is it."""
        own = others[0].value if len(others) == 1 else None
        if (
            isinstance(own, torch.Tensor)
            and own.shape == gradient.shape
            and torch.allclose(own.double() * known, gradient.double(), _AS_CLOSE, 0.0)
        ):
            return own
        rest: torch.Tensor = self.tape.run(torch.div, gradient, known)
        return rest


def _factors(sides: list[Side], whole: float, where: Location) -> tuple[Factor, ...]:
    """The factors of a number, of which the source shows ``sides``."""
    numbers, others = _apart(sides)
    known = _product(numbers)
    if not known or not math.isfinite(known) or not math.isfinite(whole):
        return (Factor(whole, Operation.MULTIPLY, where=where),)
    parts: list[Part] = [*numbers]
    if others or not math.isclose(whole, known, rel_tol=_AS_CLOSE):
        origins = others[0].origins if len(others) == 1 else frozenset[str]()
        parts.append((None, origins, bool(others) and all(side.inverted for side in others)))
    elif numbers:
        # What is left of the whole is the rounding of the gradient's own dtype.
        parts[-1] = None, parts[-1][1], parts[-1][2]
    return factors_in(parts, whole, where)


def _apart(sides: list[Side]) -> tuple[list[Number], list[Side]]:
    """The numbers among the sides of a gradient, as parts of a factor, and the others."""
    numbers = [(side.value, side.origins, side.inverted) for side in sides if isinstance(side.value, float)]
    return numbers, [side for side in sides if not isinstance(side.value, float)]


def _product(numbers: list[Number]) -> float:
    known = 1.0
    for value, _, inverted in numbers:
        known = known / value if inverted and value else known * value
    return known


def _is_of_losses(vector: torch.Tensor) -> bool:
    """Whether the elements of a tensor are losses: of a vector, all that are not a model's own output."""
    node = vector.grad_fn
    while node is not None and node.name().startswith(_REARRANGED):
        node = only_input(node)
    if node is None:
        return False
    name = node.name()
    return name.startswith(LOSSES) or (vector.dim() == 1 and not name.startswith(_OUTPUTS))

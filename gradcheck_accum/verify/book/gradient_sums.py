"""Sums of the gradients of similar backwards, accumulated as they arrive.

The intended weight of a backward is known at the step at the earliest. Kept one by one, the gradients of K
micro-batches would take K times the memory and K times the time to compare. But backwards from the same line, with the
same terms and factors, between which no gradient was changed, have the same weight whatever the rest of the run shows,
so their sum is enough. A right window usually has one part.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from gradcheck_accum.ledger.events import Reduction, Term
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.vectors.inner_products import Vector, combination, numbers


@dataclass(slots=True, eq=False)
class GradientSum:
    """The sum of some backwards' gradients, by parameter identity, multiplied by a grad scaler's ``scale``.

    For sharded parameters, and for those in ``sketched``, it is the sum of their sketches.
    """

    kind: Hashable
    scale: float = 1.0
    total: dict[int, torch.Tensor] = field(default_factory=dict)
    sketched: set[int] = field(default_factory=set)
    is_over: bool = False
    """Whether the steps that use it have been measured, so that its sum need not be kept."""

    def vector(self, keys: Iterable[int]) -> Vector:
        """The sum over the parameters ``keys``, without the grad scaler's scale."""
        found = [self.total.get(key) for key in keys]
        return found if self.scale == 1.0 else combination([(1 / self.scale, found)])


def kind_of(where: Location, terms: Iterable[Term], epoch: int | None) -> Hashable:
    """What similar backwards have in common; the units of a mean change weights, those of a sum do not."""
    read = tuple((t.name, t.reduction, None if t.reduction is Reduction.SUM else t.units, t.factors) for t in terms)
    return where, read, epoch


def norms_of(squares: Sequence[Iterable[torch.Tensor]]) -> list[float]:
    """‖g_j‖ of each of several gradients from ‖·‖² of their pieces, which are read from the device together."""
    pieces = [list(own) for own in squares]
    flat = [square for own in pieces for square in own]
    values = iter(numbers(flat))
    return [math.sqrt(math.fsum(next(values) for _ in own)) for own in pieces]

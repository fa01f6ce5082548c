"""The gradients of alike backwards, added up while they arrive.

What a backward should have weighed is known at the step at the earliest. Kept one by one, the gradients of K
micro-batches would take K times the memory and K times the time to compare. But backwards from the same line, with the
same terms and factors, between which nobody touched a gradient, weigh the same whatever the rest of the run shows:
their sum is enough. A right window is usually one part.
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
    """The sum of some backwards' gradients, by parameter identity; ``scale`` is what a grad scaler put into it.

    Of a sharded parameter it is the sum of their sketches, and so it is of the parameters ``sketched``.
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
    """What makes backwards alike; the units of a sum do not weigh, those of a mean do."""
    read = tuple((t.name, t.reduction, None if t.reduction is Reduction.SUM else t.units, t.factors) for t in terms)
    return where, read, epoch


def norms_of(squares: Sequence[Iterable[torch.Tensor]]) -> list[float]:
    """‖g_j‖ of each of several gradients from ‖·‖² of their pieces, which are read from the device together."""
    pieces = [list(own) for own in squares]
    flat = [square for own in pieces for square in own]
    values = iter(numbers(flat))
    return [math.sqrt(math.fsum(next(values) for _ in own)) for own in pieces]

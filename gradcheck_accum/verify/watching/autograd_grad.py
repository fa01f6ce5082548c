"""Gradients that ``torch.autograd.grad`` returned, and which of them ``.grad`` holds.

They reach no ``.grad`` by themselves: the loop adds them up, divides them and puts the result there. Which of them it
holds, and with which factors, is then measured: a gradient g with far more elements than there are candidates g_j is Σ
c_j g_j within rounding for at most one choice of the c_j, unless the g_j are linearly dependent. If there is none, or
several, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.given_data import Given
from gradcheck_accum.verify.vectors.inner_products import InnerProducts, inner_products
from gradcheck_accum.verify.watching.loss_reader import BackwardLosses

NOT_FOLLOWED = (
    "torch.autograd.grad() computed gradients for this step, but .grad is not a linear combination of them: assign "
    "one, or call backward()"
)

MOST_KEPT = 256
"""Gradients that are kept for a step: more than a window has micro-batches, mostly."""

_PER_CANDIDATE = 4
"""Elements that a gradient must have for each candidate, so that it is no sum of them by chance."""

_SMALL = (1e-1, 1e-2, 1e-3, 1e-6)
"""The shares of the largest part below which parts may be none: the first is taken whose others make the gradient."""

_INDEPENDENT = 1e-6
"""The smallest eigenvalue of the candidates' matrix of cosines at which their factors can be determined."""


@dataclass(slots=True, eq=False)
class ReturnedGradients:
    """The gradients of one call, by parameter identity, and what they are the gradients of.

    ``gradients`` are what is held of them, copies or sketches, and ``squares`` are ‖·‖² of each. ``given`` is the data
    that the model was called on for them.
    """

    where: Location
    backward_losses: BackwardLosses
    micro_batch: int
    epoch: int | None
    gradients: dict[int, torch.Tensor]
    squares: dict[int, torch.Tensor]
    given: Given


@dataclass(slots=True)
class KeptGradients:
    """The gradients that were returned since the last step."""

    _kept: list[ReturnedGradients] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, returned: ReturnedGradients) -> None:
        """Keep the gradients of a call until the next step."""
        self._kept.append(returned)
        del self._kept[:-MOST_KEPT]

    @property
    def keys(self) -> set[int]:
        """The parameters that any of them belongs to."""
        return {key for returned in self._kept for key in returned.gradients}

    def forget(self, keys: Collection[int]) -> None:
        """These parameters have been stepped on: gradients computed before are not used by the next step."""
        self._kept = [h for h in self._kept if not any(key in h.gradients for key in keys)]

    def take(
        self, gradient: Mapping[int, torch.Tensor], roundoff: float, added_to: float = 0.0
    ) -> list[tuple[ReturnedGradients, float]]:
        """Remove the gradients that ``gradient`` is the sum of, each with its factor; empty where that is not known.

        It is rounded to ``roundoff``, as is the sum of it and of what it was added to, whose norm is ``added_to``. It
        is passed in the form in which gradients are held.

        A gradient with the factor 0 that was returned before all used ones of its line was discarded, and is removed
        too; the rest may be used later.
        """
        own = [h for h in self._kept if not h.gradients.keys().isdisjoint(gradient)]
        if not own or any(g.layout is not torch.strided for g in gradient.values()):
            return []
        factors = _factors(gradient, own, roundoff, added_to)
        if factors is None:
            return []
        taken = _with_discarded(list(zip(own, factors, strict=True)))
        self._remove(taken)
        return taken

    def take_out(
        self, factors: Mapping[ReturnedGradients, float], lost: Collection[ReturnedGradients]
    ) -> list[tuple[ReturnedGradients, float]]:
        """Remove the gradients that an update uses, each with its factor, and those of ``lost`` as `take` does."""
        own = [(h, factors.get(h, 0.0)) for h in self._kept if h in factors or h in lost]
        taken = _with_discarded(own)
        self._remove(taken)
        return taken

    def holds(self, gradients: Iterable[ReturnedGradients]) -> bool:
        """Whether all of these are kept for the next step."""
        kept = {id(h) for h in self._kept}
        return all(id(h) in kept for h in gradients)

    def _remove(self, taken: Iterable[tuple[ReturnedGradients, float]]) -> None:
        gone = {id(h) for h, _ in taken}
        self._kept = [h for h in self._kept if id(h) not in gone]


def _with_discarded(factors: Sequence[tuple[ReturnedGradients, float]]) -> list[tuple[ReturnedGradients, float]]:
    """The gradients that are used, and those of their lines that were returned before all of these."""
    used = [position for position, (_, factor) in enumerate(factors) if factor]
    lines = {factors[position][0].where.place for position in used}
    return [
        (h, factor)
        for position, (h, factor) in enumerate(factors)
        if factor or (used and position < used[0] and h.where.place in lines)
    ]


def _factors(
    gradient: Mapping[int, torch.Tensor], own: list[ReturnedGradients], roundoff: float, added_to: float
) -> list[float] | None:
    """The c_j of ``gradient`` = Σ c_j g_j, None where there are none, or several."""
    keys = list(gradient)
    elements = sum(gradient[key].numel() for key in keys)
    products = inner_products(
        [[gradient[k] for k in keys], *([h.gradients.get(k) for k in keys] for h in own)],
        [gradient[k] for k in keys],
    )
    if not bool(torch.isfinite(products.matrix).all()):
        return None
    norms = [products.norm(position) for position in range(len(own) + 1)]

    def meets(factors: Iterable[float]) -> bool:
        factors = list(factors)
        parts = math.fsum(abs(c) * norm for c, norm in zip(factors, norms[1:], strict=True))
        left = products.combined_norm([(0, 1.0), *((i, -c) for i, c in enumerate(factors, 1))])
        # One rounding for each addition and product; inner products in float64 keep half of its digits.
        rounding = ((len(own) + 4) * parts + 2 * added_to) * roundoff
        return left <= rounding + (0.0 if products.is_factor else 1e-7 * parts)

    one = _one_factor(products, len(own))
    if one and elements >= _PER_CANDIDATE and meets([one] * len(own)):
        return [one] * len(own)
    each = _each_factor(products, norms, range(len(own))) if elements >= _PER_CANDIDATE * len(own) else None
    if each is None or not any(each):
        return None
    # What makes no difference beyond rounding was not used: factors of nearly parallel gradients are less certain.
    parts = [abs(c) * norm for c, norm in zip(each, norms[1:], strict=True)]
    larger = (tuple(i for i, part in enumerate(parts) if part >= small * max(parts)) for small in _SMALL)
    for used in dict.fromkeys(larger):
        found = _each_factor(products, norms, used)
        if found is not None and meets(found):
            return found
    return None


def _one_factor(products: InnerProducts, count: int) -> float:
    """The c for which c Σ g_j is nearest to the gradient."""
    together = [(position, 1.0) for position in range(1, count + 1)]
    squared = products.combined_norm(together) ** 2
    if not squared:
        return 0.0
    matrix = products.matrix.T @ products.matrix if products.is_factor else products.matrix
    return float(matrix[0, 1:].sum()) / squared


def _each_factor(products: InnerProducts, norms: list[float], used: Sequence[int]) -> list[float] | None:
    """The c_j for which Σ c_j g_j over those ``used`` is nearest to the gradient, None where they are not unique."""
    matrix = products.matrix.T @ products.matrix if products.is_factor else products.matrix
    rows = torch.tensor(used) + 1
    scale = torch.tensor(norms, dtype=torch.float64)[rows]
    if not bool((scale > 0).all()):
        return None
    cosines = matrix[rows][:, rows] / scale[:, None] / scale[None, :]
    if float(torch.linalg.eigvalsh(cosines)[0]) < _INDEPENDENT:
        return None
    if products.is_factor:
        solved = torch.linalg.lstsq(products.matrix[:, rows], products.matrix[:, :1]).solution.flatten()
    else:
        solved = torch.linalg.solve(cosines, matrix[rows, 0] / scale) / scale
    found = [0.0] * (len(norms) - 1)
    for position, factor in zip(used, solved.tolist(), strict=True):
        found[position] = factor
    return found

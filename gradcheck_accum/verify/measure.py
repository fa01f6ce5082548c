"""The numbers of one window, kept as the inner products of its gradients.

What a window should have been is known for certain only when the whole run has been seen (is a factor the loop's
scaling, or the loss's own?), and by then its gradients are gone. So at the step every vector that any reading could
need is multiplied with every other, in float64: the gradient itself, each micro-batch's own contribution, and the
replayed large batches. The distance of the gradient from any combination of them follows later.

Inner products lose half of the digits of a small distance: 1e-8 of 1e-16. That is far below what float32 rounds, but
not what float64 does, and gradients in float64 are kept as the factor R of V = QR, where ‖Vw‖ = ‖Rw‖ to all digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

_BLOCK = 1 << 15
"""Elements that are multiplied at a time: in float64 those of a whole window stay in the processor's cache."""

Vector = Sequence[torch.Tensor | None]
"""One gradient: a tensor for each parameter, None for zero."""


@dataclass(frozen=True, slots=True)
class InnerProducts:
    """The inner products <v_i, v_j> of a window's vectors as a float64 matrix, or the factor R of them."""

    matrix: torch.Tensor
    is_factor: bool = False

    def norm(self, index: int) -> float:
        """‖v_i‖."""
        return self.combined_norm([(index, 1.0)])

    def combined_norm(self, weights: Sequence[tuple[int, float]]) -> float:
        """‖Σ w_i v_i‖."""
        chosen = torch.zeros(self.matrix.shape[1], dtype=torch.float64)
        for index, weight in weights:
            chosen[index] += weight
        if self.is_factor:
            return float(torch.linalg.vector_norm(self.matrix @ chosen))
        return math.sqrt(max(float(chosen @ self.matrix @ chosen), 0.0))


def inner_products(vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
    """All inner products of ``vectors``, each a gradient over ``parameters``."""
    exact = any(parameter.dtype is torch.float64 for parameter in parameters)
    total = torch.zeros(0 if exact else len(vectors), len(vectors), dtype=torch.float64)
    block = torch.empty(len(vectors), min(_BLOCK, max(p.numel() for p in parameters)), dtype=torch.float64)
    for position, parameter in enumerate(parameters):
        flat = [v[position] for v in vectors]
        rows = [None if part is None else dense(part).detach().reshape(-1) for part in flat]
        for start in range(0, parameter.numel(), _BLOCK):
            stop = min(start + _BLOCK, parameter.numel())
            chosen = block[:, : stop - start]
            for target, row in zip(chosen, rows, strict=True):
                if row is None:
                    target.zero_()
                else:
                    target.copy_(row[start:stop])
            if not exact:
                total.addmm_(chosen, chosen.T)
            elif not bool(torch.isfinite(chosen).all()):
                return InnerProducts(torch.full((1, len(vectors)), math.nan, dtype=torch.float64), exact)
            else:
                total = torch.linalg.qr(torch.cat([total, chosen.T]), mode="r")[1]
    return InnerProducts(total, exact)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without sparsity."""
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def norm_of(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> float:
    """The Euclidean norm of several tensors together."""
    return math.hypot(*(float(norm) for norm in torch._foreach_norm(tensors)))


def combination(
    weighted: Iterable[tuple[float, Vector]], parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Σ w_i v_i as a gradient over ``parameters``."""
    total: list[torch.Tensor | None] = [None] * len(parameters)
    for weight, vector in weighted:
        for position, part in enumerate(vector):
            if part is not None:
                before = total[position]
                total[position] = part * weight if before is None else before + part * weight
    return total

"""The numbers of one window, kept as the inner products of its gradients.

What a window should have been is known for certain only when the whole run has been seen (is a factor the loop's
scaling, or the loss's own?), and by then its gradients are gone. So at the step every vector that any reading could
need is multiplied with every other, in float64: the gradient itself, the contributions of the micro-batches, and the
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
_DEVICE_BLOCK = 1 << 22
"""Elements that are multiplied at a time: in float64 those of a whole window stay in the processor's cache.

A GPU is given more at once, and all of it without waiting for any.
"""

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
        row = [0.0] * self.matrix.shape[1]
        for index, weight in weights:
            row[index] += weight
        chosen = torch.tensor(row, dtype=torch.float64)
        if self.is_factor:
            return float(torch.linalg.vector_norm(self.matrix @ chosen))
        return math.sqrt(max(float(chosen @ self.matrix @ chosen), 0.0))


def inner_products(vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
    """All inner products of ``vectors``, each a gradient over ``parameters``.

    What equals the first bit for bit, as the sum of the contributions to a right gradient does, is not measured twice.
    """
    same = [i > 0 and are_equal(v, vectors[0]) for i, v in enumerate(vectors)]
    found = _inner_products([v for v, is_first in zip(vectors, same, strict=True) if not is_first], parameters)
    places = torch.tensor([0 if is_first else i - sum(same[:i]) for i, is_first in enumerate(same)])
    matrix = found.matrix[:, places]
    return InnerProducts(matrix if found.is_factor else matrix[places], found.is_factor)


def are_equal(left: Vector, right: Vector) -> bool:
    """Whether two gradients are the same bit for bit."""
    return all(
        a is b
        or (
            a is not None and b is not None and a.dtype is b.dtype and torch.equal(dense(a).detach(), dense(b).detach())
        )
        for a, b in zip(left, right, strict=True)
    )


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same bit for bit; those of different dtypes are not."""
    if left.dtype is not right.dtype:
        return False
    if all(t.is_contiguous() and t.nbytes % 8 == t.storage_offset() * t.itemsize % 8 == 0 for t in (left, right)):
        # Whole words are compared twice as fast as floats, and a NaN equals itself. Parts of a larger buffer may begin
        # in the middle of a word.
        left, right = left.view(-1).view(torch.int64), right.view(-1).view(torch.int64)
    return torch.equal(left, right)


def squared_norm(gradient: torch.Tensor) -> torch.Tensor:
    """‖g‖² as a tensor on its device, in float32 at least; infinite where it is beyond that dtype."""
    flat = (torch.view_as_real(gradient) if gradient.is_complex() else gradient).reshape(-1)
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.float()
    return torch.dot(flat, flat)


def is_finite(vector: Vector) -> bool:
    """Whether every element of a gradient is a finite number."""
    # A rank may hold nothing of a small weight: there is no largest of no elements.
    parts = [dense(part).detach() for part in vector if part is not None and part.numel()]
    return all(math.isfinite(norm) for norm in numbers(torch._foreach_norm(parts, math.inf))) if parts else True


def block_size(device: torch.device) -> int:
    """How many elements to work on at a time in float64."""
    return _BLOCK if device.type == "cpu" else _DEVICE_BLOCK


def numbers(scalars: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one element each, read from their device together."""
    if len({(scalar.dtype, scalar.device) for scalar in scalars}) != 1:
        return [float(scalar) for scalar in scalars]
    values: list[float] = torch.stack(list(scalars)).tolist()
    return values


def _inner_products(vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
    exact = any(parameter.dtype is torch.float64 for parameter in parameters)
    if len(vectors) == 1:
        # Its norm is all that there is to know, and a dot product in its own dtype tells enough digits of it.
        squared = math.fsum(numbers([squared_norm(dense(part).detach()) for part in vectors[0] if part is not None]))
        return InnerProducts(torch.tensor([[math.sqrt(squared) if exact else squared]], dtype=torch.float64), exact)
    device = parameters[0].device
    size = min(block_size(device), max(p.numel() for p in parameters))
    total = torch.zeros(0 if exact else len(vectors), len(vectors), dtype=torch.float64, device=device)
    block = torch.empty(len(vectors), size, dtype=torch.float64, device=device)
    for position, parameter in enumerate(parameters):
        flat = [v[position] for v in vectors]
        rows = [None if part is None else dense(part).detach().reshape(-1) for part in flat]
        for start in range(0, parameter.numel(), size):
            stop = min(start + size, parameter.numel())
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
    return InnerProducts(total.cpu(), exact)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without sparsity."""
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def norm_of(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> float:
    """The Euclidean norm of several tensors together."""
    return math.hypot(*numbers(torch._foreach_norm(tensors)))


def combination(
    weighted: Iterable[tuple[float, Vector]], parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Σ w_i v_i as a gradient over ``parameters``, to be read only: its tensors may be those of a vector."""
    total: list[torch.Tensor | None] = [None] * len(parameters)
    for weight, vector in weighted:
        for position, part in enumerate(vector):
            if part is not None:
                before = total[position]
                own = part if weight == 1.0 else part * weight
                total[position] = own if before is None else before + own
    return total

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradcheck_accum.engine.tolerance import Bounds, sketched_norm

_BLOCK = 1 << 15
_DEVICE_BLOCK = 1 << 22
"""Elements that are multiplied at a time: in float64 those of a whole window stay in the processor's cache.

A GPU is given more at once, and all of it without waiting for any.
"""

_STRETCH = 1 << 16
_DEVICE_STRETCH = 1 << 24
"""Elements that are looked at, a stretch at a time, where they would have to be copied or made as a whole."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Whole numbers of so many bytes; the largest elements are two."""

Vector = Sequence[torch.Tensor | None]
"""One gradient: a tensor for each parameter, None for zero."""

Pieces = Callable[[int, int], torch.Tensor]
"""Gives a stretch of the elements of one parameter's gradient, from where to where it is asked."""


Make = Callable[[int, Sequence[Any]], torch.Tensor]
"""Makes the gradient of the parameter at a position of what other gradients have there."""


class Made(Sequence[Any]):
    """A gradient that is made of others element by element when it is asked for, and never held as a whole.

    ``make`` gets the position of a parameter and what each of the vectors ``of`` has there, whole or a stretch of it;
    at least one of them is not None.
    """

    def __init__(self, of: Sequence[Vector], make: Make) -> None:
        self._of = of
        self._make = make

    def __len__(self) -> int:
        return len(self._of[0])

    def __getitem__(self, position: Any) -> Any:
        own = [vector[position] for vector in self._of]
        if all(part is None for part in own):
            return None
        return self._make(position, [None if part is None else dense(part).detach() for part in own])

    def pieces(self, position: int) -> Pieces | None:
        """The gradient of one parameter, stretch by stretch; None where it is zero."""
        own = [pieces_of(vector, position) for vector in self._of]
        if all(each is None for each in own):
            return None
        if len(own) == 1 and own[0] is not None:
            only, make = own[0], self._make
            return lambda start, stop: make(position, (only(start, stop),))
        return lambda start, stop: self._make(position, [None if each is None else each(start, stop) for each in own])


def pieces_of(vector: Vector, position: int) -> Pieces | None:
    """A gradient at one parameter, stretch by stretch, without a copy of what is not made; None where it is zero."""
    if isinstance(vector, Made):
        return vector.pieces(position)
    part = vector[position]
    if part is None:
        return None
    flat = dense(part).detach().reshape(-1)
    return lambda start, stop: flat[start:stop]


@dataclass(frozen=True, slots=True)
class InnerProducts:
    """The inner products <v_i, v_j> of a window's vectors as a float64 matrix, or the factor R of them.

    ``sampled`` says that the factor holds their sketches, so that norms are known within bounds.
    """

    matrix: torch.Tensor
    is_factor: bool = False
    sampled: bool = False

    def norm(self, index: int) -> float:
        """‖v_i‖."""
        return self.combined_norm([(index, 1.0)])

    def combined_norm(self, weights: Sequence[tuple[int, float]]) -> float:
        """‖Σ w_i v_i‖."""
        if len(weights) == 1 and weights[0][1] == 1.0 and not self.is_factor:
            # Most norms are of one vector: its square is in the matrix.
            squares, (index, _) = self.matrix.tolist(), weights[0]
            if math.isfinite(sum(map(sum, squares))):
                return math.sqrt(max(squares[index][index], 0.0))
        row = [0.0] * self.matrix.shape[1]
        for index, weight in weights:
            row[index] += weight
        chosen = torch.tensor(row, dtype=torch.float64)
        if self.is_factor:
            return float(torch.linalg.vector_norm(self.matrix @ chosen))
        return math.sqrt(max(float(chosen @ self.matrix @ chosen), 0.0))

    def reduced(self) -> InnerProducts:
        """The same norms from fewer numbers: a factor with a row for each vector."""
        rows, columns = self.matrix.shape
        if not self.is_factor or rows <= columns or not bool(torch.isfinite(self.matrix).all()):
            return self
        return replace(self, matrix=torch.linalg.qr(self.matrix, mode="r")[1])

    def bounds(self, norm: float) -> Bounds:
        """The bounds of a norm that is ``norm`` according to these products."""
        return sketched_norm(norm) if self.sampled else Bounds(norm, norm)


def inner_products(vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
    """All inner products of ``vectors``, each a gradient over ``parameters``.

    What equals the first bit for bit, as the sum of the contributions to a right gradient does, is not measured twice.
    """
    same = [i > 0 and are_equal(v, vectors[0], parameters) for i, v in enumerate(vectors)]
    found = _inner_products([v for v, is_first in zip(vectors, same, strict=True) if not is_first], parameters)
    places = [0 if is_first else i - sum(same[:i]) for i, is_first in enumerate(same)]
    if found.is_factor:
        return InnerProducts(found.matrix[:, places], found.is_factor)
    if not any(same):
        return found
    rows = found.matrix.tolist()
    return InnerProducts(torch.tensor([[rows[i][j] for j in places] for i in places], dtype=torch.float64))


def are_equal(left: Vector, right: Vector, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether two gradients over ``parameters`` are the same bit for bit."""
    if isinstance(left, Made) or isinstance(right, Made):
        return all(_are_equal_at(left, right, i, p) for i, p in enumerate(parameters))
    pairs = []
    for a, b in zip(left, right, strict=True):
        if a is not None and b is not None and a is not b:
            pairs.append((dense(a), dense(b)))
        elif a is not b:
            return False
    # Different gradients mostly differ at once.
    return all(which_are_same(pairs[:1])) and all(which_are_same(pairs[1:]))


def _are_equal_at(left: Vector, right: Vector, position: int, parameter: torch.Tensor) -> bool:
    """Whether two gradients are the same at one parameter, of which one is made as it is asked for."""
    a, b = pieces_of(left, position), pieces_of(right, position)
    if a is None or b is None:
        return a is b
    for start, stop in stretches(parameter.numel(), parameter.device):
        one, other = a(start, stop), b(start, stop)
        if one.dtype is not other.dtype or not torch.equal(one, other):
            return False
    return True


def stretches(elements: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """The start and stop of each stretch of so many elements."""
    size = _STRETCH if device.type == "cpu" else _DEVICE_STRETCH
    for start in range(0, elements, size):
        yield start, min(start + size, elements)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same bit for bit; those of different dtypes are not."""
    if left.dtype is not right.dtype:
        return False
    if _is_whole_words(left) and _is_whole_words(right):
        # Whole words are compared twice as fast as floats, and a NaN equals itself.
        left, right = left.view(-1).view(torch.int64), right.view(-1).view(torch.int64)
    return torch.equal(left, right)


def which_are_same(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Of each pair of tensors of one shape, whether they are the same bit for bit; a device is waited for once."""
    if any(tensor.device.type == "cpu" for pair in pairs for tensor in pair):
        return [same_bits(left, right) for left, right in pairs]
    found: list[torch.Tensor] = []
    owners: list[int] = []
    for number, (left, right) in enumerate(pairs):
        if left.dtype is not right.dtype:
            continue
        # As whole numbers, a NaN equals itself.
        left, right = (own.reshape(-1).view(_WORDS[own.itemsize]) for own in (left, right))
        for start, stop in stretches(left.numel(), left.device):
            found.append((left[start:stop] == right[start:stop]).all())
            owners.append(number)
    differ = {number for number, same in zip(owners, numbers(found), strict=True) if not same}
    return [left.dtype is right.dtype and number not in differ for number, (left, right) in enumerate(pairs)]


def _is_whole_words(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in words of 8 bytes: a part of a larger buffer may begin in the middle of one."""
    size = tensor.itemsize
    in_words = tensor.numel() * size % 8 == 0 and tensor.storage_offset() * size % 8 == 0
    return in_words and tensor.is_contiguous()


def squared_norm(gradient: torch.Tensor) -> torch.Tensor:
    """‖g‖² as a tensor on its device, in float32 at least; infinite where it is beyond that dtype."""
    dtype = gradient.dtype
    if dtype is torch.float32 or dtype is torch.float64:
        # Little tensors mostly have one dimension, and their time is that of the calls.
        flat = gradient if gradient.dim() == 1 else gradient.reshape(-1)
        return torch.dot(flat, flat)
    flat = (torch.view_as_real(gradient) if gradient.is_complex() else gradient).reshape(-1)
    if flat.dtype is torch.float32 or flat.dtype is torch.float64:
        return torch.dot(flat, flat)
    total = torch.zeros((), device=flat.device)
    for start, stop in stretches(flat.numel(), flat.device):
        part = flat[start:stop].float()
        total += torch.dot(part, part)
    return total


def is_finite(vector: Vector) -> bool:
    """Whether every element of a gradient is a finite number."""
    # A rank may hold nothing of a small weight: there is no largest of no elements.
    if isinstance(vector, Made):
        return all(part is None or bool(torch.isfinite(part).all()) for part in vector)
    parts = [dense(part).detach() for part in vector if part is not None and part.numel()]
    return all(math.isfinite(norm) for norm in numbers(torch._foreach_norm(parts, math.inf))) if parts else True


def block_size(device: torch.device) -> int:
    """How many elements to work on at a time in float64."""
    return _BLOCK if device.type == "cpu" else _DEVICE_BLOCK


def numbers(scalars: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one element each, read from their device together."""
    if not scalars:
        return []
    try:
        values: list[float] = torch.stack(list(scalars)).tolist()
    except RuntimeError:
        # They are on several devices; to look at each beforehand would take longer.
        return [float(scalar) for scalar in scalars]
    return values


def _inner_products(vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
    exact = any(parameter.dtype is torch.float64 for parameter in parameters)
    if len(vectors) == 1:
        # Its norm is all that there is to know, and a dot product in its own dtype tells enough digits of it.
        squared = math.fsum(numbers([squared_norm(dense(part).detach()) for part in vectors[0] if part is not None]))
        return InnerProducts(torch.tensor([[math.sqrt(squared) if exact else squared]], dtype=torch.float64), exact)
    device = parameters[0].device
    total = torch.zeros(0 if exact else len(vectors), len(vectors), dtype=torch.float64, device=device)
    for chosen in _blocks(vectors, parameters, device):
        if not exact:
            total.addmm_(chosen, chosen.T)
        elif not bool(torch.isfinite(chosen).all()):
            return InnerProducts(torch.full((1, len(vectors)), math.nan, dtype=torch.float64), exact)
        else:
            total = torch.linalg.qr(torch.cat([total, chosen.T]), mode="r")[1]
    return InnerProducts(total.cpu(), exact)


def _blocks(
    vectors: Sequence[Vector], parameters: Sequence[torch.Tensor], device: torch.device
) -> Iterator[torch.Tensor]:
    """The vectors as the rows of matrices in float64: one for each parameter, or for each block of a large one.

    A matrix is good until the next is asked for.
    """
    lengths = [p.numel() for p in parameters]
    if sum(lengths) <= block_size(device) and all(p.device == device for p in parameters):
        # Little models are bound by the number of calls, and not by memory: all is converted at once.
        flat = [
            torch.zeros_like(p) if g is None else dense(g) for v in vectors for p, g in zip(parameters, v, strict=True)
        ]
        rows = torch.cat([part.reshape(-1) for part in flat]).detach().view(len(vectors), -1)
        yield from torch.split(rows.double(), lengths, dim=1)
        return
    if device.type != "cpu":
        yield from _blocks_of_many(vectors, parameters, device)
        return
    size = min(block_size(device), max(lengths))
    block = torch.empty(len(vectors), size, dtype=torch.float64, device=device)
    for position, length in enumerate(lengths):
        parts = [pieces_of(v, position) for v in vectors]
        for start in range(0, length, size):
            stop = min(start + size, length)
            chosen = block[:, : stop - start]
            for target, part in zip(chosen, parts, strict=True):
                if part is None:
                    target.zero_()
                else:
                    target.copy_(part(start, stop))
            yield chosen


def _blocks_of_many(
    vectors: Sequence[Vector], parameters: Sequence[torch.Tensor], device: torch.device
) -> Iterator[torch.Tensor]:
    """As `_blocks`, with the stretches of as many parameters in a block as it holds: a GPU is bound by its calls."""
    most = block_size(device)
    block = torch.empty(len(vectors), most, dtype=torch.float64, device=device)
    waiting: list[list[torch.Tensor]] = [[] for _ in vectors]
    held = 0

    def filled() -> torch.Tensor:
        for row, own in zip(block, waiting, strict=True):
            row[:held].copy_(torch.cat(own))
            own.clear()
        return block[:, :held]

    for position, parameter in enumerate(parameters):
        parts = [pieces_of(v, position) for v in vectors]
        start = 0
        while start < parameter.numel():
            stop = min(start + most - held, parameter.numel())
            for own, part in zip(waiting, parts, strict=True):
                own.append(_zeros(stop - start, device) if part is None else part(start, stop).to(device))
            held += stop - start
            start = stop
            if held == most:
                yield filled()
                held = 0
    if held:
        yield filled()


def _zeros(elements: int, device: torch.device) -> torch.Tensor:
    """Zeros that share one element."""
    return torch.zeros((), device=device).expand(elements)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without sparsity."""
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def norm_of(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> float:
    """The Euclidean norm of several tensors together."""
    return math.hypot(*numbers(torch._foreach_norm(tensors)))


def norm_over(vector: Vector, parameters: Sequence[torch.Tensor]) -> float:
    """The Euclidean norm of a gradient over ``parameters``."""
    if not isinstance(vector, Made):
        return norm_of([dense(part) for part in vector if part is not None])
    norms = []
    for position, parameter in enumerate(parameters):
        pieces = pieces_of(vector, position)
        if pieces is not None:
            each = stretches(parameter.numel(), parameter.device)
            norms += [torch.linalg.vector_norm(pieces(start, stop)) for start, stop in each]
    return math.hypot(*numbers(norms))


def on_devices_of(parameters: Sequence[torch.Tensor], vector: Vector) -> Vector:
    """A gradient over ``parameters`` on their devices: what was computed elsewhere is copied as it is asked for."""
    if all(part is None or part.device == p.device for part, p in zip(vector, parameters, strict=True)):
        return vector
    return Made([vector], lambda position, parts: parts[0].to(parameters[position].device))


def combination(weighted: Sequence[tuple[float, Vector]]) -> Vector:
    """Σ w_i v_i of gradients over the same parameters, to be read only: it may be one of them."""
    if len(weighted) == 1 and weighted[0][0] == 1.0:
        return weighted[0][1]
    weights = [weight for weight, _ in weighted]

    def added(position: int, parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
        own = [p if w == 1.0 else p * w for w, p in zip(weights, parts, strict=True) if p is not None]
        total = own[0]
        for part in own[1:]:
            total = total + part
        return total

    return Made([vector for _, vector in weighted], added)

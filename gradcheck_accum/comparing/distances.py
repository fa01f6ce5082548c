"""The distance of two gradients, parameter by parameter.

Squares are added up in float64, where none overflows and small ones are not lost, and a stretch at a time: data in the
processor's cache is computed several times as fast, and no gradient is copied whole. A difference is rounded at most to
float32, which is far less than the error to be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gradcheck_accum.comparing.state import Gradient
from gradcheck_accum.verify.vectors.inner_products import numbers, stretches


@dataclass(frozen=True, slots=True)
class Distances:
    """The norms of two gradients, and of their difference, of each parameter; 0 where it has none."""

    mine: list[float]
    theirs: list[float]
    apart: list[float]

    @classmethod
    def between(cls, mine: Gradient, theirs: Gradient) -> Distances:
        """Those of two gradients of the same parameters."""
        norms: list[torch.Tensor] = []
        counts = []
        for own, other in zip(mine, theirs, strict=True):
            before = len(norms)
            _enter(norms, own, other)
            counts.append(len(norms) - before)
        values = iter(numbers(norms))
        found = [[next(values) for _ in range(count)] for count in counts]
        return cls(*([math.hypot(*each[part::3]) for each in found] for part in range(3)))


def _enter(norms: list[torch.Tensor], mine: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    """Enter three norms for each stretch of one parameter's gradients."""
    known = mine if mine is not None else theirs
    if known is None:
        return
    own, other = (None if one is None else one.reshape(-1) for one in (mine, theirs))
    for start, stop in stretches(known.numel(), known.device):
        a, b = (_stretch(one, start, stop, like=known) for one in (own, other))
        norms += [torch.linalg.vector_norm(each, dtype=torch.float64) for each in (a, b, a - b)]


def _stretch(gradient: torch.Tensor | None, start: int, stop: int, *, like: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros(stop - start, device=like.device)
    part = gradient[start:stop]
    return part if part.dtype is torch.float64 else part.float()

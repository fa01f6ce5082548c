"""How far a correct gradient may be from its reference: derived from rounding, not tuned.

docs/tolerances.md has the derivations, their sources, and measurements for comparison. In short, for a loop that adds
contributions g_1, ..., g_m in a dtype of unit roundoff u, with partial sums s_j = g_1 + ... + g_j:

- *At worst* the sum is off by gamma_(m-1) Σ|g_j| in each element, gamma_k = k u / (1 - k u) (Higham, Accuracy and
  Stability of Numerical Algorithms, 2nd ed., section 4.2). If every micro-batch has the right weight, only rounding can
  cause an error below that.
- *Usually* rounding errors are independent of each other: each is at most u |s_j|, and their sum is of the order of u
  √(Σ ‖s_j‖²), which grows like √m and not like m (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, A2815).
- *The norm* of the sum has a smaller error still, because rounding errors are hardly ever parallel to the sum.
- *The replay* sums in a different order, with different matrix shapes: each pass has the rounding errors of a whole
  forward and backward, in the compute dtype.
- *A sketch* (`gradcheck_accum.verify.vectors.sketch`) bounds a norm with a stated confidence: an error is within the
  tolerance if its upper bound is, and beyond it if its lower bound is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

CLIP_ROUNDINGS = 32
"""Rounding errors by which a clip's norm, quotient and product may differ for the same gradient."""

_FACTOR_ROUNDINGS = 8
"""Rounding errors of scaling a gradient by hand, and of reading its factors."""

_MEASURING_ROUNDINGS = 16
"""Rounding errors of the measurement itself in float64: they only matter for float64 gradients."""

_DEVIATIONS = 4.0
"""How many times its usual size an error of independent roundings may be; 0.45 times was measured."""

_PASS_ROUNDINGS = 64.0
_PASS_ROUNDINGS_LOW_PRECISION = 6.0
"""Rounding errors of a forward and backward pass, as one relative error: low precision accumulates in higher."""


CONFIDENCE = 0.999
"""The probability that a norm, or the quotient of two, lies within the bounds from its sketch."""

_SHARING = 1 / 512
"""The probability that two elements share a bucket of a sketch of 1,024 is half as large, but for elements of one
stretch at some distances (`gradcheck_accum.verify.vectors.sketch`): this covers them where a gradient does not lie in
these."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Addends:
    """The sizes of a window's addends: Euclidean norms of its contributions and of their sum."""

    contributions: Sequence[float]
    total: float

    @property
    def partial_sums(self) -> float:
        """An upper estimate of √(Σ ‖s_j‖²): partial sums that grow to the total, or randomly to √(Σ ‖g_j‖²)."""
        return math.sqrt(len(self.contributions)) * max(self.total, math.hypot(*self.contributions))


@dataclass(frozen=True, slots=True)
class SumTolerance:
    """Relative errors: ``usual`` and ``worst`` of a sum in the Euclidean norm, ``norm`` of that norm itself."""

    usual: float
    worst: float
    norm: float


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of ``dtype``: the largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def gamma(count: int, roundoff: float) -> float:
    """gamma_k = k u / (1 - k u), or infinity where k u reaches 1."""
    product = count * roundoff
    return product / (1 - product) if product < 1 else math.inf


def multiple_of(inner: float, before: float, now: float, roundoff: float) -> float | None:
    """The number by which a gradient is the multiple of what it was before, but for rounding; None where it is none.

    ``inner`` is <now, before>, and ``before`` and ``now`` are ‖·‖² of the two.
    """
    ratio = inner / before if before else 0.0
    residual = math.sqrt(max(now - ratio * inner, 0.0))
    return ratio if ratio and residual <= max(16 * roundoff, 1e-7) * math.sqrt(now) else None


def tidied(ratio: float, roundoff: float) -> float:
    """A measured ratio of gradients, as an integer or the reciprocal of one where it is one up to their rounding.

    A factor of 0.99995 is not taken for 1: that would leave an unexplained error.
    """
    for number, as_it_is in ((ratio, True), (1 / ratio if ratio else 0.0, False)):
        nearest = round(number) if math.isfinite(number) else 0
        if nearest and math.isclose(number, nearest, rel_tol=4 * roundoff):
            return float(nearest) if as_it_is else 1 / nearest
    return ratio


def sketched_norm(norm: float) -> Bounds:
    """The bounds of ‖v‖ if the norm of its sketch is ``norm``, with a confidence above CONFIDENCE.

    X = ‖S v‖² has the mean ‖v‖² and a variance of at most 2 p ‖v‖⁴, p the probability that two elements share a bucket
    (Alon, Matias, Szegedy, J. Comput. Syst. Sci. 58, 1999, section 2.2; Charikar, Chen, Farach-Colton, Theor. Comput.
    Sci. 312, 2004). It is a sum of squares, of a sum of random signs each, and is judged as that of 1/p normal
    variables would be: it is above (1 + 2 √(p t) + 2 p t) ‖v‖² with a probability of at most exp(-t), and below
    (1 - 2 √(p t)) ‖v‖² too (Laurent and Massart, Ann. Statist. 28, 2000, lemma 1). With t = ln(4 / (1 - CONFIDENCE))
    the bounds of two norms hold together, and so do those of their quotient.
    """
    t = math.log(4 / (1 - CONFIDENCE))
    spread = 2 * math.sqrt(_SHARING * t)
    return Bounds(norm / math.sqrt(1 + spread + 2 * _SHARING * t), norm / math.sqrt(1 - spread))


def sketched_cosine() -> float:
    """How far the cosine of two sketches may be from that of their gradients, with the confidence of CONFIDENCE.

    <S v, S w> has the mean <v, w> and a variance of at most 2 p ‖v‖² ‖w‖².
    """
    return 2 * math.sqrt(_SHARING * math.log(4 / (1 - CONFIDENCE)))


def sum_tolerance(addends: Addends, dtype: torch.dtype) -> SumTolerance:
    """How far a sum of gradients in ``dtype`` may be from the exact one."""
    if addends.total == 0:
        return SumTolerance(0.0, 0.0, 0.0)
    roundoff, count = unit_roundoff(dtype), len(addends.contributions)
    extra = _FACTOR_ROUNDINGS + (_MEASURING_ROUNDINGS if dtype is torch.float64 else 0)
    # For float64, the measurement's own rounding errors are as large as those of the contributions.
    relative_to = math.fsum(addends.contributions) if dtype is torch.float64 else addends.total
    worst = gamma(count + extra, roundoff) * math.fsum(addends.contributions) / addends.total
    usual = roundoff * (_DEVIATIONS * addends.partial_sums + extra * relative_to) / addends.total
    # 0.25 √K eps was measured for the norm: four times that, and the rounding errors that all elements may share.
    norm = roundoff * (2 * math.sqrt(count) + extra)
    return SumTolerance(min(usual, worst), worst, norm)


def replay_tolerance(addends: Addends, dtype: torch.dtype, compute_dtype: torch.dtype) -> float:
    """The relative error that a replay as one large batch may show.

    ``dtype`` is the gradients', ``compute_dtype`` the lowest that computed anything.
    """
    if addends.total == 0:
        return 0.0
    low = compute_dtype in (torch.bfloat16, torch.float16)
    passes = _PASS_ROUNDINGS_LOW_PRECISION if low else _PASS_ROUNDINGS
    noise = passes * unit_roundoff(compute_dtype) * (math.hypot(*addends.contributions) + addends.total)
    return noise / addends.total + sum_tolerance(addends, dtype).usual

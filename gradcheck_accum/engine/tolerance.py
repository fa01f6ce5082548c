"""How far a right gradient may be from its reference, derived from rounding and not tuned.

*The sum check.* A loop adds m contributions g_j in a dtype of unit roundoff u. Adding m numbers in any order gives the
sum with an error of at most gamma_(m-1) Σ|g_j| in each element, gamma_k = k u / (1 - k u) (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., section 4.2). A factor on the loss is rounded once when it is applied and
once when the gradient is multiplied by it, which adds a few to k. In the Euclidean norm the bound is
gamma_(m+c) Σ‖g_j‖.

*The replay check.* The large batch is computed in another summation order and other matrix shapes, so both it and the
loop carry the rounding of a whole forward and backward pass. Those errors are independent from operation to operation
and grow like √m u relative to Σ‖g_j‖; the constant stands for the depth of the graph.
"""

from __future__ import annotations

import math

import torch

FACTOR_ROUNDINGS = 8
"""Roundings that scaling a loss and its gradient adds to the m - 1 additions of the sum check."""

MEASURING_ROUNDINGS = 16
"""Roundings of the measurement itself, which is done in float64: only beside float64 do they count."""

CLIP_ROUNDINGS = 32
"""Roundings that a clip's norm, quotient and product may differ by where the gradient is the same."""

_REPLAY_CONSTANT = 64.0
_REPLAY_CONSTANT_LOW_PRECISION = 6.0


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of ``dtype``: the largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def gamma(count: int, roundoff: float) -> float:
    """gamma_k = k u / (1 - k u), or infinity where k u reaches 1."""
    product = count * roundoff
    return product / (1 - product) if product < 1 else math.inf


def sum_tolerance(entries: int, dtype: torch.dtype, contribution_norms: float, reference_norm: float) -> float:
    """The relative error in the Euclidean norm that adding ``entries`` contributions may cause.

    ``contribution_norms`` is Σ‖g_j‖ and ``reference_norm`` is ‖g_ref‖.
    """
    if reference_norm == 0:
        return 0.0
    roundings = entries + FACTOR_ROUNDINGS + (MEASURING_ROUNDINGS if dtype is torch.float64 else 0)
    return gamma(roundings, unit_roundoff(dtype)) * contribution_norms / reference_norm


def replay_tolerance(entries: int, dtype: torch.dtype, contribution_norms: float, reference_norm: float) -> float:
    """The relative error that a replay as one large batch may show; ``dtype`` is the lowest that computed anything."""
    if reference_norm == 0:
        return 0.0
    low = dtype in (torch.bfloat16, torch.float16)
    constant = _REPLAY_CONSTANT_LOW_PRECISION if low else _REPLAY_CONSTANT
    return constant * math.sqrt(max(entries, 1)) * unit_roundoff(dtype) * contribution_norms / reference_norm

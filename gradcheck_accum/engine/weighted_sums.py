"""Data that the elements of a sum or mean are multiplied by: a mask, or weights.

A mask of zeros and ones selects elements: those are the units of their sum. Weights that the micro-batch has normalized
to a sum of one make a weighted mean, whichever function computes it; each then counts as many units as its value before
normalization, as class weights do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

SharesOf = Callable[[torch.Tensor, "torch.Tensor | None", bool], "torch.Tensor | None"]
"""Returns weights as they were before normalization, up to a factor, or None if they were not normalized here. The
arguments: the weights, a number that divides their products with the elements (if there is one), and whether they add
up to the number of elements (for a mean) and not to one."""


def masked_units(operands: Sequence[torch.Tensor]) -> float | None:
    """How many elements of a sum its masks select; None if it is multiplied by anything else."""
    if not operands or not all(map(_is_mask, operands)):
        return None
    left = operands[0] != 0
    for other in operands[1:]:
        left = left & (other != 0)
    return float(left.sum())


def weighted_units(
    operands: Sequence[torch.Tensor], by: Sequence[torch.Tensor], is_mean: bool, shares_of: SharesOf
) -> float | None:
    """The units of a weighted mean: the sum of its weights before they are normalized.

    The elements' products with ``operands`` are divided by the numbers ``by``, and, if ``is_mean``, by the number of
    elements. None if that is not a mean.
    """
    if len(operands) != 1 or len(by) > 1:
        return None
    whole = shares_of(operands[0], by[0] if by else None, is_mean)
    units = float(whole.sum()) if whole is not None else math.nan
    return units if math.isfinite(units) and units > 0 else None


def _is_mask(operand: torch.Tensor) -> bool:
    if operand.dtype is torch.bool:
        return True
    return not operand.is_complex() and bool(((operand == 0) | (operand == 1)).all())

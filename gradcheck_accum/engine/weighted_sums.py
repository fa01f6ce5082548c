"""Data that the elements of a sum or mean are multiplied by: a mask, or weights.

A mask of zeros and ones selects elements: those are the units of their sum. Whole numbers count elements: one that was
drawn twice (a bootstrap sample, counts of words) is two units. Weights that the micro-batch has normalized
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


def counted_units(operands: Sequence[torch.Tensor]) -> float | None:
    """How many units of a sum its masks select, or its counts count; None if it is multiplied by anything else."""
    if not operands or not all(map(_counts, operands)):
        return None
    product = operands[0].double()
    for other in operands[1:]:
        product = product * other
    return float(product.sum())


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


def _counts(operand: torch.Tensor) -> bool:
    """Whether a tensor holds whole numbers alone, none of them negative."""
    if operand.dtype is torch.bool:
        return True
    return not operand.is_complex() and bool(((operand >= 0) & (operand == operand.round()) & operand.isfinite()).all())

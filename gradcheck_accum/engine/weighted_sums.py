"""What the elements of a sum or mean are multiplied by, where that is data: the places that a mask leaves, or weights.

A mask of zeros and ones says which elements there are: those that it leaves are the units of their sum. Weights that
were made in the micro-batch to add up to one make a weighted mean, whatever was called for it; as the weight of a class
does, each then counts as many units as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

SharesOf = Callable[[torch.Tensor, "torch.Tensor | None", bool], "torch.Tensor | None"]
"""Asked of weights that make a mean, and of a number that their products with the elements are divided by, if there is
one: what they were before they were made to add up, in proportion. None where they were not made to here. Last comes
whether they add up to the number of elements, as those of a mean do, and not to one."""


def masked_units(operands: Sequence[torch.Tensor]) -> float | None:
    """How many elements of a sum are left by the masks that it is multiplied by; None where others are among them."""
    if not operands or not all(map(_is_mask, operands)):
        return None
    left = operands[0] != 0
    for other in operands[1:]:
        left = left & (other != 0)
    return float(left.sum())


def weighted_units(
    operands: Sequence[torch.Tensor], by: Sequence[torch.Tensor], is_mean: bool, shares_of: SharesOf
) -> float | None:
    """The units of a weighted mean: what its weights add up to before they are made to add up to one.

    The elements' products with ``operands`` are divided by the numbers ``by``, and then by their own number where
    ``is_mean`` says so. None where that makes no mean of them.
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

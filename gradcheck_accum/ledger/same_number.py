"""Decides whether two numbers that were read from a loop are equal, given the precision that they were read in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_LEAST = 1e-5
"""The smallest relative tolerance: a few roundings in float32. It also holds for numbers from a source."""

_ROUNDINGS = 4
"""The number of roundings that a factor may have undergone when it is read."""

_NOTHING = 1e-12
"""Absolute: no more than this is 0."""


@dataclass(frozen=True, slots=True)
class Same:
    """Compares two numbers that were read with ``precision``: the unit roundoff of a dtype, 0 for a source."""

    precision: float = 0.0
    tolerance: float = field(init=False)
    """The relative difference within which two numbers are the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", max(_LEAST, _ROUNDINGS * self.precision))

    def __call__(self, left: float, right: float) -> bool:
        return math.isclose(left, right, rel_tol=self.tolerance, abs_tol=_NOTHING)

"""The names of PyTorch's functions that multiply or divide a tensor."""

from __future__ import annotations

_OPERATORS = frozenset({"__mul__", "__rmul__", "__imul__", "__truediv__", "__itruediv__"})
_IN_PLACE = frozenset({"mul_", "multiply_", "div_", "divide_", "true_divide_", "__imul__", "__itruediv__"})
_OF_LISTS = frozenset({"_foreach_mul", "_foreach_mul_", "_foreach_div", "_foreach_div_"})

MULTIPLYING = frozenset({"mul", "mul_", "multiply", "multiply_", "__mul__", "__rmul__", "__imul__"})
DIVIDING = frozenset({"div", "div_", "divide", "divide_", "true_divide", "true_divide_", "__truediv__", "__itruediv__"})
RETURNING = (MULTIPLYING | DIVIDING) - _IN_PLACE
"""Those that return another tensor, and write into none."""
SCALES = MULTIPLYING | DIVIDING | _OF_LISTS
"""All of them, operators and those of several tensors too."""
SCALINGS = SCALES - _OPERATORS
"""Those that are called by their names."""

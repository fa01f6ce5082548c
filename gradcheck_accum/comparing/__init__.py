"""The third reference: the user's own script once more, on the true large batch (another batch size, K = 1).

`compare_script` runs a script in each of its configurations, in a process of its own, and compares them step by step;
`compare` does so with a loop of this process.

The package is not named like its command, because `gradcheck_accum.compare` is the function. Importing this package
does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.comparing.configurations import BadConfigurations, configurations
from gradcheck_accum.comparing.script import compare_script

if TYPE_CHECKING:
    from gradcheck_accum.comparing.loop import ComparisonError, compare, compared_loop

__all__ = ["BadConfigurations", "ComparisonError", "compare", "compare_script", "compared_loop", "configurations"]


def __getattr__(name: str) -> Any:
    if name in {"ComparisonError", "compare", "compared_loop"}:
        from gradcheck_accum.comparing import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The dynamic engine: runs a loop unmodified and compares the gradient at every step with the true large batch's.

`verify_script` runs a script in a process of its own; `check`, `watch` and `observe` watch a loop in this one.
Importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.verify.process.parent import verify_script
from gradcheck_accum.verify.ranks.launch import is_orphan, is_other_rank

if TYPE_CHECKING:
    from gradcheck_accum.verify.in_program import AccumulationError, AccumulationWarning, OnDeviation, check, watch
    from gradcheck_accum.verify.session import Observation, checked, judged, observe

__all__ = [
    "AccumulationError",
    "AccumulationWarning",
    "Observation",
    "OnDeviation",
    "check",
    "checked",
    "is_orphan",
    "is_other_rank",
    "judged",
    "observe",
    "verify_script",
    "watch",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in {"Observation", "checked", "judged", "observe"}:
        from gradcheck_accum.verify import session

        return getattr(session, name)
    if name in {"AccumulationError", "AccumulationWarning", "OnDeviation", "check", "watch"}:
        from gradcheck_accum.verify import in_program

        return getattr(in_program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The dynamic engine: runs a loop unmodified and compares the gradient at every step with the true large batch's.

`verify_script` runs a script in a process of its own; `observe` watches a loop in this one. Importing this package
does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.verify.script import verify_script

if TYPE_CHECKING:
    from gradcheck_accum.verify.session import Observation, observe

__all__ = ["Observation", "observe", "verify_script"]


def __getattr__(name: str) -> Any:
    if name in {"Observation", "observe"}:
        from gradcheck_accum.verify import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

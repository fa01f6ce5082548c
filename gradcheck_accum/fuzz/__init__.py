"""Property-based testing of gradient accumulation: generated loops for our engines, generated data for user loops.

Importing this package imports neither PyTorch nor Hypothesis: its modules import them when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradcheck_accum.fuzz.campaign import run_campaign
    from gradcheck_accum.fuzz.cases import AccumCase, CannotSupply
    from gradcheck_accum.fuzz.loops import fuzz_loop
    from gradcheck_accum.fuzz.strategies import accum_cases

__all__ = ["AccumCase", "CannotSupply", "accum_cases", "fuzz_loop", "run_campaign"]

_ROOMS = {
    "AccumCase": "cases",
    "CannotSupply": "cases",
    "accum_cases": "strategies",
    "fuzz_loop": "loops",
    "run_campaign": "campaign",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)

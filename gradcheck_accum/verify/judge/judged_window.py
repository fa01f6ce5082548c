"""The verdict on one window, with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.engine.tolerance import Bounds
from gradcheck_accum.results.verdict import Verdict

Numbers = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """The verdict on one window.

    ``numbers`` are |g - g_ref| / |g_ref|, |g| / |g_ref| and the tolerance for the first. ``replayed`` is the distance
    of the two references where both are known, ``note`` what the user should know about the comparison. ``coupling`` is
    not empty if a gradient deviates and its loss couples samples, so that units do not determine the weight of each.
    ``within`` are the bounds of the error where only these are known.
    """

    verdict: Verdict
    reason: str = ""
    numbers: Numbers = (None, None, None)
    replayed: float | None = None
    note: str = ""
    coupling: str = ""
    within: Bounds | None = None

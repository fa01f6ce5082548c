"""What is said of one window."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.engine.tolerance import Bounds
from gradcheck_accum.results.verdict import Verdict

Numbers = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """What is said of one window.

    ``numbers`` are |g - g_ref| / |g_ref|, |g| / |g_ref| and what is allowed of the first. ``replayed`` is how far the
    two references are apart where both were had, ``note`` what the user should know of the comparison. ``coupling``
    says of a gradient that deviates that its loss couples samples, so that units do not tell what each should weigh.
    ``within`` are the bounds of the error, where it is known within bounds alone.
    """

    verdict: Verdict
    reason: str = ""
    numbers: Numbers = (None, None, None)
    replayed: float | None = None
    note: str = ""
    coupling: str = ""
    within: Bounds | None = None

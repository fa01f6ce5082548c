"""What the user has to state or run so that an inconclusive verdict can be decided."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_accum.results.verdict import Verdict, WindowReport


def to_decide(
    verdict: Verdict,
    reports: Sequence[WindowReport],
    *,
    gradients_seen: bool,
    gradients_astray: bool,
    scale_is_open: bool,
) -> str:
    """The one thing to do about an inconclusive verdict; empty where its reason says it."""
    if verdict is not Verdict.INCONCLUSIVE:
        return ""
    if not reports and gradients_seen:
        return "run the script on enough data for at least one optimizer.step()"
    if not reports and gradients_astray:
        return ""
    if not reports:
        return "run the training in this process: processes that a script starts are not watched"
    if scale_is_open:
        return "state the intended coefficient of the loss: --loss-coefficient"
    return ""

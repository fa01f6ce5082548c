"""What whoever runs an undecided script must state or run, so that it can be decided."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_accum.verdict import Verdict, WindowReport


def to_decide(
    verdict: Verdict,
    reports: Sequence[WindowReport],
    *,
    gradients_seen: bool,
    gradients_astray: bool,
    scale_is_open: bool,
) -> str:
    """The one thing to do about an inconclusive verdict; nothing where its reason says it."""
    if verdict is not Verdict.INCONCLUSIVE:
        return ""
    if not reports and gradients_seen:
        return "run the script on as much data as it needs for its first optimizer.step()"
    if not reports and gradients_astray:
        return ""
    if not reports:
        return "run what trains in this very process: what a script starts as processes of its own is not watched"
    if scale_is_open:
        return "state what the loss is meant to be multiplied by: --loss-coefficient"
    return ""

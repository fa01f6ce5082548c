"""Messages on a run that was stopped before its end."""

from __future__ import annotations

from dataclasses import replace

from gradcheck_accum.results.verdict import Verdict, VerifyResult

INTERRUPTED = "interrupted"
"""The error of a run that was interrupted."""

STOPPED = "stopped before the script ended: the report covers what was seen until then"
"""The note on a run that was stopped by the user or its time limit."""

ENOUGH = "stopped after as many steps as max_windows allows: the end of the data was not checked"
"""The note on a run that was stopped because no further steps were wanted."""

BEFORE_THE_END = "; stopped before the end"
"""The end of the reason for an equivalent verdict on such a run, which every format shows."""

NOTHING_SEEN = "interrupted before anything was seen"
"""The error of a run that was interrupted before the script began, or that could no longer report."""


def stopped_early(result: VerifyResult, note: str) -> VerifyResult:
    """The result of a run that was stopped before its end, with a note on why."""
    reason = result.reason + BEFORE_THE_END * (result.verdict is Verdict.EQUIVALENT)
    return replace(result, reason=reason, notes=(*result.notes, note))

"""What the user has accepted: it is reported as accepted, and no longer decides the verdict.

Accepted is what the project's settings do not report, and what a comment at its line suppresses: the same settings and
comments that ``lint`` uses. A step that does not match the large batch is accepted if every mistake that was diagnosed
in it is, and if these account for what was measured. What was not checked is never accepted: a step that could not be
judged keeps its verdict, and so does a deviation whose cause was not recognized.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult, WindowReport, verdict_on
from gradcheck_accum.settings import Settings
from gradcheck_accum.sources.suppressions import Commented

_OF_ONE_FACTOR = frozenset({"GA101", "GA102", "GA103", "GA303", "GA304"})
"""Mistakes that make the gradient a multiple of the large batch's: where it is none, something else is wrong too."""

_REACHED_NO_STEP = "GA301"

_NEAR = 0.01
"""How far from a multiple a gradient may be, relative to its error: a division in bfloat16 rounds that much."""


class Acceptance:
    """Where a diagnosis has been accepted: "settings", "comment", or empty; called for one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sources: dict[str, Commented] = {}

    def __call__(self, diagnosis: Diagnosis) -> str:
        """Where ``diagnosis`` has been accepted, if it has."""
        where = diagnosis.where
        if not self._settings.reports(diagnosis.mistake.code, where.path):
            return "settings"
        if where.path not in self._sources:
            # Cells of a notebook have their lines there too; what cannot be read has none.
            linecache.checkcache(where.path)
            self._sources[where.path] = Commented.running("".join(linecache.getlines(where.path)))
        return "comment" if self._sources[where.path].hides(diagnosis.mistake, where) else ""


def accepted(result: VerifyResult, by: Callable[[Diagnosis], str]) -> VerifyResult:
    """The result in which what was accepted decides nothing; ``by`` gives where a diagnosis was accepted, if it was."""
    found = [(diagnosis, by(diagnosis)) for diagnosis in result.diagnosis]
    put_up_with = tuple(Accepted(diagnosis, where) for diagnosis, where in found if where)
    if not put_up_with:
        return result
    left = tuple(diagnosis for diagnosis, where in found if not where)
    windows = tuple(explained(window, put_up_with, left) for window in result.windows)
    verdict, reason = result.verdict, result.reason
    if any(mistake.moves_gradient or mistake.by_construction for mistake in (a.diagnosis.mistake for a in put_up_with)):
        verdict, reason = _of_the_rest(result, windows, left)
    return replace(
        result,
        verdict=verdict,
        reason=f"{reason}; accepted: {', '.join(counts(put_up_with))}",
        windows=windows,
        diagnosis=left,
        accepted=(*result.accepted, *put_up_with),
    )


def explained(window: WindowReport, put_up_with: Sequence[Accepted], left: Sequence[Diagnosis]) -> WindowReport:
    """The window with the codes that were accepted and explain its verdict, where some do.

    ``left`` is what was diagnosed and not accepted.
    """
    if window.verdict not in (Verdict.DEVIATES, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION):
        return window
    codes = tuple(sorted({a.diagnosis.mistake.code for a in put_up_with if _shows(window, a.diagnosis)}))
    if not codes or any(_shows(window, diagnosis) for diagnosis in left):
        return window
    if not _explain(codes, window):
        more = f"{window.reason}; with only the accepted {' and '.join(codes)}, it would be a multiple of the reference"
        return replace(window, reason=more.removeprefix("; "))
    return replace(window, accepted=codes)


def _shows(window: WindowReport, diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis is one of the reasons why a window does not match its large batch."""
    if window.index not in diagnosis.windows:
        return False
    if window.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION:
        return diagnosis.mistake.by_construction
    return diagnosis.mistake.moves_gradient


def _explain(codes: Collection[str], window: WindowReport) -> bool:
    """Whether mistakes of these codes account for what was measured of a window."""
    error, ratio, allowed = window.grad_rel_error, window.grad_norm_ratio, window.tolerance
    if not _OF_ONE_FACTOR.issuperset(codes) or error is None or ratio is None:
        return True
    known = [weight for weight in window.weights if weight is not None]
    if any(not math.isclose(weight, known[0], rel_tol=_NEAR) for weight in known):
        return False
    # |g - g_ref| is |r - 1| |g_ref| where g is r g_ref, and larger if g has a component orthogonal to g_ref.
    across = math.sqrt(max(error**2 - (ratio - 1.0) ** 2, 0.0))
    return across <= (allowed or 0.0) + _NEAR * error


def _of_the_rest(
    result: VerifyResult, windows: Sequence[WindowReport], left: Sequence[Diagnosis]
) -> tuple[Verdict, str]:
    """The verdict on what has not been accepted, and its reason. It is never worse than the one on all."""
    if not windows or result.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE):
        return result.verdict, result.reason
    left_open = [window for window in windows if not window.accepted]
    lost = next((diagnosis.message for diagnosis in left if diagnosis.mistake.code == _REACHED_NO_STEP), "")
    verdict, reason = verdict_on(
        left_open,
        len(windows),
        # The verdict on all says whether there was any: the diagnosis may be of windows alone.
        lost=lost if result.verdict is Verdict.DEVIATES else "",
        diagnosed=any(diagnosis.mistake.moves_gradient for diagnosis in left),
    )
    more = sum(window.verdict is Verdict.DEVIATES and window not in result.windows for window in left_open)
    if more:  # their reason says so now
        reason += f", {more} of them by more than the accepted mistakes explain"
    return verdict, reason


def counts(put_up_with: Sequence[Accepted]) -> list[str]:
    """What was accepted, and in how many windows: "GA901 in 4 windows"."""
    windows: dict[str, set[int]] = {}
    for one in put_up_with:
        windows.setdefault(one.diagnosis.mistake.code, set()).update(one.diagnosis.windows)
    return [_count(code, len(indices)) for code, indices in sorted(windows.items())]


def _count(code: str, windows: int) -> str:
    return f"{code} in {windows} window{'' if windows == 1 else 's'}" if windows else code

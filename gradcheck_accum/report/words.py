"""Numbers and paths, short."""

from __future__ import annotations

import math
import os
from itertools import groupby

from gradcheck_accum.control_characters import visible

TYPE_CHECKING = False  # as in `typing`, which the short way through lint does without
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_accum.results.findings import LintResult


def plural(count: int, noun: str) -> str:
    """``count`` of ``noun``: "1 file", "2 files", "2 batches"."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"


def no_mistakes(files: int) -> str:
    """The sentence on files in which nothing was found."""
    return f"No mistakes found in {plural(files, 'file')}."


def fixable(result: LintResult) -> tuple[int, int]:
    """How many findings have a safe fix, and how many an unsafe one."""
    fixes = [finding.fix for finding in result.findings if finding.fix is not None]
    safe = sum(fix.safe for fix in fixes)
    return safe, len(fixes) - safe


def number(value: float | None) -> str:
    """A ratio or a weight with four digits; "-" where it was not measured."""
    if value is None:
        return "-"
    if value == 0 or (math.isfinite(value) and 1e-3 <= abs(value) < 1e4):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def error(value: float | None) -> str:
    """A relative error; "-" where it was not measured."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.1e}" if value < 0.01 or value >= 1000 else f"{value:.3f}"


def count(value: float | None) -> str:
    """A number of units: whole where it is whole (class weights may add up to a fraction)."""
    if value is None:
        return "-"
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:.2f}"


def weights(values: Sequence[float | None], widest: int = 16) -> str:
    """Relative weights with runs of equal ones folded: "3 x 1.000, 0.500".

    Where even that is too long, the smallest and the largest stand for all. "?" is one that could not be read.
    """
    if not values:
        return "-"
    texts = ["?" if value is None else number(value) for value in values]
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    folded = ", ".join(text if length == 1 else f"{length} x {text}" for text, length in runs)
    if len(folded) <= widest:
        return folded
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return f"{len(values) - len(known)} of {len(values)} unknown"
    return f"{number(min(known))} to {number(max(known))}"


def shown_path(path: str) -> str:
    """``path`` as a person would type it, with nothing in it that would command a terminal."""
    return visible(typed_path(path))


def typed_path(path: str) -> str:
    """``path`` from the working directory where it is below it."""
    if not os.path.isabs(path):
        return path
    try:
        below = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if below.startswith(os.pardir) else below

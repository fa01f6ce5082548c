"""The ledger as a picture: a row for each window, and in it a cell for each gradient, colored by its weight.

A long run is shown in a few rows: two of the windows with the same numbers, as in the text report, and of the others
the first and the worst. A long window is shown in a few cells, each for several gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradcheck_accum.report.verify_table import grouped
from gradcheck_accum.report.words import count, error, number, plural, weights
from gradcheck_accum.results.verdict import Verdict, WindowReport

ROWS = 32
"""Rows of a picture."""

CELLS = 32
"""Cells of a row."""

_NUMBERED = 8
"""Up to so many cells of a row have room for a number."""

_WORDS = 40


@dataclass(frozen=True, slots=True)
class Cell:
    """The weight of one or several gradients; ``kind`` is the color's name, ``text`` what is written in it."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One window: its cells, and its numbers in words. ``alike`` says how many similar ones after it are not shown."""

    window: WindowReport
    cells: tuple[Cell, ...]
    weights: str
    units: str
    error: str
    allowed: str
    ratio: str
    update: str
    drift: str
    verdict: str
    alike: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The rows, how many ``columns`` the longest has, how many gradients a cell stands for, and what is left out."""

    rows: tuple[Row, ...]
    columns: int
    each: int
    left_out: str
    kinds: frozenset[str]


def picture(windows: Sequence[WindowReport]) -> Picture | None:
    """The picture of these windows; None where none of them has weights."""
    if not any(window.weights for window in windows):
        return None
    chosen, alike, left_out = _chosen(windows)
    longest = max(len(window.weights) for window in chosen)
    each = max(1, math.ceil(longest / CELLS))
    columns = math.ceil(longest / each)
    rows = tuple(_row(window, each, columns, alike.get(window.index, "")) for window in chosen)
    return Picture(rows, columns, each, left_out, frozenset(cell.kind for row in rows for cell in row.cells))


def numbers(windows: Sequence[WindowReport]) -> tuple[tuple[Row, ...], str]:
    """The rows of a table of the same windows, and what it leaves out."""
    chosen, alike, left_out = _chosen(windows)
    return tuple(_row(window, 1, 0, alike.get(window.index, "")) for window in chosen), left_out


def _chosen(windows: Sequence[WindowReport]) -> tuple[list[WindowReport], dict[int, str], str]:
    """The windows that are shown, for those that stand for others how many, and in words what is left out."""
    shown, hidden = grouped(windows)
    stands_for = {first.index: rest for first, rest in hidden}
    # Those that decide, and that stand for others, come first; then the worst.
    first = sorted(shown, key=lambda w: (_is_fine(w), w.index not in stands_for, w.index))[: ROWS // 2]
    worst = sorted(shown, key=lambda w: -_size(w.grad_rel_error))
    taken = {window.index: window for window in (*(shown if len(shown) <= ROWS else first), *worst)}
    kept = sorted(list(taken.values())[:ROWS], key=lambda window: window.index)
    alike: dict[int, str] = {}
    said = {window.index for window in kept}
    for first_of_all in (window for window in kept if window.index in stands_for):
        rest = stands_for[first_of_all.index]
        said |= {window.index for window in rest}
        # Where the first of them would have been.
        before = max(window.index for window in kept if window.index < rest[0].index)
        told = f"{plural(len(rest), 'more window')} like {first_of_all.index}{_up_to(rest)}"
        alike[before] = f"{alike[before]}; {told}" if before in alike else told
    left = [window for window in windows if window.index not in said]
    return kept, alike, f"{plural(len(left), 'more window')} not shown{_up_to(left)}" if left else ""


def _up_to(windows: Sequence[WindowReport]) -> str:
    errors = [w.grad_rel_error for w in windows if w.grad_rel_error is not None]
    return f" (gradient error up to {error(max(errors))})" if errors else ""


def _is_fine(window: WindowReport) -> bool:
    return window.verdict is Verdict.EQUIVALENT or bool(window.accepted)


def _size(value: float | None) -> float:
    """An error by which windows can be put in order: what is no number is worse than all."""
    return -1.0 if value is None else math.inf if math.isnan(value) else value


def _row(window: WindowReport, each: int, columns: int, alike: str) -> Row:
    cells = [_cell(window.weights[i : i + each], columns) for i in range(0, len(window.weights), each) if columns]
    return Row(
        window,
        tuple(cells),
        weights(window.weights, _WORDS),
        count(window.units),
        _error(window),
        error(window.tolerance),
        number(window.grad_norm_ratio),
        error(window.param_rel_error),
        error(window.drift),
        window.verdict.value + (" (accepted)" if window.accepted else ""),
        alike,
    )


def _error(window: WindowReport) -> str:
    """The gradient error, with its bounds where it was measured by sketches."""
    measured = error(window.grad_rel_error)
    return measured if window.within is None else f"{measured} ({' to '.join(map(error, window.within))})"


def _cell(values: Sequence[float | None], columns: int) -> Cell:
    """The cell of these gradients: colored by that which is furthest from 1, or not known."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values):
        return Cell("unknown", "?")
    furthest = max(known, key=lambda value: abs(_logarithm(value)))
    return Cell(_kind(furthest), f"{furthest:.3g}" if columns <= _NUMBERED else "")


def _logarithm(weight: float) -> float:
    return math.log2(weight) if weight > 0 else -math.inf


def _kind(weight: float) -> str:
    if number(weight) == "1.000":
        return "right"
    if weight <= 0:
        return "nothing" if weight == 0 else "against"
    if weight > 1:
        return "much" if weight >= 2 else "more"
    return "little" if weight <= 0.5 else "less"

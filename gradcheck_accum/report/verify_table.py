"""The table of windows, as wide as a line allows: values that are the same in all of them are stated once, above it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from gradcheck_accum.report.kinds import kinds
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.words import count, error, number, plural, weights
from gradcheck_accum.report.wrap import labelled
from gradcheck_accum.results.verdict import Verdict, WindowReport

_ALWAYS_SHOWN = 8
"""Up to this many windows are all shown; of more, those that say the same are shown only a few times."""

_ALIKE_SHOWN = 2

_KINDS = 40
"""Up to this many kinds of windows are distinguished by their numbers."""

_SHORT = {Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION: "by construction"}
STYLES = {Verdict.EQUIVALENT: "green", Verdict.DEVIATES: "red"}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the table: a heading of two lines, and what a window shows there."""

    heading: tuple[str, str]
    cell: Callable[[WindowReport], str]
    to_the_left: bool = False

    @property
    def name(self) -> str:
        above, below = self.heading
        return f"{above}{below}" if above.endswith("-") else f"{above} {below}".strip()


_WINDOW = _Column(("", "window"), lambda w: str(w.index))
_OPTIMIZER = _Column(("", "optimizer"), lambda w: w.optimizer, to_the_left=True)
_LINE = _Column(("step", "line"), lambda w: str(w.line or "-"))
_MICRO_BATCHES = _Column(("micro-", "batches"), lambda w: str(w.micro_batches))
_UNITS = _Column(("", "units"), lambda w: count(w.units))
_WEIGHTS = _Column(("relative", "weights"), lambda w: weights(w.weights), to_the_left=True)
_ERROR = _Column(("gradient", "error"), lambda w: error(w.grad_rel_error))
_ALLOWED = _Column(("", "allowed"), lambda w: error(w.tolerance))
_RATIO = _Column(("norm", "ratio"), lambda w: number(w.grad_norm_ratio))
_UPDATE = _Column(("update", "error"), lambda w: error(w.param_rel_error))
_DRIFT = _Column(("weight", "drift"), lambda w: error(w.drift))
_VERDICT = _Column(("", "verdict"), lambda w: _verdict(w), to_the_left=True)

_SAID_ONCE = (_LINE, _UNITS, _MICRO_BATCHES, _RATIO, _ALLOWED)
"""Columns that are moved above the table, in this order, if it is too wide and all windows have the same value."""

_LEFT_OUT = (_ALLOWED, _LINE, _RATIO, _UNITS, _MICRO_BATCHES, _UPDATE, _OPTIMIZER, _DRIFT)
"""Columns that a table does without where it is too wide even so: the JSON report has them."""


def table(windows: Sequence[WindowReport], paint: Paint, width: int, *, without: Collection[str] = ()) -> list[str]:
    """The windows, in lines of no more than ``width`` columns, and without the columns of these names."""
    shown, hidden = grouped(windows)
    columns, gap, same = _fitting([c for c in _columns(windows) if c.name not in without], shown, width)
    widths = _widths(columns, shown)
    lines = labelled("same in all windows:", ", ".join(same), width, PLAIN) if same else []
    lines += [paint("dim", _row(columns, widths, [c.heading[row] for c in columns], gap)) for row in (0, 1)]
    for window in shown:
        cells = [column.cell(window) for column in columns]
        text = _row(columns, widths, cells, gap)
        style = "yellow" if window.accepted else STYLES.get(window.verdict, "yellow")
        lines.append(text[: len(text) - len(cells[-1])] + paint(style, cells[-1]))
    return [*lines, *(paint("dim", _alike(first, alike)) for first, alike in hidden)]


def windows_text(indices: Sequence[int]) -> str:
    """Window numbers with runs folded: "windows 0-3, 7"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(texts) > 4:
        texts = [*texts[:3], f"… {plural(len(indices), 'window')} in all"]
    return f"window{'s' if len(indices) > 1 else ''} {', '.join(texts)}"


def _verdict(window: WindowReport) -> str:
    return _SHORT.get(window.verdict, window.verdict.value) + (" (accepted)" if window.accepted else "")


def _columns(windows: Sequence[WindowReport]) -> list[_Column]:
    several = len({window.optimizer for window in windows}) > 1
    drifts = any(window.drift is not None for window in windows)
    first = [_WINDOW, *([_OPTIMIZER] if several else []), _LINE, _MICRO_BATCHES, _UNITS, _WEIGHTS]
    return [*first, _ERROR, _ALLOWED, _RATIO, _UPDATE, *([_DRIFT] if drifts else []), _VERDICT]


def _fitting(
    columns: list[_Column], windows: Sequence[WindowReport], width: int
) -> tuple[list[_Column], int, list[str]]:
    """The columns that fit, the spaces between them, and in words what all windows have in common."""
    same: list[str] = []

    def fits(gap: int) -> bool:
        return sum(_widths(columns, windows)) + gap * (len(columns) - 1) <= width

    for column in _SAID_ONCE:
        cells = {column.cell(window) for window in windows}
        if not fits(2) and len(cells) == 1 and len(windows) > 1:
            columns = [other for other in columns if other is not column]
            same.append(f"{column.name} {cells.pop()}")
    for column in _LEFT_OUT:
        if not fits(1):
            columns = [other for other in columns if other is not column]
    return columns, 2 if fits(2) else 1, same


def _widths(columns: Sequence[_Column], windows: Sequence[WindowReport]) -> list[int]:
    return [max(map(len, (*column.heading, *(column.cell(window) for window in windows)))) for column in columns]


def _row(columns: Iterable[_Column], widths: Iterable[int], cells: Iterable[str], gap: int) -> str:
    padded = [
        cell.ljust(width) if column.to_the_left else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    return (" " * gap).join(padded).rstrip()


def grouped(
    windows: Sequence[WindowReport],
) -> tuple[list[WindowReport], list[tuple[WindowReport, list[WindowReport]]]]:
    """The windows to show, and those that are hidden, each group with the first window like them."""
    if len(windows) <= _ALWAYS_SHOWN:
        return list(windows), []
    # Hiding one window behind a line that says so saves nothing.
    hidden = [(group[0], group[_ALIKE_SHOWN:]) for group in kinds(windows, _KINDS) if len(group) > _ALIKE_SHOWN + 1]
    gone = {id(window) for _, rest in hidden for window in rest}
    return [window for window in windows if id(window) not in gone], hidden


def _alike(first: WindowReport, alike: Sequence[WindowReport]) -> str:
    errors = [w.grad_rel_error for w in alike if w.grad_rel_error is not None]
    worst = f" (gradient error up to {error(max(errors))})" if errors else ""
    return f"… {plural(len(alike), 'more window')} like {first.index}{worst}"

"""What ``verify`` measured, for people: what was compared with what, every window, the causes, the verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.words import count, error, number, plural, shown_path, weights
from gradcheck_accum.verdict import Accepted, Verdict, VerifyResult, WindowReport

_ALWAYS_SHOWN = 8
"""Up to this many windows are all shown; of more, those that say the same are shown only a few times."""

_ALIKE_SHOWN = 2
_WIDTH = 100

_SHORT = {Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION: "by construction"}
_STYLES = {Verdict.EQUIVALENT: "green", Verdict.DEVIATES: "red"}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the table: a heading of two lines, and what a window shows there."""

    heading: tuple[str, str]
    cell: Callable[[WindowReport], str]
    to_the_left: bool = False


_COLUMNS = (
    _Column(("", "window"), lambda w: str(w.index)),
    _Column(("step", "line"), lambda w: str(w.line or "-")),
    _Column(("micro-", "batches"), lambda w: str(w.micro_batches)),
    _Column(("", "units"), lambda w: count(w.units)),
    _Column(("relative", "weights"), lambda w: weights(w.weights), to_the_left=True),
    _Column(("gradient", "error"), lambda w: error(w.grad_rel_error)),
    _Column(("", "allowed"), lambda w: error(w.tolerance)),
    _Column(("norm", "ratio"), lambda w: number(w.grad_norm_ratio)),
    _Column(("update", "error"), lambda w: error(w.param_rel_error)),
    _Column(("", "verdict"), lambda w: _verdict(w), to_the_left=True),
)


def _verdict(window: WindowReport) -> str:
    return _SHORT.get(window.verdict, window.verdict.value) + (" (accepted)" if window.accepted else "")


def verify_text(result: VerifyResult, sources: Sources | None = None, paint: Paint = PLAIN) -> str:
    """The whole report."""
    sources = sources or Sources()
    blocks = ["\n".join(_header(result, paint))]
    if result.windows:
        blocks.append("\n".join(_table(result.windows, paint)))
    blocks += [_diagnosis(diagnosis, sources, paint) for diagnosis in result.diagnosis]
    if result.accepted:
        blocks.append("\n".join(_accepted(one, paint) for one in result.accepted))
    blocks.append("\n".join(_conclusion(result, paint)))
    return "\n\n".join(blocks)


def _header(result: VerifyResult, paint: Paint) -> list[str]:
    reference = result.reference
    settings = f" ({reference.settings})" if reference.settings else ""
    lines = [
        f"{paint('bold', shown_path(result.script))} on {result.device or 'an unknown device'}: "
        f"{plural(len(result.windows), 'window')} watched{f' on {result.ranks} ranks' if result.ranks > 1 else ''}"
    ]
    if reference.dtype:
        text = f"reference: {reference.kind}, in {reference.dtype} on {reference.device}{settings}"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False)
    return lines


def _table(windows: Sequence[WindowReport], paint: Paint) -> list[str]:
    columns = list(_COLUMNS)
    if len({window.optimizer for window in windows}) > 1:
        columns.insert(1, _Column(("", "optimizer"), lambda w: w.optimizer, to_the_left=True))
    if any(window.drift is not None for window in windows):
        columns.insert(-1, _Column(("weight", "drift"), lambda w: error(w.drift)))
    shown, hidden = _shown(windows)
    cells = [[column.cell(window) for column in columns] for window in shown]
    heading = [[column.heading[row] for column in columns] for row in (0, 1)]
    widths = [max(len(row[i]) for row in (*heading, *cells)) for i in range(len(columns))]
    lines = [paint("dim", _row(columns, widths, row)) for row in heading]
    for window, row in zip(shown, cells, strict=True):
        text = _row(columns, widths, row)
        verdict = row[-1]
        style = "yellow" if window.accepted else _STYLES.get(window.verdict, "yellow")
        lines.append(text[: len(text) - len(verdict)] + paint(style, verdict))
        if reason := _reason(window):
            lines.append(f"{'':>{widths[0]}}  {paint('dim', reason)}")
    for first, alike in hidden:
        lines.append(paint("dim", _alike(first, alike)))
    return lines


def _row(columns: Iterable[_Column], widths: Iterable[int], cells: Iterable[str]) -> str:
    padded = [
        cell.ljust(width) if column.to_the_left else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _shown(windows: Sequence[WindowReport]) -> tuple[list[WindowReport], list[tuple[WindowReport, list[WindowReport]]]]:
    """The windows to show, and for each one that stands for others those that it stands for."""
    if len(windows) <= _ALWAYS_SHOWN:
        return list(windows), []
    alike: dict[tuple[object, ...], list[WindowReport]] = {}
    for window in windows:
        alike.setdefault(_key(window), []).append(window)
    # Hiding one window behind a line that says so saves nothing.
    hidden = [(group[0], group[_ALIKE_SHOWN:]) for group in alike.values() if len(group) > _ALIKE_SHOWN + 1]
    gone = {id(window) for _, rest in hidden for window in rest}
    return [window for window in windows if id(window) not in gone], hidden


def _key(window: WindowReport) -> tuple[object, ...]:
    """What two windows must share to be shown as one: all that a reader would act on."""
    return (
        window.optimizer,
        window.path,
        window.line,
        window.micro_batches,
        weights(window.weights),
        number(window.grad_norm_ratio),
        window.verdict,
        window.accepted,
        _reason(window),
    )


def _reason(window: WindowReport) -> str:
    """Why a window was judged so, unless its row says it already: an error above what is allowed."""
    measured, allowed = window.grad_rel_error, window.tolerance
    if window.verdict is Verdict.DEVIATES and measured is not None and allowed is not None and measured > allowed:
        return ""
    return window.reason


def _alike(first: WindowReport, alike: Sequence[WindowReport]) -> str:
    errors = [w.grad_rel_error for w in alike if w.grad_rel_error is not None]
    worst = f" (gradient error up to {error(max(errors))})" if errors else ""
    return f"… {plural(len(alike), 'more window')} like {first.index}{worst}"


def _diagnosis(diagnosis: Diagnosis, sources: Sources, paint: Paint) -> str:
    where, mistake = diagnosis.where, diagnosis.mistake
    place = f"{paint('bold', shown_path(where.path))}:{where.line}:"
    seen = f" ({_windows(diagnosis.windows)})" if diagnosis.windows else ""
    through = f"through {diagnosis.framework}: " if diagnosis.framework else ""
    lines = [f"{place} {paint('red', mistake.code)} [{mistake.name}] {through}{diagnosis.message}{paint('dim', seen)}"]
    lines += code_frame(sources, where, paint)
    if diagnosis.help:
        lines.append(f"{paint('cyan', 'help:')} {diagnosis.help}")
    return "\n".join(lines)


def _accepted(one: Accepted, paint: Paint) -> str:
    """One line: it is known, and there is nothing to do about it."""
    diagnosis, mistake = one.diagnosis, one.diagnosis.mistake
    seen = f"{_windows(diagnosis.windows)}, " if diagnosis.windows else ""
    place = f"{shown_path(diagnosis.where.path)}:{diagnosis.where.line}"
    by = "by a comment there" if one.by == "comment" else "by the settings"
    text = f"{mistake.code} [{mistake.name}] at {place} {paint('dim', f'({seen}{by})')}: {diagnosis.message}"
    return f"{paint('yellow', 'accepted:')} {text}"


def _windows(indices: Sequence[int]) -> str:
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


def _conclusion(result: VerifyResult, paint: Paint) -> list[str]:
    if result.error:
        return [f"{paint('red', 'error:')} {result.error}", *_notes(result, paint)]
    verdict = paint(_STYLES.get(result.verdict, "yellow"), f"{result.verdict.value}:")
    return [f"{verdict} {result.reason or _tally(result)}", *_notes(result, paint)]


def _tally(result: VerifyResult) -> str:
    """The windows by verdict, where nothing better is said."""
    tally = Counter(window.verdict.value for window in result.windows)
    if not tally:
        return "no window was seen"
    return "windows: " + ", ".join(f"{many} {verdict}" for verdict, many in tally.items())


def _notes(result: VerifyResult, paint: Paint) -> list[str]:
    return [f"{paint('cyan', 'note:')} {note}" for note in result.notes]

"""What ``verify`` measured, for people: the verdict, what to do, every window, the causes, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradcheck_accum.control_characters import visible
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.verify_table import STYLES, table, windows_text
from gradcheck_accum.report.words import plural, shown_path
from gradcheck_accum.report.wrap import WIDTH, labelled
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult, WindowReport

_REASONS = 20
"""Reasons that are shown: each may contain numbers of its own window."""


def verify_text(
    result: VerifyResult,
    sources: Sources | None = None,
    paint: Paint = PLAIN,
    *,
    verbose: bool = False,
    quiet: bool = False,
    width: int = WIDTH,
) -> str:
    """The whole report; ``verbose`` adds what was compared with what, and what it costs.

    ``quiet`` leaves the verdict, what to do and the causes, and of a run with nothing to complain of nothing.

    Sentences are broken at ``width``, but never the first line, nor those that name a place: programs look for them.
    """
    first = chosen(result)
    sources = sources or Sources()
    verdict = [verdict_line(result, reason_in_short(result), paint), *action(result, first, paint, width)]
    causes = [diagnosis_lines(one, sources, paint, width, helped=one is first) for one in result.diagnosis]
    if quiet:
        blocks = [verdict, *causes] if result.exit_status else []
    else:
        windows = [_counted(result), *table(result.windows, paint, width)] if result.windows else []
        accepted = [accepted_line(one, paint) for one in result.accepted]
        notes = _notes(result, paint, width, verbose)
        blocks = [verdict, windows, _reasons(result, paint, width), *causes, accepted, notes]
        if result.settled_by:
            blocks.append([f"{paint('cyan', 'to decide it:')} {result.settled_by}"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def verdict_line(result: VerifyResult | CompareResult, reason: str, paint: Paint) -> str:
    """The script and its verdict with this reason, or the error that left none."""
    script = paint("bold", shown_path(result.script))
    if result.error:
        return f"{script}: {paint('red', 'error:')} {result.error}"
    verdict = paint(STYLES.get(result.verdict, "yellow"), f"{result.verdict.value}:")
    return f"{script}: {verdict} {reason}"


def reason_in_short(result: VerifyResult) -> str:
    """Why a result is what it is, in one line: what a diagnosis says in full is named by its code."""
    said = next((d for d in result.diagnosis if d.message == result.reason), None)
    if said is not None:
        many = f"{len(said.windows)} of {plural(len(result.windows), 'window')}"
        return f"{many}: {said.mistake.code} [{said.mistake.name}]"
    return result.reason or _tally(result)


def _tally(result: VerifyResult) -> str:
    """The number of windows by verdict, where there is no reason to show."""
    tally = Counter(window.verdict.value for window in result.windows)
    if not tally:
        return "no window was observed"
    return "windows: " + ", ".join(f"{many} {verdict}" for verdict, many in tally.items())


def chosen(result: VerifyResult) -> Diagnosis | None:
    """The diagnosis to act on first: of those that change a gradient, the one that explains most windows."""
    told = [d for d in result.diagnosis if d.help]
    return max(told, key=lambda d: (d.mistake.moves_gradient, len(d.windows)), default=None)


def action(result: VerifyResult, first: Diagnosis | None, paint: Paint, width: int) -> list[str]:
    if first is not None:
        where = f"{shown_path(first.where.path)}:{first.where.line}, {first.mistake.code}"
        return labelled("help:", f"{first.help} ({where})", width, paint)
    return labelled("help:", result.help, width, paint) if result.help else []


def _counted(result: VerifyResult) -> str:
    ranks = f" on {result.ranks} ranks" if result.ranks > 1 else ""
    return f"{plural(len(result.windows), 'window')} watched{ranks}, on {result.device or 'an unknown device'}:"


def reasons(result: VerifyResult) -> dict[str, list[int]]:
    """The reasons for the verdicts on windows, each once, without those in a row, a diagnosis or the first line."""
    told = (*result.diagnosis, *(one.diagnosis for one in result.accepted))
    alike: dict[str, list[int]] = {}
    for window in result.windows:
        if window.reason and not _is_in_its_row(window) and not _is_coupled_as_told(window, told):
            alike.setdefault(window.reason, []).append(window.index)
    if len(alike) == 1 and result.reason.endswith(next(iter(alike))):
        return {}
    known = {diagnosis.message for diagnosis in told}
    return {reason: windows for reason, windows in alike.items() if reason not in known}


def _reasons(result: VerifyResult, paint: Paint, width: int) -> list[str]:
    lines: list[str] = []
    told_here = list(reasons(result).items())
    for reason, windows in told_here[:_REASONS]:
        lines += labelled(f"{windows_text(windows)}:", reason, width, paint, "dim")
    more = sum(len(windows) for _, windows in told_here[_REASONS:])
    if more:
        lines.append(paint("dim", f"… the reasons for {plural(more, 'more window')} are in the JSON report"))
    return lines


def _is_in_its_row(window: WindowReport) -> bool:
    """Whether the row says it: an error above what is allowed."""
    measured, allowed = window.grad_rel_error, window.tolerance
    deviates = window.verdict is Verdict.DEVIATES
    return deviates and measured is not None and allowed is not None and measured > allowed


def _is_coupled_as_told(window: WindowReport, told: Iterable[Diagnosis]) -> bool:
    """Whether a diagnosis says it: each window's coupling has a number of its own, and the cause is one."""
    by_construction = window.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    return by_construction and any(d.mistake.by_construction and window.index in d.windows for d in told)


def diagnosis_lines(diagnosis: Diagnosis, sources: Sources, paint: Paint, width: int, *, helped: bool) -> list[str]:
    """One mistake, with its help unless the reader has had it (``helped``)."""
    where, mistake = diagnosis.where, diagnosis.mistake
    place = f"{paint('bold', shown_path(where.path))}:{where.line}:"
    seen = f" ({windows_text(diagnosis.windows)})" if diagnosis.windows else ""
    lines = [f"{place} {paint('red', mistake.code)} [{mistake.name}] {visible(diagnosis.in_words)}{paint('dim', seen)}"]
    lines += code_frame(sources, where, paint)
    if diagnosis.help and not helped:
        lines += labelled("help:", visible(diagnosis.help), width, paint)
    return lines


def accepted_line(one: Accepted, paint: Paint) -> str:
    """One line: it is known, and there is nothing to do about it."""
    diagnosis, mistake = one.diagnosis, one.diagnosis.mistake
    seen = f"{windows_text(diagnosis.windows)}, " if diagnosis.windows else ""
    place = f"{shown_path(diagnosis.where.path)}:{diagnosis.where.line}"
    by = "by a comment there" if one.by == "comment" else "by the settings"
    text = f"{mistake.code} [{mistake.name}] at {place} {paint('dim', f'({seen}{by})')}: {diagnosis.message}"
    return f"{paint('yellow', 'accepted:')} {text}"


def _notes(result: VerifyResult, paint: Paint, width: int, verbose: bool) -> list[str]:
    notes = [note for note in dict.fromkeys(result.notes) if verbose or note not in result.details]
    lines = [line for note in notes for line in labelled("note:", note, width, paint)]
    reference = result.reference
    if verbose and reference.dtype:
        settings = f" ({reference.settings})" if reference.settings else ""
        why = f"; {reference.why}" if reference.why else ""
        text = f"{reference.kind}, in {reference.dtype} on {reference.device}{settings}{why}"
        lines += labelled("reference:", text, width, paint)
    return lines

"""What ``lint`` found, for people: one block for each finding, and one line that sums up."""

from __future__ import annotations

from collections import Counter

from gradcheck_accum.findings import Finding, LintResult, UnusedSuppression
from gradcheck_accum.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.words import fixable, no_mistakes, plural, shown_path


def finding_text(finding: Finding, sources: Sources, paint: Paint = PLAIN) -> str:
    """One finding: where and what, the code, and what to do about it."""
    where, mistake = finding.where, finding.mistake
    lines = [f"{_place(where, paint)} {paint('red', mistake.code)} [{mistake.name}] {finding.message}"]
    lines += code_frame(sources, where, paint)
    if finding.help:
        lines.append(f"{paint('cyan', 'help:')} {finding.help}")
    if finding.fix:
        lines.append(f"{paint('cyan', 'fix:')} {finding.fix.message}{'' if finding.fix.safe else ' (unsafe)'}")
    return "\n".join(lines)


def lint_text(result: LintResult, sources: Sources | None = None, paint: Paint = PLAIN) -> str:
    """The findings in order, then the summary. Paths that could not be read are not here: see `unreadable_text`."""
    sources = sources or Sources()
    blocks = [finding_text(finding, sources, paint) for finding in result.findings]
    blocks += [_unused_text(unused, sources, paint) for unused in result.unused or ()]
    return "\n\n".join([*blocks, _summary(result)])


def statistics_text(result: LintResult) -> str:
    """How many findings there are of each mistake, the most frequent first, then the summary."""
    counts = Counter(finding.mistake.code for finding in result.findings)
    width = len(str(max(counts.values(), default=0)))
    rows = [
        f"{count:>{width}}  {code}  {CATALOGUE[code].name}"
        for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join([*rows, _summary(result)])


def unreadable_text(result: LintResult) -> list[str]:
    """One line for each path that could not be analysed."""
    return [f"{shown_path(item.path)}: {item.reason}" for item in result.unreadable]


def _place(where: Location, paint: Paint) -> str:
    cell = f"cell {where.cell}:" if where.cell else ""
    return f"{paint('bold', shown_path(where.path))}:{cell}{where.line}:{where.column}:"


def _unused_text(unused: UnusedSuppression, sources: Sources, paint: Paint) -> str:
    first = f"{_place(unused.where, paint)} {paint('yellow', 'unused suppression:')} {unused.message}"
    return "\n".join([first, *code_frame(sources, unused.where, paint)])


def _summary(result: LintResult) -> str:
    if result.findings:
        files = len({finding.where.path for finding in result.findings})
        text = f"Found {plural(len(result.findings), 'mistake')} in {plural(files, 'file')}"
    else:
        text = no_mistakes(result.files).removesuffix(".")
    extra = []
    if result.suppressed:
        extra.append(f"{result.suppressed} suppressed")
    if result.in_baseline:
        extra.append(f"{result.in_baseline} in the baseline")
    if result.unused:
        extra.append(plural(len(result.unused), "unused suppression"))
    if result.not_followed:
        extra.append(f"{plural(result.not_followed, 'loop')} too long to be followed")
    if result.unreadable:
        extra.append(f"{plural(len(result.unreadable), 'path')} could not be analysed")
    lines = [f"{text} ({', '.join(extra)})." if extra else f"{text}."]
    if result.fixed:
        files = len({finding.where.path for finding in result.fixed})
        lines.insert(0, f"Fixed {plural(len(result.fixed), 'mistake')} in {plural(files, 'file')}.")
    safe, unsafe = fixable(result)
    if safe:
        lines.append(f"{safe} fixable with --fix{f', {unsafe} more with --unsafe-fixes' if unsafe else ''}.")
    elif unsafe:
        lines.append(f"{unsafe} fixable with --fix --unsafe-fixes.")
    left_out = sum(finding.fix_left_out for finding in result.findings)
    if left_out:
        again = "; run again after --fix" if safe else ""
        lines.append(f"No fix was looked for in {plural(left_out, 'case')}: the file has too many loops{again}.")
    return "\n".join(lines)

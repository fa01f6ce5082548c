"""What ``lint`` found, for people: one block for each finding, and one line that sums up."""

from __future__ import annotations

from gradcheck_accum.findings import Finding, LintResult
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.words import fixable, plural, shown_path


def finding_text(finding: Finding, sources: Sources, paint: Paint = PLAIN) -> str:
    """One finding: where and what, the code, and what to do about it."""
    where, mistake = finding.where, finding.mistake
    place = f"{paint('bold', shown_path(where.path))}:{where.line}:{where.column}:"
    lines = [f"{place} {paint('red', mistake.code)} [{mistake.name}] {finding.message}"]
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
    return "\n\n".join([*blocks, _summary(result)])


def unreadable_text(result: LintResult) -> list[str]:
    """One line for each path that could not be analysed."""
    return [f"{shown_path(item.path)}: {item.reason}" for item in result.unreadable]


def _summary(result: LintResult) -> str:
    if result.findings:
        files = len({finding.where.path for finding in result.findings})
        text = f"Found {plural(len(result.findings), 'mistake')} in {plural(files, 'file')}"
    else:
        text = f"No mistakes found in {plural(result.files, 'file')}"
    extra = []
    if result.suppressed:
        extra.append(f"{result.suppressed} suppressed")
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
    return "\n".join(lines)

"""What ``lint`` found, for people: one block for each finding, and one line that sums up."""

from __future__ import annotations

from collections import Counter

from gradcheck_accum.control_characters import visible
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.words import fixable, no_mistakes, plural, shown_path
from gradcheck_accum.report.wrap import labelled
from gradcheck_accum.results.findings import Finding, LintResult, UnusedSuppression


def finding_text(finding: Finding, sources: Sources, paint: Paint = PLAIN, width: int | None = None) -> str:
    """One finding: where and what, the code, and what to do about it."""
    lines = [_headline(finding, paint), *code_frame(sources, finding.where, paint)]
    if finding.help:
        lines += labelled("help:", visible(finding.help), width, paint)
    if finding.fix:
        lines += labelled(
            "fix:", f"{visible(finding.fix.message)}{'' if finding.fix.safe else ' (unsafe)'}", width, paint
        )
    return "\n".join(lines)


def lint_text(
    result: LintResult,
    sources: Sources | None = None,
    paint: Paint = PLAIN,
    *,
    quiet: bool = False,
    width: int | None = None,
) -> str:
    """The findings in order, then the summary. Paths that could not be read are not here: see `unreadable_text`.

    ``quiet`` leaves out the summary. What to do about a finding is broken at ``width``; the lines that name places are
    not, for programs look for them.
    """
    sources = sources or Sources()
    blocks = [finding_text(finding, sources, paint, width) for finding in result.findings]
    blocks += [_unused_text(unused, sources, paint) for unused in result.unused or ()]
    return "\n\n".join(blocks if quiet else [*blocks, summary(result)])


def concise_text(result: LintResult, paint: Paint = PLAIN, *, quiet: bool = False) -> str:
    """A line for each finding, then the summary unless ``quiet``."""
    lines = [_headline(finding, paint) for finding in result.findings]
    lines += [_unused_headline(unused, paint) for unused in result.unused or ()]
    return "\n".join(lines if quiet else [*lines, summary(result)])


def statistics_text(result: LintResult, *, quiet: bool = False) -> str:
    """How many findings there are of each mistake, the most frequent first, then the summary unless ``quiet``."""
    counts = Counter(finding.mistake.code for finding in result.findings)
    width = len(str(max(counts.values(), default=0)))
    rows = [
        f"{count:>{width}}  {code}  {CATALOGUE[code].name}"
        for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join(rows if quiet else [*rows, summary(result)])


def unreadable_text(result: LintResult) -> list[str]:
    """One line for each path that could not be analyzed."""
    return [f"{shown_path(item.path)}: {item.reason}" for item in result.unreadable]


def _headline(finding: Finding, paint: Paint) -> str:
    mistake = finding.mistake
    return f"{_place(finding.where, paint)} {paint('red', mistake.code)} [{mistake.name}] {visible(finding.message)}"


def _unused_headline(unused: UnusedSuppression, paint: Paint) -> str:
    return f"{_place(unused.where, paint)} {paint('yellow', 'unused suppression:')} {visible(unused.message)}"


def _place(where: Location, paint: Paint) -> str:
    cell = f"cell {where.cell}:" if where.cell else ""
    return f"{paint('bold', shown_path(where.path))}:{cell}{where.line}:{where.column}:"


def _unused_text(unused: UnusedSuppression, sources: Sources, paint: Paint) -> str:
    return "\n".join([_unused_headline(unused, paint), *code_frame(sources, unused.where, paint)])


def summary(result: LintResult) -> str:
    """What was found, in how many files, what was left out, and what can be fixed."""
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
        extra.append(f"{plural(result.not_followed, 'loop')} too long to be analyzed")
    if result.unread:
        extra.append(f"{plural(len(result.unread), 'imported module')} not read (too large or too many)")
    if result.unreadable:
        extra.append(f"{plural(len(result.unreadable), 'path')} could not be analyzed")
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
        lines.append(f"No fix was tried for {plural(left_out, 'finding')}: the file has too many loops{again}.")
    return "\n".join(lines)

"""The results as annotations of a pull request: lines that GitHub's runners interpret as commands.

A runner shows at most ten errors and ten warnings of a step next to the source; all of them are in its log.
"""

from __future__ import annotations

from gradcheck_accum.control_characters import visible
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import Mistake, Severity
from gradcheck_accum.report.lint_text import summary
from gradcheck_accum.report.repository import repository_path
from gradcheck_accum.report.words import shown_path
from gradcheck_accum.results.findings import Finding, LintResult, UnusedSuppression
from gradcheck_accum.results.verdict import VerifyResult

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning"}

_VERDICT_COMMANDS = {0: "notice", 3: "warning"}
"""By exit status: what is wrong is an error."""


def lint_github(result: LintResult, *, quiet: bool = False) -> str:
    """What ``lint`` found, and unless ``quiet`` the summary for the log."""
    lines = [_finding(finding) for finding in result.findings]
    lines += [_unused(unused) for unused in result.unused or ()]
    for item in result.unreadable:
        lines.append(_command("error", "could not be analyzed", item.reason, file=repository_path(item.path)))
    return "\n".join(lines if quiet else [*lines, summary(result)])


def verify_github(result: VerifyResult) -> str:
    """The causes at their places, and the verdict."""
    said = f"error: {result.error}" if result.error else f"{result.verdict.value}: {result.reason}"
    verdict = _VERDICT_COMMANDS.get(result.exit_status, "error")
    lines = [_command(verdict, "verify", f"{shown_path(result.script)}: {said}{_helped(result.help)}")]
    return "\n".join([*map(_diagnosis, result.diagnosis), *lines])


def _finding(finding: Finding) -> str:
    text = f"{_in_cell(finding.where)}{finding.message}{_helped(finding.help)}"
    return _at(_COMMANDS[finding.severity], _title(finding.mistake), text, finding.where)


def _unused(unused: UnusedSuppression) -> str:
    return _at("warning", "unused suppression", f"{_in_cell(unused.where)}{unused.message}", unused.where)


def _diagnosis(diagnosis: Diagnosis) -> str:
    command = _COMMANDS[diagnosis.mistake.severity]
    return _at(command, _title(diagnosis.mistake), f"{diagnosis.message}{_helped(diagnosis.help)}", diagnosis.where)


def _title(mistake: Mistake) -> str:
    return f"{mistake.code} [{mistake.name}]"


def _helped(help: str) -> str:
    return f"\nhelp: {help}" if help else ""


def _in_cell(where: Location) -> str:
    return f"cell {where.cell}, line {where.line}: " if where.cell else ""


def _at(command: str, title: str, message: str, where: Location) -> str:
    """A command that points to a place: the lines of a notebook's cell are not those of its file."""
    properties: dict[str, int] = {}
    if not where.cell:
        properties["line"] = where.line
        if where.end_line:
            properties["endLine"] = where.end_line
        if where.end_line == where.line and where.end_column:  # columns mean nothing across lines
            properties |= {"col": where.column, "endColumn": where.end_column}
    return _command(command, title, message, file=repository_path(where.path), **properties)


def _command(command: str, title: str, message: str, **properties: str | int) -> str:
    """One line: what would end it, or part its properties, is escaped as the runner's own toolkit does it."""
    given = {**properties, "title": f"gradcheck-accum: {title}"}
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in given.items())
    return f"::{command} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return visible(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""The static engine: reads a training script, never runs it, and says what its gradient ledger would show.

The loop's skeleton is interpreted (`gradcheck_accum.lint.interpreter`) over the standard library's syntax tree, whose
positions come with the parse at a tenth of what a concrete tree costs.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.findings import Finding, LintResult, Unreadable
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.lint.discovery import python_files
from gradcheck_accum.lint.scenarios import agreed, explore
from gradcheck_accum.lint.suppressions import is_suppressed, suppressions

__all__ = ["Examination", "LintError", "decode", "examine", "ledgers_of", "lint_paths", "lint_source"]

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes above which a file is not analysed: no person wrote it."""


class LintError(Exception):
    """A file that could not be analysed; the message is one line that says why."""


def lint_source(source: str | bytes, path: str) -> list[Finding]:
    """The findings in ``source``, in order of line; ``path`` is only what they are reported under.

    Raises LintError where the source is too large, not UTF-8 or not Python.
    """
    return _lint(source, path)[0]


def _lint(source: str | bytes, path: str) -> tuple[list[Finding], int]:
    """The findings and the number of those that comments suppressed."""
    examination = examine(decode(source), path)
    return [finding for finding, _ in examination.evidence], examination.suppressed


@dataclass(frozen=True, slots=True)
class Examination:
    """All that reading one file shows: every finding with a ledger that shows it, and the ledgers of all scenarios."""

    evidence: tuple[tuple[Finding, Ledger], ...] = ()
    suppressed: int = 0
    ledgers: tuple[Ledger, ...] = ()


def examine(text: str, path: str) -> Examination:
    """Read one file; raises LintError as `lint_source` does."""
    module = _parse(text)
    if "backward" not in text:
        return Examination()
    statements = _statement_lines(module)
    comments = suppressions(text)
    found: dict[tuple[str, int], tuple[Diagnosis, Ledger]] = {}
    ledgers: list[Ledger] = []
    for _, scenarios in explore(module, path):
        ledgers += [scenario.ledger for scenario in scenarios]
        for diagnosis, ledger in agreed(scenarios):
            found.setdefault((diagnosis.mistake.code, diagnosis.where.line), (diagnosis, ledger))
    kept: list[tuple[Finding, Ledger]] = []
    for diagnosis, ledger in sorted(found.values(), key=lambda item: (item[0].where, item[0].mistake.code)):
        mistake, where = diagnosis.mistake, diagnosis.where
        first, last = statements.get(where.line, (where.line, where.end_line))
        if not is_suppressed(mistake.code, mistake.name, first, last, comments):
            kept.append((Finding(mistake, where, diagnosis.message, diagnosis.help), ledger))
    return Examination(tuple(kept), len(found) - len(kept), tuple(ledgers))


def ledgers_of(source: str | bytes, path: str) -> list[Ledger]:
    """The ledger of every scenario of every loop in ``source``; raises LintError as `lint_source` does."""
    module = _parse(decode(source))
    return [scenario.ledger for _, scenarios in explore(module, path) for scenario in scenarios]


def lint_paths(
    paths: Iterable[str], *, select: Collection[str] | None = None, ignore: Collection[str] | None = None
) -> LintResult:
    """Lint files, and every Python file below directories.

    ``select`` and ``ignore`` are codes; a path that cannot be analysed is reported, not raised.
    """
    findings: list[Finding] = []
    unreadable: list[Unreadable] = []
    files = suppressed = 0
    for path, problem in _files(paths):
        if problem:
            unreadable.append(Unreadable(path, problem))
            continue
        files += 1
        try:
            found, hidden = _lint(Path(path).read_bytes(), path)
        except LintError as error:
            unreadable.append(Unreadable(path, str(error)))
            continue
        except OSError as error:
            unreadable.append(Unreadable(path, error.strerror or "cannot be read"))
            continue
        suppressed += hidden
        for finding in found:
            code = finding.mistake.code
            if (not select or code in select) and code not in (ignore or ()):
                findings.append(replace(finding))
    return LintResult(tuple(findings), tuple(unreadable), files, suppressed)


def _files(paths: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Each file to read with an empty string, and each path that cannot be with the reason."""
    seen: set[Path] = set()
    for name in paths:
        path = Path(name)
        try:
            if path.is_dir():
                below = list(python_files(path))
                if not below:
                    yield name, "no Python files in this directory"
                for file in below:
                    if file.resolve() not in seen:
                        seen.add(file.resolve())
                        yield str(file), ""
            elif path.exists():
                if path.resolve() not in seen:
                    seen.add(path.resolve())
                    yield name, ""
            else:
                yield name, "no such file or directory"
        except (OSError, ValueError) as error:
            yield name, getattr(error, "strerror", None) or str(error)


def decode(source: str | bytes) -> str:
    """The text of a file, without a byte order mark; raises LintError where it is too large or not UTF-8."""
    if len(source) > LARGEST_FILE:
        raise LintError(f"larger than {LARGEST_FILE // 1024 // 1024} MiB, not analysed")
    if isinstance(source, str):
        return source
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LintError(f"not UTF-8 (byte {error.start})") from None


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise LintError(f"not Python: {error.msg} (line {error.lineno})") from None
    except ValueError as error:
        raise LintError(f"not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise LintError("nested too deeply to be analysed") from None


def _statement_lines(module: ast.Module) -> dict[int, tuple[int, int]]:
    """For every line of a simple statement, the statement's first and last line: a comment on any of them counts."""
    lines: dict[int, tuple[int, int]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[line] = (node.lineno, node.end_lineno or node.lineno)
    return lines

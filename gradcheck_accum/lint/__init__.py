"""The static engine: reads a training script, never runs it, and says what its gradient ledger would show.

The loop's skeleton is interpreted (`gradcheck_accum.lint.interpreter`) over the standard library's syntax tree, whose
positions come with the parse at a tenth of what a concrete tree costs.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.findings import Finding, LintResult, Unreadable
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.lint.discovery import python_files
from gradcheck_accum.lint.scenarios import agreed, explore
from gradcheck_accum.lint.source import walk
from gradcheck_accum.lint.suppressions import is_suppressed, suppressions

__all__ = ["LintError", "ledgers_of", "lint_paths", "lint_source"]

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes above which a file is not analysed: no person wrote it."""

_BACKWARD_CALL = re.compile(r"backward[\s\\]*\(")
_STEP_CALL = re.compile(r"\.[\s\\]*step[\s\\]*\(")


class LintError(Exception):
    """A file that could not be analysed; the message is one line that says why."""


def lint_source(source: str | bytes, path: str) -> list[Finding]:
    """The findings in ``source``, in order of line; ``path`` is only what they are reported under.

    Raises LintError where the source is too large, not UTF-8 or not Python.
    """
    return _lint(source, path)[0]


def _lint(source: str | bytes, path: str, *, named: bool = True) -> tuple[list[Finding], int]:
    """The findings and the number of those that comments suppressed.

    A file that nobody ``named`` is only parsed where it may hold a training loop: most of a large tree does not.
    """
    text = _decode(source)
    matters = _may_train(text)
    if not named and not matters:
        return [], 0
    module = _parse(text)
    if not matters:
        return [], 0
    found: dict[tuple[str, int], Diagnosis] = {}
    try:
        for _, scenarios in explore(module, path):
            for diagnosis in agreed(scenarios):
                found.setdefault((diagnosis.mistake.code, diagnosis.where.line), diagnosis)
    except RecursionError:
        raise LintError("nested too deeply to be analysed") from None
    if not found:
        return [], 0
    statements = _statement_lines(module)
    comments = suppressions(text)
    kept: list[Finding] = []
    for diagnosis in sorted(found.values(), key=lambda d: (d.where, d.mistake.code)):
        first, last = statements.get(diagnosis.where.line, (diagnosis.where.line, diagnosis.where.end_line))
        if not is_suppressed(diagnosis.mistake.code, diagnosis.mistake.name, first, last, comments):
            kept.append(Finding(diagnosis.mistake, diagnosis.where, diagnosis.message, diagnosis.help))
    return kept, len(found) - len(kept)


def ledgers_of(source: str | bytes, path: str) -> list[Ledger]:
    """The ledger of every scenario of every loop in ``source``; raises LintError as `lint_source` does."""
    module = _parse(_decode(source))
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
    paths = list(paths)
    named = frozenset(paths)
    for path, problem in _files(paths):
        if problem:
            unreadable.append(Unreadable(path, problem))
            continue
        files += 1
        try:
            found, hidden = _lint(Path(path).read_bytes(), path, named=path in named)
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


def _decode(source: str | bytes) -> str:
    if len(source) > LARGEST_FILE:
        raise LintError(f"larger than {LARGEST_FILE // 1024 // 1024} MiB, not analysed")
    if isinstance(source, str):
        return source
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LintError(f"not UTF-8 (byte {error.start})") from None


def _may_train(text: str) -> bool:
    """Whether a file both calls ``backward`` and steps: without either there is no window to judge."""
    return "backward" in text and bool(_BACKWARD_CALL.search(text)) and bool(_STEP_CALL.search(text))


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
    for node in walk(module):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[line] = (node.lineno, node.end_lineno or node.lineno)
    return lines

"""Writes the comments that suppress findings, for a project that starts with existing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from gradcheck_accum.files import write_atomically
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.examination.document import CannotHold, Document, LintError
from gradcheck_accum.lint.syntax.commenting import rooms_of
from gradcheck_accum.results.findings import Finding, Unreadable
from gradcheck_accum.sources.decoding import MARK
from gradcheck_accum.sources.notebooks import SUFFIX, Notebook
from gradcheck_accum.sources.suppressions import Suppressions, with_comment

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def suppress(findings: Iterable[Finding]) -> tuple[list[Finding], list[Unreadable]]:
    """Put a comment at the end of the statement of every finding; the findings so hidden, and what could not be done.

    A file is written whole or not at all, and a comment is left out where it would change what the file means.
    """
    hidden: list[Finding] = []
    problems: list[Unreadable] = []
    for path, group in groupby(findings, key=lambda finding: finding.where.path):
        several = list(group)
        try:
            content, done = (_in_notebook if path.endswith(SUFFIX) else _in_script)(path, several)
            if done:
                write_atomically(Path(path), content)
        except OSError as error:
            problems.append(Unreadable(path, error.strerror or "cannot be written"))
        except (ValueError, LookupError, LintError, syntax.CannotParse, syntax.NestedTooDeeply):
            problems.append(Unreadable(path, "changed while it was read"))
        else:
            hidden += done
            left = [f"{finding.where.line} ({finding.mistake.code})" for finding in several if finding not in done]
            problems += [Unreadable(path, f"no place for a comment at line {line}") for line in left]
    return hidden, problems


def _in_script(path: str, findings: Sequence[Finding]) -> tuple[bytes, list[Finding]]:
    """A script with the comments that could be written, and their findings."""
    document = Document(Path(path).read_bytes(), path)
    draft = _Draft(document.source)
    done = [finding for finding in findings if draft.suppress(finding, finding.where.line)]
    try:
        return document.with_source(draft.text()).content(), done
    except CannotHold:
        return b"", []


def _in_notebook(path: str, findings: Sequence[Finding]) -> tuple[bytes, list[Finding]]:
    """The same for a notebook: a comment is tried on the joined source, then written to the cell."""
    text = Path(path).read_bytes().decode()
    mark = MARK if text.startswith(MARK) else ""
    notebook = Notebook(text.removeprefix(mark))
    draft = _Draft(notebook.source)
    cells: dict[int, list[str]] = {}
    done: list[Finding] = []
    for finding in findings:
        at = draft.suppress(finding, notebook.line(finding.where.cell, finding.where.line))
        if at:
            number, line = notebook.place(at)
            lines = cells.setdefault(number, _LINES.findall(notebook.cell(number)))
            lines[line - 1] = with_comment(lines[line - 1], finding.mistake.code)
            done.append(finding)
    replaced = notebook.replaced({number: "".join(lines) for number, lines in cells.items()})
    return f"{mark}{replaced}".encode(), done


class _Draft:
    """Source that gets one comment after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._statements = syntax.statement_lines(syntax.parse(text))
        self._rooms = rooms_of(text)
        self._comments: dict[int, str] = {}
        """The comments that lines have got."""

    def suppress(self, finding: Finding, line: int) -> int:
        """Write the comment for a finding at ``line``: the line that it got, or 0 where there is no place for it."""
        height = max(finding.where.end_line - finding.where.line, 0)
        first, last = self._statements.get(line, (line, line + height))
        if last not in self._rooms:
            return 0
        comment = with_comment(self._comments.get(last, self._rooms[last].comment), finding.mistake.code)
        if not Suppressions([(last, 1, comment)]).hide(finding.mistake.code, finding.mistake.name, first, last):
            return 0
        self._comments[last] = comment
        return last

    def text(self) -> str:
        """The source with its comments; nothing else of it is changed."""
        text = self._text
        for line in sorted(self._comments, reverse=True):
            room = self._rooms[line]
            text = text[: room.start] + self._comments[line] + text[room.end :]
        return text

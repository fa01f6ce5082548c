"""A file to analyze and fix: the Python source in it, and how to map that source back to the file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.examination.outcome import Outcome
from gradcheck_accum.results.findings import Edit, Finding, Piece
from gradcheck_accum.sources.decoding import MARK, NotText, encoding_of, text_of
from gradcheck_accum.sources.lines import changes
from gradcheck_accum.sources.notebooks import SUFFIX as NOTEBOOK
from gradcheck_accum.sources.notebooks import Notebook, NotebookError
from gradcheck_accum.sources.prefilter import LARGEST_FILE
from gradcheck_accum.wording import moved

LARGEST_NOTEBOOK = 256 * 1024 * 1024
"""Bytes above which a notebook is not analyzed: in addition to source, it contains images."""

_LINE_WITH_END = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


class LintError(Exception):
    """A file that could not be analyzed; the message is one line that says why."""


class CannotHold(Exception):
    """A changed source that the file cannot represent."""


class Document:
    """A script: its source is the whole file, except for a byte order mark.

    ``words`` describes a line of ``source`` in words.
    """

    words: Callable[[int], str] = "line {}".format

    def __init__(self, content: str | bytes, path: str) -> None:
        """Raises LintError if ``content`` is too large, or cannot be decoded."""
        self.path = path
        self._mark = MARK if isinstance(content, bytes) and content.startswith(codecs.BOM_UTF8) else ""
        self.source = decode(content)
        self._encoding = "utf-8" if isinstance(content, str) else encoding_of(content)
        # Some encodings have several ways to write one text: rewriting such a file would change more than intended.
        self._can_be_written = self._encoding == "utf-8" or self.content() == content

    def text(self) -> str:
        """The file as text."""
        return self._mark + self.source

    def content(self) -> bytes:
        """The file."""
        return self.text().encode(self._encoding)

    def with_source(self, source: str) -> Document:
        """The file with another source, in its own encoding. Raises CannotHold."""
        if not self._can_be_written:
            raise CannotHold(f"{self._encoding} writes the same text in several ways")
        try:
            return Document((self._mark + source).encode(self._encoding), self.path)
        except UnicodeEncodeError:
            raise CannotHold(f"{self._encoding} has no such character") from None

    def pieces(self, after: Document) -> Iterator[Piece]:
        """The differences from another version of it."""
        if self.text() != after.text():
            yield Piece(self.text(), after.text())

    def edits(self, after: Document) -> tuple[Edit, ...]:
        """The replacements that turn it into another version, in whole lines."""
        return tuple(edits_between(self.source, after.source))

    def in_document(self, finding: Finding) -> Finding:
        """A finding in the source, located in the file."""
        return finding

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome for the source, located in the file."""
        return outcome


class NotebookDocument(Document):
    """A notebook: its source is that of its cells, and places are lines of a cell."""

    def __init__(self, content: str | bytes, path: str) -> None:
        """Raises LintError if ``content`` is too large or not a notebook."""
        if len(content) > LARGEST_NOTEBOOK:
            raise LintError(f"larger than {LARGEST_NOTEBOOK // 1024 // 1024} MiB, not analyzed")
        self.path = path
        self._encoding = "utf-8"
        self._mark = MARK if isinstance(content, bytes) and content.startswith(codecs.BOM_UTF8) else ""
        try:
            self._notebook = Notebook(content)
        except NotebookError as error:
            raise LintError(str(error)) from None
        self.source = decode(self._notebook.source)
        self.words = self._notebook.words

    def text(self) -> str:
        return self._mark + self._notebook.text

    def with_source(self, source: str) -> NotebookDocument:
        try:
            text = self._notebook.replaced(self._notebook.cells_of(source))
        except NotebookError as error:
            raise CannotHold(str(error)) from None
        return NotebookDocument((self._mark + text).encode(), self.path)

    def pieces(self, after: Document) -> Iterator[Piece]:
        for cell, before, now in self._changed(after):
            yield Piece(before, now, cell)

    def edits(self, after: Document) -> tuple[Edit, ...]:
        return tuple(
            replace(edit, cell=cell)
            for cell, before, now in self._changed(after)
            for edit in edits_between(before, now)
        )

    def _changed(self, after: Document) -> Iterator[tuple[int, str, str]]:
        if isinstance(after, NotebookDocument):
            before, now = self._notebook.cells(), after._notebook.cells()
            yield from ((cell, before[cell], now[cell]) for cell in before if before[cell] != now[cell])

    def in_document(self, finding: Finding) -> Finding:
        return replace(finding, where=self._moved(finding.where), said=moved(finding.said, self._moved))

    def outcome(self, outcome: Outcome) -> Outcome:
        return replace(
            outcome,
            findings=tuple(map(self.in_document, outcome.findings)),
            unused=tuple(replace(unused, where=self._moved(unused.where)) for unused in outcome.unused),
        )

    def _moved(self, where: Location) -> Location:
        cell, line = self._notebook.place(where.line)
        end = where.end_line and where.end_line - where.line + line
        return replace(where, line=line, end_line=end, cell=cell)


def open_document(content: str | bytes, path: str) -> Document:
    """Open a file with this content; a ``path`` to an .ipynb makes it a notebook. Raises LintError."""
    return (NotebookDocument if path.endswith(NOTEBOOK) else Document)(content, path)


def read(path: str) -> bytes:
    """The content of a file, or enough of it to see that it is too large. Raises OSError."""
    with open(path, "rb") as file:
        return file.read((LARGEST_NOTEBOOK if path.endswith(NOTEBOOK) else LARGEST_FILE) + 1)


def decode(source: str | bytes) -> str:
    """The text of a file, without a byte order mark; raises LintError if it is too large or cannot be decoded."""
    if len(source) > LARGEST_FILE:
        raise LintError(f"larger than {LARGEST_FILE // 1024 // 1024} MiB, not analyzed")
    if isinstance(source, str):
        return source
    try:
        return text_of(source)
    except NotText as error:
        raise LintError(str(error)) from None


def edits_between(before: str, after: str) -> Iterator[Edit]:
    """The replacements that turn one text into another, in whole lines as Python splits them (not at form feeds)."""
    old, new = _LINE_WITH_END.findall(before), _LINE_WITH_END.findall(after)
    for kind, start, end, from_, to in changes(old, new):
        if kind != "equal":
            at_end = end == len(old) and end > 0 and not old[-1].endswith(("\n", "\r"))
            last = (end, len(old[end - 1]) + 1) if at_end and end > start else (end + 1, 1)
            yield Edit(start + 1, 1, *last, "".join(new[from_:to]))

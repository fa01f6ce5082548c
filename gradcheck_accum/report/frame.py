"""A few lines of source around a place, with the place underlined."""

from __future__ import annotations

import linecache
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from gradcheck_accum.control_characters import visible
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.sources.decoding import shown_text
from gradcheck_accum.sources.notebooks import Notebook, NotebookError

CONTEXT = 2
"""Lines shown before and after the one that is meant."""

_WIDEST = 200
_TAB = 4


_LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Sources:
    """The lines of the files that a report quotes, each read once.

    ``given`` holds texts that are on no disk (standard input); of code that was typed, Python may know the text. A file
    that cannot be read has no lines: a report without a code frame is better than none.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._texts = dict(given or {})
        self._lines: dict[tuple[str, int], list[str]] = {}

    def lines(self, path: str, cell: int = 0) -> list[str]:
        """The lines of ``path``, or of one cell of the notebook there; none if it cannot be read."""
        key = (path, cell)
        if key not in self._lines:
            text = self._text(path)
            if cell:
                try:
                    text = Notebook(text).cell(cell)
                except (NotebookError, IndexError):
                    text = ""
            self._lines[key] = _LINE_BREAK.split(text.removesuffix("\n")) if text else []
        return self._lines[key]

    def _text(self, path: str) -> str:
        if path not in self._texts:
            try:
                self._texts[path] = shown_text(Path(path).read_bytes())
            except (OSError, ValueError):
                self._texts[path] = "".join(linecache.getlines(path))
        return self._texts[path]


def code_frame(sources: Sources, where: Location, paint: Paint = PLAIN) -> list[str]:
    """The lines around ``where`` with their numbers and an underline; nothing if the source has no such line."""
    lines = sources.lines(where.path, where.cell)
    if not 1 <= where.line <= len(lines):
        return []
    first, last = max(1, where.line - CONTEXT), min(len(lines), where.line + CONTEXT)
    while first < where.line and not lines[first - 1].strip():
        first += 1
    while last > where.line and not lines[last - 1].strip():
        last -= 1
    gutter = len(str(last))
    frame = [f"{'':>{gutter}} {paint('blue', '|')}"]
    for number in range(first, last + 1):
        text = lines[number - 1]
        shown = visible(text.expandtabs(_TAB)[:_WIDEST].rstrip())
        frame.append(f"{paint('blue', f'{number:>{gutter}} |')} {shown}".rstrip())
        if number == where.line:
            start, width = _underline(text, where)
            if start < _WIDEST:
                frame.append(f"{'':>{gutter}} {paint('blue', '|')} {'':>{start}}{paint('red', '^' * width)}")
    frame.append(f"{'':>{gutter}} {paint('blue', '|')}")
    return frame


def marked(text: str, where: Location) -> tuple[int, int]:
    """From which character to which a line is meant; to the end of its code if the end is not known."""
    begin = max(where.column, 1) - 1
    if begin == 0 and not where.end_column:
        begin = len(text) - len(text.lstrip())
    end = len(text)
    if where.end_column and where.end_line in (0, where.line):
        end = min(end, where.end_column - 1)
    elif not where.end_column:
        end = len(text.split("  #", 1)[0].rstrip())
    return begin, end


def _underline(text: str, where: Location) -> tuple[int, int]:
    """Where on the screen the underline starts and how wide it is."""
    begin, end = marked(text, where)
    start = _screen_width(text[:begin])
    return start, max(1, min(_screen_width(text[:end]) - start, _WIDEST - start))


def _screen_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal, from the line's start."""
    expanded = text.expandtabs(_TAB)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in expanded)
    return len(expanded) + wide - sum(unicodedata.combining(character) > 0 for character in expanded)

"""Jupyter notebooks (nbformat 4) as one Python source, and the way back from its lines to their cells.

Read with the standard library's ``json``. Cells are counted from 1 over all of them, text cells too, as Ruff does.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcheck_accum.sources.grammar import objection
from gradcheck_accum.sources.lines import changes

SUFFIX = ".ipynb"

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_CELL_OF_PYTHON = re.compile(r"%%(?:time|timeit|capture|prun)\b")
_MAGIC = re.compile(r"(\s*)(?:[%!?]|(?:pip|conda|mamba|micromamba|uv) +\w|%{0,2}[A-Za-z_*][\w.*\[\]'\"]*\?{1,2}\s*$)")
_ASSIGNED_MAGIC = re.compile(r"(\s*[A-Za-z_][\w.,\s\[\]'\"]*=\s*)[%!]")
_TIMED = re.compile(r"(\s*)%time (?=\s*[^\s-])")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODE = json.JSONDecoder().raw_decode
_TOKEN = re.compile(r"\\.|'''|\"\"\"|['\"#()\[\]{}]")


class NotebookError(ValueError):
    """The content is not a notebook; the message is one line that says why."""


_BOUNDARY = "#\x1f"
"""The line between two cells of the joined source: a comment that does not occur in practice, so that cells can be
separated again after the source has changed."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A code cell: its ``number`` among all cells, and the line of the joined source on which it begins.

    ``text`` is the unchanged cell, and ``lines`` are its lines in the joined source.
    """

    number: int
    first: int
    text: str
    lines: tuple[str, ...]


class Notebook:
    """One notebook. ``source`` joins its Python cells, with magics and shell lines made harmless where they are.

    Lines and columns of ``source`` are those of the cells: `place` gives a line's cell and its line in there, `line`
    is the way back. `cells_of` takes a changed source apart, and `replaced` writes cells into the notebook's ``text``.
    """

    def __init__(self, content: bytes | str) -> None:
        """Raises NotebookError if ``content`` is not a notebook of format 4."""
        try:
            self.text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
            document = json.loads(self.text)
        except UnicodeDecodeError as error:
            raise NotebookError(f"not a notebook: not UTF-8 (byte {error.start})") from None
        except json.JSONDecodeError as error:
            raise NotebookError(f"not a notebook: not JSON ({error.msg}, line {error.lineno})") from None
        except ValueError as error:  # a number of more digits than Python reads
            raise NotebookError(f"not a notebook: {error}") from None
        except RecursionError:
            raise NotebookError("not a notebook: nested too deeply") from None
        self._cells: list[_Cell] = []
        lines: list[str] = []
        for number, cell in _python_cells(document):
            if lines:
                lines.append(_BOUNDARY)
            own = _harmless(cell)
            self._cells.append(_Cell(number, len(lines) + 1, cell, tuple(own)))
            lines += own
        self.source = "".join(f"{line}\n" for line in lines)

    def place(self, line: int) -> tuple[int, int]:
        """The cell that a line of ``source`` is in, and its line there; (0, ``line``) without any cell."""
        at = bisect_right(self._cells, line, key=lambda cell: cell.first) - 1
        return (self._cells[at].number, line - self._cells[at].first + 1) if at >= 0 else (0, line)

    def words(self, line: int) -> str:
        """A line of ``source`` in words: "line 2 of cell 3"."""
        cell, line = self.place(line)
        return f"line {line} of cell {cell}"

    def line(self, cell: int, line: int) -> int:
        """The line of ``source`` that holds a line of a cell."""
        first = next(each.first for each in self._cells if each.number == cell)
        return first + line - 1

    def cell(self, number: int) -> str:
        """The text of a cell as it is, magics and all."""
        return str(_text(json.loads(self.text)["cells"][number - 1]))

    def cells(self) -> dict[int, str]:
        """The text of every cell that is in ``source``."""
        return {cell.number: cell.text for cell in self._cells}

    def cells_of(self, source: str) -> dict[int, str]:
        """The texts of the cells that differ in a changed ``source``, magics and all.

        Raises NotebookError if a line was changed that is only a placeholder for a magic.
        """
        parts: list[list[str]] = [[]]
        for line in source.split("\n")[:-1]:
            if line == _BOUNDARY:
                parts.append([])
            else:
                parts[-1].append(line)
        if len(parts) != max(len(self._cells), 1):
            raise NotebookError("the boundaries of the cells were lost")
        return {
            cell.number: _restored(cell, part)
            for cell, part in zip(self._cells, parts, strict=False)
            if tuple(part) != cell.lines
        }

    def replaced(self, cells: Mapping[int, str]) -> str:
        """The notebook's text with other sources for some of its cells; nothing else of it changes."""
        text = self.text
        spans = _source_spans(text)
        for number in sorted(cells, reverse=True):
            start, end = spans[number - 1]
            text = text[:start] + _encoded(cells[number], text[start:end]) + text[end:]
        return text


def _source_spans(text: str) -> list[tuple[int, int]]:
    """The span of each cell's source in a notebook's text."""
    spans: list[tuple[int, int]] = []
    for name, cells, _ in _members(text, _skip(text, 0)):
        if name == "cells":
            spans = [
                next((start, end) for key, start, end in _members(text, cell) if key == "source")
                for cell, _ in _items(text, cells)
            ]
    return spans


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """The names of the JSON object at ``at``, each with the span of its value."""
    for start, end in _items(text, at):
        name = str(_DECODE(text, start)[0])
        value = _skip(text, _skip(text, end) + 1)  # past the colon
        yield name, value, _DECODE(text, value)[1]


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """The spans of the items of the JSON array at ``at``, or of the names of the object there."""
    is_object = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        end = _DECODE(text, at)[1]
        yield at, end
        if is_object:
            end = _DECODE(text, _skip(text, _skip(text, end) + 1))[1]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """The first place from ``at`` on that is not white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _encoded(source: str, like: str) -> str:
    """A source as JSON, written in the same way as another one: as a string or as lines, with its spaces."""
    escape = like.isascii() and "\\u" in like
    if not like.startswith("["):
        return json.dumps(source, ensure_ascii=escape)
    kept = {_DECODE(like, start)[0]: like[start:end] for start, end in _items(like, 0)}
    lines = [kept.get(line) or json.dumps(line, ensure_ascii=escape) for line in source.splitlines(keepends=True)]
    opening, closing = _SPACE.match(like, 1), re.search(r"[ \t\r\n]*\]$", like)
    first, last = opening.group() if opening else "", closing.group() if closing else "]"
    between = f",{first or ' '}"
    return f"[{first}{between.join(lines)}{last}" if lines else "[]"


def _python_cells(document: Any) -> Iterator[tuple[int, str]]:
    """The number and the text of every cell that holds Python."""
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or document.get("nbformat") != 4:
        raise NotebookError("not a notebook of format 4")
    if not _is_python(document.get("metadata")):
        return
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or not isinstance(_text(cell), str):
            raise NotebookError(f"not a notebook: cell {number} has no source")
        metadata = cell.get("metadata")
        editor = metadata.get("vscode") if isinstance(metadata, dict) else None
        other = isinstance(editor, dict) and editor.get("languageId", "python") != "python"
        if cell.get("cell_type") == "code" and not other:
            yield number, _text(cell)


def _is_python(metadata: Any) -> bool:
    """Whether a notebook's metadata name Python, or no language at all."""
    if not isinstance(metadata, dict):
        return True
    named = [
        part.get(key)
        for part, key in ((metadata.get("language_info"), "name"), (metadata.get("kernelspec"), "language"))
        if isinstance(part, dict)
    ]
    languages = [language.casefold() for language in named if isinstance(language, str)]
    return not languages or "python" in languages[0]


def _text(cell: dict[str, Any]) -> Any:
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source


def _restored(cell: _Cell, lines: Sequence[str]) -> str:
    """A cell with other lines: what was not changed is as it was, with its magics and the ends of its lines."""
    texts, ends = _LINE_BREAK.split(cell.text), _LINE_BREAK.findall(cell.text)
    usual = ends[0] if ends else "\n"
    found: list[tuple[str, str]] = []
    for kind, start, end, from_, to in changes(cell.lines, lines):
        if kind == "equal":
            found += zip(texts[start:end], [*ends, usual][start:end], strict=True)
        elif list(cell.lines[start:end]) != texts[start:end]:
            raise NotebookError("a line that only IPython understands")
        else:
            found += [(line, usual) for line in lines[from_:to]]
    return "".join(text + end for text, end in found[:-1]) + (found[-1][0] if found else "")


def _harmless(cell: str) -> list[str]:
    """The lines of a cell, as many as it has, without what only IPython understands."""
    lines = _LINE_BREAK.split(cell)
    if _parses(cell):
        return lines
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[start].startswith("%%"):
        if not _CELL_OF_PYTHON.match(lines[start]):
            return [""] * len(lines)
        lines[start] = ""
    return list(_without_magics(lines))


def _without_magics(lines: Sequence[str]) -> Iterator[str]:
    depth, quote, continued, in_magic = 0, "", False, False
    for line in lines:
        if in_magic:
            yield ""
        elif depth or quote or continued or not (_MAGIC.match(line) or _ASSIGNED_MAGIC.match(line)):
            yield line
            depth, quote, continued = _after(line, depth, quote)
            continue
        else:
            yield _replacement(line)
        in_magic = line.rstrip().endswith("\\")


def _replacement(line: str) -> str:
    """Python for a line that holds a magic: what it times or what it assigns to keep their columns."""
    timed = _TIMED.sub(r"\1pass; ", line)
    if timed != line and _parses(timed.strip()):
        return timed
    assigned = _ASSIGNED_MAGIC.match(line)
    if assigned:
        # Whatever a shell or a magic gives is unknown: so is the result of this call.
        return f"{assigned.group(1)}get_ipython()"
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass"


def _after(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """How many brackets are open after a line, the quotes that are, and whether a backslash carries the line on."""
    for match in _TOKEN.finditer(line):
        token = match.group()
        if quote:
            if token == quote or (len(quote) == 1 and token[0] == quote):
                quote = ""
        elif token[0] in "'\"":
            quote = token
        elif token == "#":
            return depth, "", False
        elif token in "([{":
            depth += 1
        elif token in ")]}":
            depth = max(0, depth - 1)
    continued = line.endswith("\\")
    return depth, quote if len(quote) == 3 or continued else "", continued


def _parses(text: str) -> bool:
    return objection(text) is None

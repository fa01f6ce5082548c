"""The source with what was found in its place: the lines around each place, and all of a short file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.report.frame import Sources, marked
from gradcheck_accum.report.page.text import visible
from gradcheck_accum.report.words import plural, shown_path

_SHORT = 120
"""Lines of a file that is shown whole."""

_AROUND = 6
_WIDEST = 200
_FILES, _PLACES = 8, 60
"""Files, and places in each of them, that are shown."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A message at a place, short and in full. ``kind`` is "found", "accepted", "differs" or "step"."""

    where: Location
    kind: str
    label: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, in three parts: the middle one is what is meant. ``skipped`` counts the lines omitted before it."""

    number: int
    before: str
    meant: str
    after: str
    marks: tuple[Mark, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The lines of one file (or of one cell of a notebook); ``anchor`` begins the names of its lines."""

    name: str
    anchor: str
    lines: tuple[Line, ...]
    rest: str = ""


def listings(marks: Iterable[Mark], sources: Sources) -> tuple[list[Listing], str]:
    """The files that hold the marks, as far as they can be read, and in words what is not shown of them."""
    by_file: dict[tuple[str, int], list[Mark]] = {}
    for mark in dict.fromkeys(marks):
        by_file.setdefault((mark.where.path, mark.where.cell), []).append(mark)
    found, unreadable, left = [], [], max(0, len(by_file) - _FILES)
    for number, ((path, cell), own) in enumerate(list(by_file.items())[:_FILES]):
        name = f"{shown_path(path)}, cell {cell}" if cell else shown_path(path)
        lines = sources.lines(path, cell)
        if lines:
            found.append(_listing(name, f"s{number}", lines, own))
        else:
            unreadable.append(name)
    said = [f"the source of {name} cannot be read" for name in unreadable]
    said += [f"{plural(left, 'more file')} not shown"] if left else []
    return found, "; ".join(said)


def _listing(name: str, anchor: str, lines: list[str], marks: list[Mark]) -> Listing:
    marks = sorted((m for m in marks if 1 <= m.where.line <= len(lines)), key=lambda m: (m.kind == "step", m.where))
    by_line: dict[int, list[Mark]] = {}
    for mark in marks[:_PLACES]:
        by_line.setdefault(mark.where.line, []).append(mark)
    wanted = range(1, len(lines) + 1)
    shown = [n for n in wanted if len(lines) <= _SHORT or any(abs(n - place) <= _AROUND for place in by_line)]
    found, last = [], 0
    for n in shown:
        found.append(_line(n, lines[n - 1], by_line.get(n, []), n - last - 1))
        last = n
    rest = f"⋯ {plural(len(lines) - last, 'line')} after it" if last < len(lines) else ""
    return Listing(name, anchor, tuple(found), rest)


def _line(number: int, text: str, marks: list[Mark], skipped: int) -> Line:
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
    said = f"⋯ {plural(skipped, 'line')}" if skipped else ""
    if not marks:
        return Line(number, visible(text), "", "", skipped=said)
    begin, end = marked(text, marks[0].where)
    return Line(number, visible(text[:begin]), visible(text[begin:end]), visible(text[end:]), tuple(marks), said)

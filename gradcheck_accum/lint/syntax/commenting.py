"""Where a script has room for a comment: at the ends of its lines, but for those in strings and before a backslash."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from gradcheck_accum.lint.syntax.parsing import reading, tree_of


@dataclass(frozen=True, slots=True)
class Room:
    """The end of a line: from ``start`` to ``end`` stands white space alone, or the ``comment`` that is there."""

    start: int
    end: int
    comment: str


def rooms_of(text: str) -> dict[int, Room]:
    """The ends of the lines of statements that may hold a comment. Raises CannotParse and NestedTooDeeply."""
    with reading(text) as readable:
        from gradcheck_accum.lint.syntax.places import line_starts, walked

        starts = line_starts(readable)
        rooms: dict[int, Room] = {}
        for at, end in walked(tree_of(readable)).ends:
            code = at + len(end.whitespace.value)
            comment = end.comment.value if end.comment is not None else ""
            start = code if comment else at
            rooms[bisect_right(starts, at)] = Room(start, code + len(comment), comment)
        return rooms

"""Comments that suppress findings: ``# gradcheck-accum: ignore[GA101]`` and ``# noqa: GA101``, or either bare."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE, Mistake

_IGNORE = re.compile(r"gradcheck-accum:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?::\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_OUR_CODE = re.compile(r"GA\d+$")

_SEEN_BY_VERIFY_ALONE = frozenset(
    name.upper()
    for mistake in CATALOGUE.values()
    if mistake.code.startswith("GA9")
    for name in (mistake.code, mistake.name)
)
"""Mistakes that are measured and that no ledger shows: lint does not know whether a comment suppresses them."""

MAY_NAME_CODES = re.compile(rb"gradcheck-accum:\s*ignore|noqa:[^\n]*GA\d", re.IGNORECASE)
"""Is in the bytes of every file with a comment that is meant for us."""


@dataclass(slots=True)
class Suppression:
    """One such comment, and which of its ``codes`` have hidden a finding; without codes it hides all."""

    line: int
    column: int
    end_column: int
    codes: tuple[str, ...]
    is_ours: bool
    used: set[str] = field(default_factory=set)

    def hides(self, code: str, name: str) -> bool:
        """Whether it hides a finding, which it then remembers."""
        hiding = {c for c in self.codes if c in (code, name.upper())} if self.codes else {""}
        self.used |= hiding
        return bool(hiding)

    def unused(self) -> str:
        """What of it hides nothing, in words; a noqa answers for our codes only, others may need the rest."""
        if not self.codes:
            return "the comment suppresses nothing" if self.is_ours and not self.used else ""
        asked = [c for c in self.codes if (self.is_ours or _OUR_CODE.match(c)) and c not in _SEEN_BY_VERIFY_ALONE]
        idle = [c for c in asked if c not in self.used]
        return f"the comment's {', '.join(idle)} suppresses nothing" if idle else ""


class Suppressions:
    """All such comments of one source."""

    def __init__(self, comments: Iterable[tuple[int, int, str]]) -> None:
        """``comments`` are all comments of the source, each with its line and its column, from 1."""
        self._by_line: dict[int, list[Suppression]] = {}
        for found in _meant_for_us(comments):
            self._by_line.setdefault(found.line, []).append(found)

    def __bool__(self) -> bool:
        return bool(self._by_line)

    def hide(self, code: str, name: str, first: int, last: int) -> bool:
        """Whether a finding of ``code`` on lines ``first`` to ``last`` is suppressed."""
        comments = (comment for line in range(first, max(first, last) + 1) for comment in self._by_line.get(line, ()))
        return any([comment.hides(code, name) for comment in comments])

    def unused(self) -> list[tuple[Suppression, str]]:
        """The comments that have hidden nothing, or not with each of their codes, each with a message."""
        comments = [comment for line in sorted(self._by_line) for comment in self._by_line[line]]
        return [(comment, comment.unused()) for comment in comments if comment.unused()]


def _meant_for_us(comments: Iterable[tuple[int, int, str]]) -> Iterator[Suppression]:
    for line, column, text in comments:
        for pattern in (_IGNORE, _NOQA):
            match = pattern.search(text)
            if match:
                codes = tuple(code for code in re.split(r"[,\s]+", (match.group(1) or "").upper()) if code)
                yield Suppression(line, column + match.start(), column + match.end(), codes, pattern is _IGNORE)


def _comments(source: str) -> Iterator[tuple[int, int, str]]:
    """The comments of what the running Python reads."""
    if "noqa" not in source.lower() and "gradcheck-accum" not in source.lower():
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.start[1] + 1, token.string
    except (tokenize.TokenError, SyntaxError):
        return


class Commented:
    """A source with such comments, which apply to the whole statement that they are in."""

    def __init__(
        self, comments: Iterable[tuple[int, int, str]], lines: Callable[[], Mapping[int, tuple[int, int]]]
    ) -> None:
        """``lines`` gives the first and the last line of the simple statement that each line belongs to."""
        self.comments = Suppressions(comments)
        self._statements = lines() if self.comments else {}

    @classmethod
    def running(cls, source: str) -> Commented:
        """A source that runs here, and that the running Python reads."""
        return cls(_comments(source), partial(_statement_lines, source))

    def hides(self, mistake: Mistake, where: Location) -> bool:
        """Whether a comment suppresses a mistake there."""
        first, last = self._statements.get(where.line, (where.line, where.end_line))
        return self.comments.hide(mistake.code, mistake.name, first, last)


def _parsed(source: str) -> ast.Module:
    """The source's tree; an empty one for what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _statement_lines(source: str) -> dict[int, tuple[int, int]]:
    """For every line of a simple statement, the statement's first and last line: a comment on any of them counts."""
    lines: dict[int, tuple[int, int]] = {}
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[line] = (node.lineno, node.end_lineno or node.lineno)
    return lines


def with_comment(line: str, code: str) -> str:
    """A line of source with ``code`` suppressed by a comment at its end, or in the comment of ours that is there."""
    text = line.rstrip("\r\n")
    line_break = line[len(text) :]
    given = _IGNORE.search(text)
    if given and (given.group(1) or "").strip():
        return f"{text[: given.end(1)]}, {code}{text[given.end(1) :]}{line_break}"
    return f"{text.rstrip()}  # gradcheck-accum: ignore[{code}]{line_break}"

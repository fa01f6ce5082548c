"""From the text of a script to its syntax."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.sources.grammar import objection

if TYPE_CHECKING:
    import libcst as cst

_LONE_RETURN = re.compile(r"\r(?!\n)")
_TAIL = re.compile(r"(?<=[\r\n])[ \t\f]+\Z")
_ERROR_AT = re.compile(r"error at (\d+):")
_BRACKET = re.compile(r"[()\[\]{}]")
_DOTTED = re.compile(r"(?:\.\w+(?:\([^()]*\))?){2000}")
_JUNCTION = re.compile(r"\b(?:and|or)\b")
_BEGINNING = re.compile(r"^(?=[A-Za-z_@])(?!and\b|or\b)", re.MULTILINE)
_ASYNC_AS_A_NAME = re.compile(r"\basync(?=[ \t]*=(?!=))")
_LONGEST = 2_000
"""Conditions that one statement may join."""
_DEEPEST = 200
"""Brackets inside brackets that Python allows, and that LibCST, which goes down by calls, is sure to come back from."""
_FRAMES = 20_000 if sys.version_info >= (3, 11) else 12_000
"""Calls inside calls that reading may take. Python's own limit is made for mistakes: a sum of three hundred terms is
none, and takes more. Until 3.11 each also took a piece of the process's stack."""


class CannotParse(Exception):
    """A text that is no Python: why, and at which line where that is known.

    ``is_python`` says that the running Python reads it all the same, and only LibCST does not.
    """

    def __init__(self, why: str, line: int = 0, *, is_python: bool = False) -> None:
        super().__init__(why)
        self.line = line
        self.is_python = is_python


class NestedTooDeeply(Exception):
    """A text that may be Python but is nested too deeply for the parser."""


def check(text: str) -> None:
    """Raise CannotParse or NestedTooDeeply as `parse` would, in a fraction of its time where the text is Python."""
    if objection(text) is not None:
        parse(text)


def parse(text: str, path: str = "", *, first: int = 1, at: Location | None = None) -> s.Module:
    """The syntax of a script: its lines count from ``first``, or all of it stands ``at`` one place.

    Raises CannotParse and NestedTooDeeply. What is newer than the running Python is read as far as LibCST knows it.
    """
    with reading(text) as readable:
        from gradcheck_accum.lint.syntax.lower_modules import lower  # loads LibCST

        return lower(tree_of(readable), readable, path, first, at)


@contextmanager
def reading(text: str) -> Iterator[str]:
    """Read a text, without what LibCST loses or does not know; nothing else of it moves.

    Until Python 3.7, ``async`` was a name, and scripts of that time copy with ``tensor.cuda(async=True)``: there it is
    another name of the same length. Raises CannotParse and NestedTooDeeply for what goes wrong meanwhile.
    """
    error = objection(text)
    if isinstance(error, SyntaxError) and _ASYNC_AS_A_NAME.search(text):
        renamed = _ASYNC_AS_A_NAME.sub(_unused_name(text), text)
        if objection(renamed) is None:
            text, error = renamed, None
    if isinstance(error, (RecursionError, MemoryError)):
        raise NestedTooDeeply
    if error is not None and _is_deep(text):
        raise _refused(error)
    if _is_long(text):
        raise NestedTooDeeply
    try:
        with going_down():
            # Carriage returns alone end lines as others do, and white space after the last line is none of it.
            tail = _TAIL.search(text)
            yield _LONE_RETURN.sub("\n", text.removesuffix(tail.group()) if tail is not None else text)
    except (SyntaxError, ValueError) as mistake:
        raise _refused(error or mistake, is_python=error is None) from None


@contextmanager
def going_down() -> Iterator[None]:
    """Let calls go as deep as a tree may be that was read. Raises NestedTooDeeply where that is not enough."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    except RecursionError:
        raise NestedTooDeeply from None
    finally:
        sys.setrecursionlimit(before)


def _unused_name(text: str) -> str:
    """A name as long as ``async`` that a text does not use."""
    return next(name for name in map("a{:04}".format, count()) if name not in text)


def tree_of(readable: str) -> cst.Module:
    """LibCST's tree. Raises SyntaxError."""
    import libcst as cst

    try:
        return cst.parse_module(readable)
    except cst.ParserSyntaxError as error:
        found = _ERROR_AT.search(error.message)  # before a block its own number is that of the line after
        line = int(found.group(1)) if found is not None else error.raw_line
        raise SyntaxError(error.message, ("", line, error.raw_column, "")) from None


def _refused(error: Exception, *, is_python: bool = False) -> CannotParse:
    if isinstance(error, SyntaxError):
        return CannotParse(error.msg, error.lineno or 1, is_python=is_python)
    return CannotParse(str(error), is_python=is_python)


def _is_long(text: str) -> bool:
    """Whether a condition or a chain of attributes may be longer than LibCST, which nests it, comes back from soon."""
    if _DOTTED.search(text):
        return True
    if text.count("and") + text.count("or") < _LONGEST:
        return False
    return any(len(_JUNCTION.findall(piece)) >= _LONGEST for piece in _BEGINNING.split(text))


def _is_deep(text: str) -> bool:
    """Whether brackets may be nested more deeply than any Python allows: those in strings are counted too."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "([{" else -1
        if depth > _DEEPEST:
            return True
    return False

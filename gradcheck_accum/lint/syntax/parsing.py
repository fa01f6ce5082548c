"""From the text of a script to its syntax."""

from __future__ import annotations

import ast
import warnings

from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.from_ast import lower
from gradcheck_accum.location import Location


class CannotParse(Exception):
    """A text that is no Python: why, and at which line where that is known."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


class NestedTooDeeply(Exception):
    """A text that may be Python, and that no parser goes down into."""


def parse(text: str, path: str = "", *, first: int = 1, at: Location | None = None) -> s.Module:
    """The syntax of a script: its lines count from ``first``, or all of it stands ``at`` one place.

    Raises CannotParse and NestedTooDeeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return lower(ast.parse(text), text, path, first, at)
    except SyntaxError as error:
        raise CannotParse(error.msg, error.lineno or 1) from None
    except ValueError as error:
        raise CannotParse(str(error)) from None
    except (RecursionError, MemoryError):
        raise NestedTooDeeply from None

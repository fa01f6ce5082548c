"""The syntax error that the running Python finds in a text, if any, from its own parser, whose tree is discarded.

It checks the many files that are not analyzed, in a tenth of the time that LibCST takes, and with messages that people
know. What it rejects may be newer syntax than its own: then LibCST decides.
"""

from __future__ import annotations

import sys
import warnings
from _ast import PyCF_ONLY_AST  # what `ast.parse` does, without loading the module


def objection(text: str | bytes) -> Exception | None:
    """Why the running Python does not read a text; None where it does.

    A SyntaxError or a ValueError says what is wrong; a RecursionError or a MemoryError that it is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<source>", "exec", PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return error
    return _too_deep(text) if sys.version_info < (3, 11) else None


def _too_deep(text: str | bytes) -> RecursionError | None:
    """Why Python 3.10 does not compile a text whose tree is too deep: its parser alone sets no limit.

    LibCST takes minutes and gigabytes for a sum of five thousand terms. What else a compiler complains of may be part
    of a notebook, or of a page.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<source>", "exec", dont_inherit=True)
    except RecursionError as error:
        return error
    except Exception:
        return None
    return None

"""Errors that the command line shows in one line; internal ones with a traceback on request."""

from __future__ import annotations

import os


class UsageError(Exception):
    """The request makes no sense; the message is one line that says why."""


_DEBUG_VARIABLE = "GRADCHECK_ACCUM_DEBUG"


def wants_tracebacks() -> bool:
    """Whether internal errors are shown with their traceback."""
    return bool(os.environ.get(_DEBUG_VARIABLE))


def internal_error(error: Exception) -> str:
    """An internal error in one line."""
    text = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {text} ({_DEBUG_VARIABLE}=1 shows the traceback)"

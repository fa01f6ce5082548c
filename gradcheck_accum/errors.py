"""Errors that the command line shows in one line; those of ours with their traceback where that is asked for."""

from __future__ import annotations

import os


class UsageError(Exception):
    """What was asked for makes no sense; the message is one line that says why."""


_DEBUG_VARIABLE = "GRADCHECK_ACCUM_DEBUG"


def wants_tracebacks() -> bool:
    """Whether errors of ours are to come out as they are."""
    return bool(os.environ.get(_DEBUG_VARIABLE))


def internal_error(error: Exception) -> str:
    """An error of ours in one line."""
    text = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {text} ({_DEBUG_VARIABLE}=1 shows the traceback)"

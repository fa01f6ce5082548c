"""Calls on behalf of a frame: warnings from PyTorch's C++ code point to the line that made the call.

Such a warning has the file, line and module of the current Python frame, which warning filters match too. If we make a
call for the script, that frame would be ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any

NAME = "called by gradcheck-accum"
"""The name of such a frame's code object, which no source contains."""


def call_from(frame: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, called from the line that ``frame`` runs."""
    code = _code(frame.f_code.co_filename, frame.f_lineno)
    return FunctionType(code, frame.f_globals)(function, args, kwargs)


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


@cache
def _code(filename: str, line: int) -> CodeType:
    # The call is on the second line of the function.
    return _call.__code__.replace(co_filename=filename, co_firstlineno=line - 1, co_name=NAME)

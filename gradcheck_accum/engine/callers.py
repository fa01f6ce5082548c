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


_MOST_PLACES = 1 << 12
"""The number of places that are remembered: a notebook has new code in every cell."""

_known: dict[tuple[int, int], tuple[CodeType, CodeType]] = {}
"""For a code object and an instruction: that code, so that its id is not reused, and the code of a call from there.

To find the line of an instruction, Python goes through the whole function.
"""


def call_from(frame: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, called from the line that ``frame`` runs."""
    caller = frame.f_code
    place = id(caller), frame.f_lasti
    known = _known.get(place)
    if known is None:
        if len(_known) >= _MOST_PLACES:
            _known.clear()
        known = _known[place] = caller, _code(caller.co_filename, frame.f_lineno)
    return FunctionType(known[1], frame.f_globals)(function, args, kwargs)


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


@cache
def _code(filename: str, line: int) -> CodeType:
    # The call is on the second line of the function.
    return _call.__code__.replace(co_filename=filename, co_firstlineno=line - 1, co_name=NAME)

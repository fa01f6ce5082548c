"""Which line of the user's own code is being run."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from gradcheck_accum.location import Location

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


@lru_cache(maxsize=1024)
def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    return not path.startswith(_OURS) and not path.startswith(_LIBRARIES)


def user_location() -> Location:
    """The innermost line of user code on the stack; the outermost frame's line where there is none."""
    frame = sys._getframe(1)
    last = frame
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        last, frame = frame, frame.f_back  # type: ignore[assignment]
    return Location(last.f_code.co_filename, last.f_lineno)

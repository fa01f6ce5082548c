"""Files that are read though the user did not name them: settings, patterns to ignore, modules next to a script.

The author of the directory may have put something else there: a pipe that blocks forever, a device that never ends.
Only regular files are read, and only up to a plausible size.
"""

from __future__ import annotations

import os
import stat


def read_regular(path: str, most: int) -> bytes | None:
    """The content of a regular file up to ``most`` bytes; None where there is none, or none that can be read."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):
        return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

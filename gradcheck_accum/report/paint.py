"""Color for terminals that want it, and none for everything else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

_STYLES = {"bold": "1", "red": "1;31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2"}


@dataclass(frozen=True, slots=True)
class Paint:
    """Wraps text in terminal colors where ``enabled``, and returns it unchanged otherwise."""

    enabled: bool = False

    @classmethod
    def for_stream(cls, stream: TextIO) -> Paint:
        """Color on a terminal, and where FORCE_COLOR (https://force-color.org) is set; none where NO_COLOR is."""
        if os.environ.get("NO_COLOR"):  # https://no-color.org
            return cls(False)
        return cls(bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb"))

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.enabled and text else text


PLAIN = Paint()

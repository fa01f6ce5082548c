"""How far a long run is: one line on a terminal that comes and goes, and nothing anywhere else."""

from __future__ import annotations

import os
from typing import TextIO

_ENOUGH = 20
"""Fewer files than this are done before a line could be read."""

_WIDTH = 30


class ProgressBar:
    """Shows ``done`` of ``total`` of what ``noun`` names on ``stream`` when called; `clear` takes the line away."""

    def __init__(self, stream: TextIO, noun: str = "files", *, quiet: bool = False) -> None:
        self._stream = stream
        self._noun = noun
        self._enabled = not quiet and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def __call__(self, done: int, total: int) -> None:
        if not self._enabled or total < _ENOUGH:
            return
        full = _WIDTH * done // total
        line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {100 * done // total:>3} %"
        if line != self._shown:
            self._stream.write(f"\r{line} of {total} {self._noun}")
            self._stream.flush()
            self._shown = line

    def clear(self) -> None:
        """Leave the line as it was before."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""

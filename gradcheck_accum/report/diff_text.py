"""What fixes would change, as a unified diff that ``patch`` and ``git apply`` take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from gradcheck_accum.report.words import typed_path
from gradcheck_accum.results.findings import Piece


def diff_text(path: str, piece: Piece) -> str:
    """What differs in a file; in a notebook, which no ``patch`` could take, in one of its cells."""
    name, before, after = typed_path(path), piece.before, piece.after
    if piece.cell:
        # Whether a cell's last line ends with a newline does not matter.
        name, before, after = f"{name}:cell {piece.cell}", before.rstrip("\n") + "\n", after.rstrip("\n") + "\n"
    return "".join(_marked(difflib.unified_diff(_lines(before), _lines(after), name, name)))


def _lines(text: str) -> list[str]:
    """Lines with their ends; unlike `str.splitlines`, form feeds and their like end none."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def _marked(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

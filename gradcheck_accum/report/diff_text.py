"""What fixes would change, as a unified diff that ``patch`` and ``git apply`` take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from gradcheck_accum.report.words import shown_path


def diff_text(path: str, before: str, after: str) -> str:
    """The difference between two texts of one file; empty where there is none."""
    name = shown_path(path)
    return "".join(_marked(difflib.unified_diff(_lines(before), _lines(after), name, name)))


def _lines(text: str) -> list[str]:
    """Lines with their ends; unlike `str.splitlines`, form feeds and their like end none."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def _marked(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

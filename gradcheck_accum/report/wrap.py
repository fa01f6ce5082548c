"""Sentences in lines that a terminal has room for."""

from __future__ import annotations

import textwrap

from gradcheck_accum.report.paint import Paint

WIDTH = 80
"""Columns of a report that is not read on a terminal."""


def labelled(label: str, sentence: str, width: int | None, paint: Paint, style: str = "cyan") -> list[str]:
    """``sentence`` behind its label in lines of ``width`` columns; paths, numbers and options stay whole.

    In one line where there is no width.
    """
    text = f"{label} {sentence}"
    if width is None:
        lines = [text]
    else:
        lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [paint(style, label) + lines[0].removeprefix(label), *lines[1:]]

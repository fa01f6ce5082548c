"""The page of a mistake, for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.wrap import WIDTH
from gradcheck_accum.rule_pages import RulePage

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_DIFF = {"+": "green", "-": "red"}
_KEPT = "\0"
"""Placeholder for a space at which no line may be broken."""


def explain_text(page: RulePage, *, paint: Paint = PLAIN, width: int = WIDTH) -> str:
    """The page in lines of ``width`` columns; what is code stays as it is."""
    lines = [paint("bold", page.title), "", *_rendered(f"{page.lead}\n{page.seen}", paint, width)]
    for heading, text in page.parts().items():
        lines += ["", paint("bold", heading), "", *_rendered(text, paint, width)]
    return "\n".join(lines)


def _rendered(text: str, paint: Paint, width: int) -> list[str]:
    """Paragraphs and lists wrapped, fences as they are, with an empty line between any two."""
    blocks = list[list[str]]()
    before, *found = _FENCE.split(text)
    blocks += _prose(before, paint, width)
    for language, code, after in zip(found[::3], found[1::3], found[2::3], strict=True):
        blocks.append(list(_code(language, code, paint)))
        blocks += _prose(after, paint, width)
    return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]


def _prose(text: str, paint: Paint, width: int) -> Iterator[list[str]]:
    for is_text, lines in groupby(text.splitlines(), key=lambda line: bool(line.strip())):
        if is_text:
            block = "\n".join(lines)
            items = re.split(r"^- ", block, flags=re.MULTILINE)
            yield [
                line
                for item in filter(None, items)
                for line in _wrapped(item, paint, width, "- " if len(items) > 1 else "")
            ]


def _code(language: str, code: str, paint: Paint) -> Iterator[str]:
    for line in code.splitlines():
        style = _DIFF.get(line[:1]) if language == "diff" else None
        yield f"    {paint(style, line) if style else line}".rstrip()


def _wrapped(text: str, paint: Paint, width: int, bullet: str) -> Iterator[str]:
    """One paragraph. Code stays whole, and keeps its quotes where no color shows it; addresses are written out."""
    text = _CODE.sub(lambda code: code[0].replace(" ", _KEPT), _LINK.sub(_link, " ".join(text.split())))
    for line in textwrap.wrap(
        text,
        width,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    ):
        line = line.replace(_KEPT, " ")
        yield _CODE.sub(lambda code: paint("cyan", code[1]), line) if paint.enabled else line


def _link(link: re.Match[str]) -> str:
    return f"{link[1]} ({link[2]})" if link[2].startswith("https://") else link[1]

"""Pieces of HTML for results that a notebook shows; whatever they hold is text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def paragraph(strong: str, text: str) -> str:
    """A paragraph that begins with some words in bold."""
    return f"<p><b>{escape(strong)}</b> {escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list; nothing where there are none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing where it has no rows."""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>" if lines else ""

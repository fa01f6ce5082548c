"""Makes foreign text safe to print to a terminal."""

from __future__ import annotations

_PICTURES = {
    **{number: 0x2400 + number for number in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), 0x61C, *range(0x200E, 0x2010), *range(0x2028, 0x202F)), 0xFFFD),
    **dict.fromkeys(range(0x2066, 0x206A), 0xFFFD),
}
"""Replacements for characters that control a terminal or change the direction of text."""


def visible(text: str) -> str:
    """Foreign text (a name, a line of source) on one line, without control characters."""
    return text if text.isascii() and text.isprintable() else text.translate(_PICTURES)

"""What a stranger wrote, as a terminal may be shown it."""

from __future__ import annotations

_PICTURES = {
    **{number: 0x2400 + number for number in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), 0x61C, *range(0x200E, 0x2010), *range(0x2028, 0x202F)), 0xFFFD),
    **dict.fromkeys(range(0x2066, 0x206A), 0xFFFD),
}
"""What stands for each character that is a command to a terminal, or turns the direction of a line round."""


def visible(text: str) -> str:
    """What a stranger wrote (a name, a line of source) as it may be shown: it commands no terminal, and is one line."""
    return text if text.isascii() and text.isprintable() else text.translate(_PICTURES)

"""Text from outside (paths, source, names), made safe to show in a page."""

from __future__ import annotations

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
"""The signs that stand for control characters."""

_NEVER = "\ufffd"
_TURNING = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""What turns the direction of text around, so that it reads otherwise than it is."""

_SHOWN: dict[int, int | str] = {
    **_PICTURES,
    **dict.fromkeys(range(0x80, 0xA0), _NEVER),
    **dict.fromkeys(range(0xD800, 0xE000), _NEVER),
    **dict.fromkeys((0xFFFE, 0xFFFF), _NEVER),
    **{code: f"<U+{code:04X}>" for code in _TURNING},
}


def visible(text: str) -> str:
    """The text with a sign for each character that no page can show, or that would make it read otherwise."""
    return text.translate(_SHOWN)


def shortened(text: str, longest: int) -> str:
    """The text without its middle where it is longer: names differ at their ends."""
    if len(text) <= longest:
        return text
    kept = longest - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"

"""The code of a source without its comments and strings, found by a look at its bytes: libraries show calls in both."""

from __future__ import annotations

_NO_CODE = (
    rb"#[^\r\n]*"
    rb"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    rb'|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    rb"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
    rb'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
)


def code_alone(source: bytes) -> bytes:
    """A source, or a piece of one, without its comments and strings."""
    import re  # not needed by most runs

    return re.sub(_NO_CODE, b"", source, flags=re.DOTALL)

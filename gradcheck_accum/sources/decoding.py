"""The text of a Python source, read as Python reads it: by its byte order mark and its coding line (PEP 263)."""

from __future__ import annotations

import codecs

MARK = "\ufeff"


class NotText(ValueError):
    """Bytes that are not a source text; the message is one line that says why."""


def encoding_of(content: bytes) -> str:
    """The encoding of a source, UTF-8 if it names none. Raises NotText if it names one that does not exist."""
    if b"coding" not in b"\n".join(content.split(b"\n", 2)[:2]):
        return "utf-8"
    import io
    import tokenize  # few sources name their encoding

    try:
        named, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise NotText(f"not Python: {error.msg}") from None
    except LookupError as error:  # a codec, but not one of text: later versions of Python report it here
        raise NotText(f"not Python: {str(error).partition(';')[0]}") from None
    return "utf-8" if named == "utf-8-sig" else named


def text_of(content: bytes) -> str:
    """The text of a source, without a byte order mark. Raises NotText."""
    encoding = encoding_of(content)
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except LookupError:  # a codec, but not one of text
        raise NotText(f"not Python: {encoding!r} is not a text encoding") from None
    except ValueError as error:
        byte = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        named = "UTF-8" if encoding == "utf-8" else f"{encoding}, which its coding line names"
        raise NotText(f"not {named}{byte}") from None


def shown_text(content: bytes) -> str:
    """The text of a source, as far as it can be read."""
    try:
        return text_of(content)
    except NotText:
        return content.decode("utf-8-sig", errors="replace")

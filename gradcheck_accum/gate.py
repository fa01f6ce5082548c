"""Which sources could matter at all: a look at their bytes, before anything is parsed or imported for it."""

from __future__ import annotations

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes above which a source is not analysed: no person wrote it."""


def may_train(source: bytes) -> bool:
    """Whether a source both calls ``backward`` and steps: without either there is no window to judge."""
    if b"backward" not in source or b"step" not in source:
        return False
    import re  # most sources are told apart without, and it costs a third of a bare start of Python

    calls = (rb"backward[\s\\]*\(", rb"\.[\s\\]*step[\s\\]*\(")
    return all(re.search(call, source) for call in calls)

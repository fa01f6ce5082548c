"""What differs between two versions of a text, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

_MOST_PAIRS = 5_000_000
"""The most pairs of equal lines, one from each version, for which lines are matched."""

Change = tuple[str, int, int, int, int]
"""A kind (equal, replace, delete, insert), and which lines of the old and of the new version it is of."""


def changes(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    """How to turn the old version into the new one, in order.

    What both begin and end with is equal. Between them `difflib` looks at every pair of equal lines: where a file has
    thousands of one line, all that is there counts as replaced.
    """
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start:
        yield "equal", 0, start, 0, start
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    if before or after:
        yield from _between(before, after, start)
    if end:
        yield "equal", len(old) - end, len(old), len(new) - end, len(new)


def _between(before: Sequence[str], after: Sequence[str], start: int) -> Iterator[Change]:
    counts = Counter(after)
    if sum(count * counts[line] for line, count in Counter(before).items()) > _MOST_PAIRS:
        yield "replace", start, start + len(before), start, start + len(after)
        return
    from difflib import SequenceMatcher  # where something is fixed only

    for kind, first, last, from_, to in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        yield kind, start + first, start + last, start + from_, start + to

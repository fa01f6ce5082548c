"""Suggestions for misspelled words."""

from __future__ import annotations

from collections.abc import Iterable

_NEAR = 0.75


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message about ``word``: the closest known word, or nothing.

    Nothing if several are equally close.
    """
    from difflib import SequenceMatcher  # only for errors

    matcher = SequenceMatcher(b=word.casefold())
    near = []
    for candidate in dict.fromkeys(known):
        matcher.set_seq1(candidate.casefold())
        near.append((matcher.ratio(), candidate))
    best = max((ratio for ratio, _ in near), default=0.0)
    likely = [candidate for ratio, candidate in near if ratio == best]
    return f"; did you mean {likely[0]}?" if best >= _NEAR and len(likely) == 1 else ""

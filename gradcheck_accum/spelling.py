"""What somebody may have meant by a word that is none of those that there are."""

from __future__ import annotations

from collections.abc import Iterable

_NEAR = 0.75


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a complaint about ``word``: the one known word that is nearest to it, or nothing.

    Where several are as near, none of them is likelier than another.
    """
    from difflib import SequenceMatcher  # for complaints only

    matcher = SequenceMatcher(b=word.casefold())
    near = []
    for candidate in dict.fromkeys(known):
        matcher.set_seq1(candidate.casefold())
        near.append((matcher.ratio(), candidate))
    best = max((ratio for ratio, _ in near), default=0.0)
    likely = [candidate for ratio, candidate in near if ratio == best]
    return f"; did you mean {likely[0]}?" if best >= _NEAR and len(likely) == 1 else ""

"""Equal values kept once: a run of many windows has very many events, and few kinds of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from gradcheck_accum.ledger.events import Term

_MOST = 1 << 12
"""Values that are known at a time: there are many in a loop whose losses all have different units."""

_T = TypeVar("_T", bound=Hashable)


class Shared:
    """Returns the first of all equal values that it was called with."""

    def __init__(self) -> None:
        self._known: dict[Hashable, object] = {}

    def __call__(self, value: _T, *more: Hashable) -> _T:
        """The first value that was equal to ``value`` and had the same ``more``."""
        if len(self._known) >= _MOST:
            self._known.clear()
        return self._known.setdefault((value, more), value)  # type: ignore[return-value]

    def terms(self, terms: Sequence[Term]) -> tuple[Term, ...]:
        """The first of equal terms, also equal in the places and origins of factors, which ``==`` ignores."""
        factors = (factor for term in terms for factor in term.factors)
        return self(tuple(terms), *((factor.where, factor.origins) for factor in factors))

"""A compact sequence of many items of few kinds: the first of each kind, and for each item the number of its kind."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

_Example = TypeVar("_Example")

_MOST = 1 << 10
"""Kinds that are known at a time: where all items differ, none is found again."""


class Alike(Generic[_Example]):
    """A sequence of items, each as the example of its kind."""

    def __init__(self) -> None:
        self._numbers = array("I")
        self._examples: list[_Example] = []
        self._known: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[_Example]:
        return map(self._examples.__getitem__, self._numbers)

    def knows(self, key: Hashable) -> bool:
        """Whether there was one of this kind, as far as that is still known."""
        return key in self._known

    def add(self, key: Hashable, example: Callable[[], _Example]) -> None:
        """Append an item of the kind ``key``; ``example`` makes what is kept if it is the first of its kind."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = len(self._examples)
            self._examples.append(example())
        self._numbers.append(known)

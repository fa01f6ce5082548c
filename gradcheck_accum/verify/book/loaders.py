"""The data loaders of a run, each with a number."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary


class Loaders:
    """Numbers data loaders. A number is given once, while the address of what is gone is used for what comes next."""

    def __init__(self) -> None:
        self._numbers, self._of_iterators = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._next = count()

    def iterated(self, iterator: Any, loader: Any) -> None:
        """A loader has made an iterator, which may be gone when the next one is made."""
        if loader not in self._numbers:
            self._numbers[loader] = next(self._next)
        self._of_iterators[iterator] = self._numbers[loader]

    def number_of(self, iterator: Any) -> int:
        """The number of an iterator's loader; one of its own if it was made before the run was watched."""
        if iterator not in self._of_iterators:
            self._of_iterators[iterator] = next(self._next)
        found: int = self._of_iterators[iterator]
        return found

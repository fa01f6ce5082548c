"""How many losses are still held with their graphs, after their backwards have run."""

from __future__ import annotations

import gc
import weakref
from typing import Any

_COLLECTIONS = 4
"""How often garbage is collected where more and more graphs seem to be held: it takes as long as many steps."""

_USUAL = 2
"""A loop's last loss is still in its variable, and often the one before is too: no reason to collect garbage."""


class _Mark:
    """Hangs on a node of a loss's graph, and is gone when the graph is."""

    __slots__ = ("__weakref__",)


class HeldGraphs:
    """The graphs of the losses that were marked and are still there; none of them is kept by being marked."""

    def __init__(self) -> None:
        self._marks: list[weakref.ref[_Mark]] = []
        self._held = 1
        """How many were held at the last count: the last loss mostly has a name when its step comes."""
        self._collections = _COLLECTIONS
        self._was_garbage = False
        """Whether the last collection freed any: others may be garbage, too."""

    def mark(self, node: Any) -> None:
        """Follow the graph that holds ``node`` from here on."""
        mark = _Mark()
        node.metadata["gradcheck-accum"] = mark
        self._marks.append(weakref.ref(mark))

    def forget(self) -> None:
        """Follow none of the graphs so far."""
        self._marks.clear()

    def count(self) -> int:
        """How many are held now, or were at the last count if the others may be garbage."""
        self._drop_gone()
        if len(self._marks) > max(self._held, _USUAL):
            if self._collections:
                # A graph may be held by nothing but a cycle through itself (an autograd function written in Python).
                self._collections -= 1
                before = len(self._marks)
                gc.collect()
                self._drop_gone()
                self._was_garbage = len(self._marks) < before
            elif self._was_garbage:
                return self._held
        self._held = len(self._marks)
        return self._held

    def _drop_gone(self) -> None:
        self._marks = [mark for mark in self._marks if mark() is not None]

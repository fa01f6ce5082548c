"""How often Python's garbage collector looks while many files are analyzed.

It looks after every 700 new objects, and a syntax tree has a hundred thousand, none of them garbage: a fifth of the
processor time of a run over the files of PyTorch was spent on that.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000
"""After how many new objects it looks: some megabytes of them."""


def collect_rarely() -> None:
    """Let the collector look rarely from now on."""
    _, *older = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *older)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the collector look rarely for a while; it stays off where it is off."""
    before = gc.get_threshold()
    if not before[0]:
        yield
        return
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Keep the collector away while next to nothing becomes garbage, as where trees are built; it may be off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""What models were called on for each backward, and which of it data loaders gave together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.program import Leaf, Program, leaves_of, tensors_in

_MOST_CALLS = 32
"""Calls that are kept of those that no backward follows (of a model that is only evaluated, with gradients on)."""

DataOfCall = tuple[Hashable, ...]
"""The tensors of data of one call. A program holds its own, which differ in where they are; others have numbers."""


@dataclass(frozen=True, slots=True)
class Given:
    """What models were called on for one backward.

    ``loaders`` are those that gave all of it, if several gave one batch each since the backward before theirs, which
    was draw ``drawn``.
    """

    calls: frozenset[DataOfCall] = frozenset()
    loaders: frozenset[int] = frozenset()
    drawn: int = 0


NOTHING_GIVEN = Given()


class GivenData:
    """Notes the data that models are called on; no tensor is kept."""

    def __init__(self) -> None:
        self._numbers = WeakIdKeyDictionary()
        self._next = count()
        self._calls: deque[DataOfCall] = deque(maxlen=_MOST_CALLS)
        self._draws = 0
        self._has_run = True
        self._loaders: Counter[int] = Counter()
        self._drawn: dict[Hashable, int] = {}
        """By tensor that was drawn since the last backward before: the loader that gave it."""

    def drew(self, loader: Any, batch: Any) -> None:
        """A data loader gave a batch."""
        if self._has_run:
            self._draws, self._has_run = self._draws + 1, False
            self._loaders.clear()
            self._drawn.clear()
        self._loaders[id(loader)] += 1
        for tensor in tensors_in(batch):
            self._drawn[self._number(tensor)] = self._drawn[_place(tensor)] = id(loader)

    def note(self, args: Any, kwargs: Any) -> None:
        """A module is called, and none that calls it, where no program is recorded."""
        if not torch.is_grad_enabled():
            return
        data = tuple(self._number(tensor) for tensor in tensors_in((args, kwargs)) if not tensor.requires_grad)
        if data:
            self._calls.append(data)

    def take(self, program: Program | None) -> Given:
        """What was given for a backward that has run, by its program where there is one."""
        self._has_run = True
        calls = frozenset(self._calls if program is None else _calls_of(program))
        self._calls.clear()
        if not calls:
            return NOTHING_GIVEN
        data = {tensor for call in calls for tensor in call}
        apart = len(self._loaders) > 1 and max(self._loaders.values()) == 1
        whole = apart and data <= self._drawn.keys()
        return Given(calls, frozenset(self._drawn[one] for one in data) if whole else frozenset(), self._draws)

    def _number(self, tensor: torch.Tensor) -> int:
        known: int | None = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            known = self._numbers[tensor] = next(self._next)
        return known


def _calls_of(program: Program) -> Iterator[DataOfCall]:
    """What the modules with weights were called on in a program, of those that were given data."""
    for function, args, kwargs, _ in program.steps:
        if isinstance(function, nn.Module) and next(function.parameters(), None) is not None:
            given = (program.leaves[leaf.index] for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Leaf))
            data = tuple(_place(tensor) for tensor in given if not tensor.requires_grad)
            if data:
                yield data


def _place(tensor: torch.Tensor) -> Hashable:
    return (tensor.data_ptr(), tensor._version, tensor.shape) if is_plain(tensor) else id(tensor)

"""What models were called on for each backward, and which of it data loaders gave together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What data loaders gave between two backwards: how many batches each, and for each tensor the loader."""

    number: int
    batches: Counter[int] = field(default_factory=Counter)
    loader_of: dict[Hashable, int] = field(default_factory=dict)


@dataclass(eq=False)
class Given:
    """What models were called on for one backward, which came after ``draw``: in its program, or as it was noted.

    Most backwards are never asked: a program is looked through when one is.
    """

    source: Program | frozenset[DataOfCall]
    draw: Draw

    @cached_property
    def calls(self) -> frozenset[DataOfCall]:
        """The data of each call."""
        return frozenset(_calls_of(self.source)) if isinstance(self.source, Program) else self.source

    @cached_property
    def loaders(self) -> frozenset[int]:
        """Those that gave all of it, if several gave one batch each."""
        loader_of, batches = self.draw.loader_of, self.draw.batches
        if len(batches) < 2 or max(batches.values()) > 1:
            return frozenset()
        data = {tensor for call in self.calls for tensor in call}
        return frozenset(loader_of[one] for one in data) if data <= loader_of.keys() else frozenset()


NOTHING_GIVEN = Given(frozenset(), Draw(0))


class GivenData:
    """Notes the data that models are called on; no tensor is kept."""

    def __init__(self) -> None:
        self._numbers = WeakIdKeyDictionary()
        self._next = count()
        self._calls: deque[DataOfCall] = deque(maxlen=_MOST_CALLS)
        self._draw = Draw(0)
        self._has_run = True

    def drew(self, loader: Any, batch: Any) -> None:
        """A data loader gave a batch."""
        if self._has_run:
            self._draw, self._has_run = Draw(self._draw.number + 1), False
        self._draw.batches[id(loader)] += 1
        for tensor in tensors_in(batch):
            place = _place(tensor, tensor._version)
            self._draw.loader_of[self._number(tensor)] = self._draw.loader_of[place] = id(loader)

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
        given = Given(frozenset(self._calls) if program is None else program, self._draw)
        self._calls.clear()
        return given

    def _number(self, tensor: torch.Tensor) -> int:
        known: int | None = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            known = self._numbers[tensor] = next(self._next)
        return known


def _calls_of(program: Program) -> Iterator[DataOfCall]:
    """What the modules with weights were called on in a program, of those that were given data."""
    for function, args, kwargs, _ in program.steps:
        if isinstance(function, nn.Module) and next(function.parameters(), None) is not None:
            given = (leaf.index for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Leaf))
            own = ((program.leaves[index], program.versions[index]) for index in given)
            data = tuple(_place(tensor, version) for tensor, version in own if not tensor.requires_grad)
            if data:
                yield data


def _place(tensor: torch.Tensor, version: int) -> Hashable:
    return (tensor.data_ptr(), version, tensor.shape) if is_plain(tensor) else id(tensor)

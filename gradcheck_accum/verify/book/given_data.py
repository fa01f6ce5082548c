"""The data that models were called on for each backward, and the data loaders that it came from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.weak import WeakIdKeyDictionary

from gradcheck_accum.engine.containers import leaves_of, tensors_in
from gradcheck_accum.engine.lent_weights import has_weights
from gradcheck_accum.engine.memory import is_plain, version_of
from gradcheck_accum.engine.program import Leaf, Program
from gradcheck_accum.ledger.location import Location

_MOST_CALLS = 32
"""Calls that are kept without a backward after them (of a model that is evaluated with gradients enabled)."""

DataOfCall = tuple[Hashable, ...]
"""The data tensors of one call: by their place in memory where a program holds them, otherwise by number."""


@dataclass(slots=True, eq=False)
class Draw:
    """What data loaders yielded between two backwards: the number of batches of each, and the loader of each tensor.

    ``place_of`` has the place of each in its batch, and ``stacked`` are those that a loader has stacked of samples, by
    their places in memory. ``of_items`` says that each batch was one item of its data set.
    """

    number: int
    batches: Counter[int] = field(default_factory=Counter)
    loader_of: dict[Hashable, int] = field(default_factory=dict)
    place_of: dict[Hashable, int] = field(default_factory=dict)
    stacked: set[Hashable] = field(default_factory=set)
    of_items: bool = True


@dataclass(eq=False)
class Given:
    """The data that models were called on for one backward, which came after ``draw``: its program, or noted calls.

    Computed on first use, because for most backwards it is not needed.
    """

    source: Program | frozenset[DataOfCall]
    draw: Draw

    @cached_property
    def calls(self) -> frozenset[DataOfCall]:
        """The data of each call."""
        return frozenset(_calls_of(self.source)) if isinstance(self.source, Program) else self.source

    @cached_property
    def loaders(self) -> frozenset[int]:
        """The loaders that yielded all of the data, if several yielded one batch each."""
        loader_of, batches = self.draw.loader_of, self.draw.batches
        if len(batches) < 2 or max(batches.values()) > 1:
            return frozenset()
        data = {tensor for call in self.calls for tensor in call}
        return frozenset(loader_of[one] for one in data) if data <= loader_of.keys() else frozenset()

    @cached_property
    def is_one_batch(self) -> bool:
        """Whether one loader gave one batch, and models were called on nothing but whole tensors of it, row by row.

        Views of the same samples have as many rows each; what the loop has cut or copied is no tensor of the batch.
        """
        if not isinstance(self.source, Program) or sum(self.draw.batches.values()) != 1:
            return False
        data = {tensor for call in self.calls for tensor in call}
        rows = {place[2][:1] for place in data if isinstance(place, tuple)}
        return bool(data) and data <= self.draw.place_of.keys() and len(rows) == 1

    @cached_property
    def computation(self) -> int | None:
        """A number for how the loss was computed, if one loader gave all its data: by what calls, of what of a batch.

        None where that is not known: what the loop has made of a batch is no part of it.
        """
        if not isinstance(self.source, Program):
            return None
        own = [*zip(self.source.leaves, self.source.versions, strict=True)]
        places = [id(leaf) if leaf.requires_grad else _place(leaf, version) for leaf, version in own]
        data = [place for place, (leaf, _) in zip(places, own, strict=True) if not leaf.requires_grad]
        loaders = {self.draw.loader_of.get(place) for place in data}
        if len(loaders) != 1 or None in loaders:
            return None
        numbers = repr(self.source.constants)
        return hash((self.source.calls(), numbers, *loaders, *(self.draw.place_of.get(p, p) for p in places)))


NOTHING_GIVEN = Given(frozenset(), Draw(0))


class GivenData:
    """Notes the data that models are called on; no tensor is kept."""

    def __init__(self) -> None:
        self._numbers = WeakIdKeyDictionary()
        self._next = count()
        self._calls: deque[DataOfCall] = deque(maxlen=_MOST_CALLS)
        self._draw = Draw(0)
        self._has_run = True
        self._places: set[tuple[str, int]] = set()

    def drew(self, iterator: Any, loader: int, batch: Any) -> None:
        """The iterator of a data loader, by its number, yielded a batch."""
        if self._has_run:
            self._draw, self._has_run = Draw(self._draw.number + 1), False
        self._draw.batches[loader] += 1
        stacks = iterator._auto_collation and iterator._collate_fn is default_collate
        # Without a collation, what it takes its indices from is a sampler of items, and has no size.
        size = getattr(iterator._index_sampler, "batch_size", None) if iterator._auto_collation else 1
        self._draw.of_items = self._draw.of_items and size == 1
        for number, tensor in enumerate(tensors_in(batch)):
            place = _place(tensor, version_of(tensor))
            self._draw.place_of[place] = number
            if stacks:
                self._draw.stacked.add(place)
            self._draw.loader_of[self._number(tensor)] = self._draw.loader_of[place] = loader

    def note(self, args: Any, kwargs: Any) -> None:
        """An outermost module is called while no program is recorded."""
        if not torch.is_grad_enabled():
            return
        data = tuple(self._number(tensor) for tensor in tensors_in((args, kwargs)) if not tensor.requires_grad)
        if data:
            self._calls.append(data)

    def take(self, program: Program | None) -> Given:
        """The data of a backward that has run, from its program where there is one."""
        self._has_run = True
        if program is not None and program.is_one_sample and self._draw.stacked:
            own = zip(program.leaves, program.versions, strict=True)
            stacked = any(_place(leaf, version) in self._draw.stacked for leaf, version in own)
            program.may_have_samples = program.may_have_samples or stacked
        if program is not None and self._draw.batches and self._draw.of_items:
            program.is_one_item = not program.is_cut
        given = Given(frozenset(self._calls) if program is None else program, self._draw)
        self._calls.clear()
        return given

    def computation(self, where: Location, given: Given) -> int | None:
        """How the loss of a backward was computed; None as long as all of them ran at one place."""
        self._places.add(where.place)
        return given.computation if len(self._places) > 1 else None

    def latest(self, program: Program | None) -> Given:
        """The data of gradients that were returned, from its program where there is one, else of the latest call.

        A backward over the same calls may follow.
        """
        return Given(frozenset(list(self._calls)[-1:]) if program is None else program, self._draw)

    def _number(self, tensor: torch.Tensor) -> int:
        known: int | None = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            known = self._numbers[tensor] = next(self._next)
        return known


def _calls_of(program: Program) -> Iterator[DataOfCall]:
    """The data of each call of a module with weights in a program, where it was called on data."""
    for function, args, kwargs, _ in program.steps:
        if has_weights(function):
            given = (leaf.index for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Leaf))
            own = ((program.leaves[index], program.versions[index]) for index in given)
            data = tuple(_place(tensor, version) for tensor, version in own if not tensor.requires_grad)
            if data:
                yield data


def _place(tensor: torch.Tensor, version: int | None) -> Hashable:
    return (tensor.data_ptr(), version, tensor.shape) if is_plain(tensor) else id(tensor)

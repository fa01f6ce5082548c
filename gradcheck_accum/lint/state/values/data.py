"""Input data: batches, what gives them (loaders, chunks, iterators), and what is cut out of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gradcheck_accum.lint.state.values.numbers import Num


class Holds(Enum):
    """What data are."""

    VALUES = "values"
    PLACES = "the numbers of rows"
    MASK = "of each element of other data, whether it counts"
    CONSTANTS = "what the source writes, as much of it in every micro-batch"


@dataclass(frozen=True, slots=True)
class Data:
    """Tensors of input data, or a batch of them; ``rows`` is the leading dimension where the source shows it.

    ``counted`` is the micro-batch under way when data was added up to this one number, where it is one, and ``times``
    what that was multiplied by. ``made`` is the turn of a training loop in which random numbers were drawn for it, or
    for the rows that it takes. ``is_part`` says that it was cut out of other data, ``varies`` that it has as many
    elements as the data say (chosen by a mask, or padded to the longest), and ``ignored`` that some of them hold what
    losses leave out. ``is_blank`` says that all of it held that, but for as much in every micro-batch. ``sizes`` are
    its dimensions where it was given them, a negative one for what follows from others.
    ``drawn`` is the number of the micro-batch that it was drawn with, None where that is not known. ``is_tensor`` says
    that a call has made it: it is no batch of several tensors. ``shape`` is its whole shape, where that call shows it.
    ``tells_steps`` says that K was computed into it, or put into the batch: what a model makes of it may be divided.
    ``is_counted_out`` says that it is some of the rows of data whose number the source shows: it shows theirs too, to
    whoever carries the choice out. ``columns`` is what each of its tensors holds, where it is several of one length.
    """

    rows: int | None = None
    counted: int | None = None
    made: int | None = None
    is_part: bool = False
    holds: Holds = Holds.VALUES
    varies: bool = False
    ignored: bool = False
    is_blank: bool = field(default=False, compare=False)
    times: Num | None = None
    sizes: tuple[Num, ...] = ()
    drawn: int | None = field(default=None, compare=False)
    is_tensor: bool = field(default=False, compare=False)
    shape: tuple[int, ...] = field(default=(), compare=False)
    tells_steps: bool = field(default=False, compare=False)
    is_counted_out: bool = field(default=False, compare=False)
    columns: tuple[Holds, ...] = field(default=(), compare=False)

    @property
    def is_determined(self) -> bool:
        """Whether the source says how many rows it has: in a number, or to whoever carries out what it was made by."""
        return self.rows is not None or self.is_counted_out

    @property
    def is_order(self) -> bool:
        """Whether it holds each place once: as many of them are below a number in every micro-batch."""
        return self.holds is Holds.PLACES and not self.is_part and not self.varies

    def reshaped(self, sizes: Sequence[Num]) -> tuple[Num, ...]:
        """The sizes that it is given, the first worked out from the others where it is -1 and the source shows all."""
        first, *rest = sizes
        others = math.prod(int(size.value) for size in rest)
        own = [self.rows] if self.is_order and not self.sizes else [int(size.value) for size in self.sizes]
        known = [count for count in own if count is not None and count > 0]
        if first.value != -1 or others <= 0 or not known or len(known) < len(own) or math.prod(known) % others:
            return tuple(sizes)
        return (Num(math.prod(known) // others), *rest)

    def changed(self, rows: int | None = None) -> Data:
        """What an operation on each of its elements gives."""
        holds = Holds.VALUES if self.holds is Holds.PLACES else self.holds
        return replace(self, rows=rows, is_part=False, holds=holds, sizes=(), shape=(), columns=())

    def item(self) -> Data:
        """What is at a number along its leading dimension, of two or more."""
        return replace(self.changed(*self.shape[1:2]), counted=None, drawn=None, shape=self.shape[1:])

    def size_along(self, dimension: int) -> int | None:
        """How long it is along a dimension, None where the source does not show that."""
        return self.shape[dimension] if -len(self.shape) <= dimension < len(self.shape) else None


def turn_made(values: Iterable[Any]) -> int | None:
    """The turn of a training loop in which random numbers were drawn for any of these, the last one; None for none."""
    return max((value.made for value in values if isinstance(value, Data) and value.made is not None), default=None)


@dataclass(slots=True, eq=False)
class Loader:
    """A source of micro-batches. ``length`` is None where the source does not show it.

    ``dataset`` is the name of the data set that they are cut from, where that is all that is known of it.
    ``generated`` says that a generator of the file yields them, and may yield a number beside each; ``whole`` that it
    was given a multiple of K, so that they may be whole windows. ``last_rows`` are those of the last micro-batch.
    ``carry_out`` runs the generator and gives what it yields; ``make`` gives the object that the source makes of a
    batch, where it makes one of each. ``drawn_from`` is the iterator that a generator is, once one was drawn from it.
    ``columns`` is what each tensor of a batch holds, where the source makes them.
    """

    length: int | None = None
    rows: int | None = None
    generated: bool = False
    whole: bool = False
    last_rows: int | None = None
    carry_out: Callable[[], list[Any]] | None = None
    dataset: str = ""
    make: Callable[[Data], Any] | None = None
    drawn_from: Stream | None = None
    columns: tuple[Holds, ...] = ()


@dataclass(frozen=True, slots=True)
class Unmade:
    """What ``make`` is to make of a batch of a loader once that is drawn."""

    batch: Data
    make: Callable[[Data], Any]


@dataclass(slots=True, eq=False)
class Chunks:
    """A batch split into ``count`` micro-batches, each of ``rows`` rows where the source shows that they are alike.

    ``assumed`` says that the source does not show how many, ``whole`` that they may be whole windows then: who made the
    data that they are cut from said how many. ``origins`` are those of the number that it asks for. ``unlike`` are the
    rows of each where the source shows that the last one has fewer.
    """

    count: int
    rows: int | None = None
    assumed: bool = False
    whole: bool = False
    origins: frozenset[str] = frozenset()
    unlike: tuple[int, ...] = ()

    @classmethod
    def of_rows(cls, rows: int, size: int, origins: frozenset[str] = frozenset()) -> Chunks:
        """Pieces of one size, made of so many rows: the last one has what is left."""
        count, left = -(-rows // size), rows % size
        if not left:
            return cls(count, size, origins=origins)
        return cls(count, origins=origins, unlike=(*[size] * (count - 1), left))

    @property
    def piece(self) -> Data:
        """One of the micro-batches."""
        return Data(self.rows, is_part=True)

    def batches(self) -> list[Data]:
        """The micro-batches in order."""
        return [Data(rows, is_part=True) for rows in self.unlike] or [self.piece] * self.count


@dataclass(slots=True, eq=False)
class Stream:
    """An iterator: ``next`` draws from it. ``since`` is the last micro-batch drawn before it was made, if known.

    ``of`` is what it goes through, once; it was made in that ``turn`` of the training loop.
    """

    items: Iterator[Any]
    since: int | None = None
    of: Any = None
    turn: int = 0

    @classmethod
    def endless(cls, since: int | None = None) -> Stream:
        """Batches for ever."""
        return cls(itertools.repeat(Data()), since)

    @property
    def is_endless(self) -> bool:
        """Whether it never ends."""
        return isinstance(self.items, itertools.repeat)

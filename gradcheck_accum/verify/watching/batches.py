"""Which backwards are over the same batch of data, and in which pass over it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from gradcheck_accum.engine.memory import is_plain, version_of
from gradcheck_accum.engine.program import Program
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.provenance.following import MOST_FRAMES
from gradcheck_accum.verify.provenance.lines import CallChain
from gradcheck_accum.verify.provenance.turns import in_one_turn
from gradcheck_accum.verify.stack.frames import user_frames
from gradcheck_accum.verify.watching.unfilled_windows import UnfilledWindows


def identity_of(program: Program | None) -> int | None:
    """A number for the data that a backward ran on, None where there is none.

    It differs for different data as long as the program is kept; afterwards memory may be reused.
    """
    data = frozenset((t.data_ptr(), version_of(t)) for t in data_of(program))
    return hash(data) if data else None


def data_of(program: Program | None) -> Iterator[torch.Tensor]:
    """The data that a backward ran on, as far as it has a place in memory: what is sparse has several."""
    leaves = program.leaves if program is not None else ()
    return (leaf for leaf in leaves if not leaf.requires_grad and is_plain(leaf))


class BatchCounter:
    """Numbers micro-batches from 0; ``current_pass`` is None where no data loader separates passes."""

    def __init__(self) -> None:
        self.number = -1
        self.current_pass: int | None = None
        self._lines: set[tuple[str, int]] = set()
        self._data: set[int] = set()
        self._sources: set[int] = set()
        """The storages of those data that are parts of a larger tensor."""
        self._cut_off: frozenset[str] = frozenset()
        self._chain: CallChain = ()
        """Where the last backward was called."""
        self._ways: dict[tuple[str, int], list[tuple[object, ...]]] = {}
        """How the losses of each line over this batch were computed: what was called, in order."""
        self._draws: Counter[int] = Counter()
        """How many batches each loader gave since the last backward."""
        self._given: Counter[int] = Counter()
        """How many batches each pass gave."""
        self._uses_loader = False
        self._backwards = 0
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._pass_count = 0
        self.unfilled = UnfilledWindows()

    def drawn(self, iterator: Any, loader: int, is_first: bool) -> None:
        """The iterator of a data loader, by its number, yielded a batch, maybe the first of a pass over its data."""
        self._draws[loader] += 1
        if is_first or iterator not in self._passes:
            self._passes[iterator] = self._pass_count
            self._pass_count += 1
        self.current_pass = self._passes[iterator]
        self._given[self.current_pass] += 1
        self.unfilled.drawn(self.current_pass, loader)

    def ended(self, iterator: Any) -> None:
        """The iterator of a data loader has no more batches in this pass."""
        self.unfilled.ended(self._passes.get(iterator), iterator)

    @property
    def drawn_since(self) -> int:
        """How many batches one data loader gave since the last backward."""
        return max(self._draws.values(), default=0)

    @property
    def given(self) -> int | None:
        """How many batches the current pass has loaded so far, None where passes are not distinguished."""
        return None if self.current_pass is None else self._given[self.current_pass]

    def losses_before(self, where: Location, program: Program | None, *, goes_on: bool) -> int:
        """How many other losses of the batch had a backward at this line before this one; 0 if it is over other data.

        Losses that were all computed before the first of their backwards (it ``goes_on`` with these), each in another
        way, are terms of one objective: micro-batches are turns of one computation, and one at a time has its graph.
        """
        ways = self._ways.get(where.place, [])
        is_another = goes_on and not self._draws and program is not None and program.calls() not in ways
        return len(ways) if is_another else 0

    def backward(
        self,
        where: Location,
        program: Program | None,
        chain: CallChain,
        cut_off: frozenset[str] = frozenset(),
        losses_before: int = 0,
    ) -> int:
        """A backward has run: the number of its micro-batch.

        ``chain`` is where it was called, and ``cut_off`` are the networks whose outputs are data of its loss.
        """
        line = where.place
        data = {leaf.data_ptr() for leaf in data_of(program)}
        if self._draws:
            # Batches that were all drawn before the first backward are a list, and no loader drives the loop.
            self._uses_loader = max(self._draws.values()) == 1 or self._backwards > 0
        sources = set[int]() if self._uses_loader else _sources(program)
        if self._uses_loader:
            new = bool(self._draws) or line in self._lines
        else:
            # Without a loader only the tensors themselves show whether two losses share their data.
            new = line in self._lines or (bool(data) and bool(self._data) and not data & self._data)
            if new and line not in self._lines and self._is_of_other_source(sources, cut_off):
                new = not in_one_turn(self._chain, user_frames(MOST_FRAMES))
        if (new and not losses_before) or self.number < 0:
            self.number += 1
            self.unfilled.ran(self.current_pass)
            self._lines, self._data, self._sources, self._ways = set(), set(), set(), {}
        self._draws.clear()
        self._backwards += 1
        self._lines.add(line)
        self._data |= data
        self._sources |= sources
        if program is not None:
            self._ways.setdefault(line, []).append(program.calls())
        self._cut_off, self._chain = cut_off, chain
        return self.number

    def _is_of_other_source(self, sources: set[int], cut_off: frozenset[str]) -> bool:
        """Whether data are not rows of what those before are rows of.

        A network has made one of them, or one at least was sliced, and the other not from the same tensor. Rows that
        were copied out of one do not show which.
        """
        return cut_off != self._cut_off or bool(sources ^ self._sources and not sources & self._sources)


def _sources(program: Program | None) -> set[int]:
    """The storages that data of a backward are parts of."""
    storages = ((leaf, leaf.untyped_storage()) for leaf in data_of(program))
    return {whole.data_ptr() for leaf, whole in storages if whole.nbytes() > leaf.nbytes}

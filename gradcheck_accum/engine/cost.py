"""What accumulation costs: memory and time of a window's micro-batches compared with those of its large batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gradcheck_accum.engine.joining import Layout
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.reference import CannotReplay, DoesNotFit, Pass, ReferenceEngine

_RUNS = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """One forward and backward pass: the bytes saved for the backward, and seconds."""

    kept: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The same window in ``micro_batches`` passes (``kept`` is for one pass, ``seconds`` for all) and in one."""

    micro_batches: int
    accumulated: Cost
    large_batch: Cost


@dataclass(slots=True)
class CostMeter:
    """Measures reference runs of large batches: those of the windows with the most data.

    The first run of a size also includes the time to allocate memory, so a second one is measured too.
    """

    cost: WindowCost | None = None
    """The cost of the largest window that was run as one batch."""
    room: float | None = None
    """The bytes that a large batch may save for its backward; None if unknown."""
    _elements: int = 0
    _runs: int = 0

    def large_batch(
        self,
        engine: ReferenceEngine,
        programs: Sequence[Program],
        parameters: Sequence[torch.Tensor],
        layout: Layout,
    ) -> Pass:
        """The pass over a window's large batch, measured if its window is among the largest.

        Raises CannotReplay, or DoesNotFit before running it, if it would need more memory than there is, as estimated
        from its largest micro-batch.
        """
        sizes = [sum(leaf.numel() for leaf in program.leaves) for program in programs]
        if len(programs) < 2 or sum(sizes) < self._elements or (sum(sizes) == self._elements and self._runs >= _RUNS):
            return engine.large_batch(programs, parameters, layout)
        largest = programs[sizes.index(max(sizes))]
        try:
            one, _ = _measured(partial(engine.one_by_one, largest, parameters), parameters)
        except CannotReplay:
            return engine.large_batch(programs, parameters, layout)
        self._must_fit(one.kept, sum(sizes) / max(*sizes, 1))
        large, passed = _measured(partial(engine.large_batch, programs, parameters, layout), parameters)
        self._runs = self._runs + 1 if sum(sizes) == self._elements else 1
        self._elements = sum(sizes)
        every = one.seconds * sum(sizes) / max(*sizes, 1)
        self.cost = WindowCost(len(programs), Cost(one.kept, every), large)
        return passed

    def _must_fit(self, kept: int, times: float) -> None:
        """Raise DoesNotFit if ``times`` the bytes that one micro-batch keeps exceed the room."""
        if self.room is not None and kept * times > self.room:
            raise DoesNotFit(
                "the large batch would need more memory for its backward than there is",
                max(1, int(self.room / max(kept, 1))),
            )


def _measured(run: Callable[[], Pass], parameters: Sequence[torch.Tensor]) -> tuple[Cost, Pass]:
    own = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    start = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        passed = run()
    if any(p.is_cuda for p in parameters):
        torch.cuda.synchronize()
    return Cost(sum(kept.values()), time.perf_counter() - start), passed

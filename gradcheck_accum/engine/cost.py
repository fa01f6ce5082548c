"""What accumulation buys and costs: memory and time of a window's micro-batches beside those of its large batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gradcheck_accum.engine.joining import Layout
from gradcheck_accum.engine.reference import CannotReplay, Pass, ReferenceEngine
from gradcheck_accum.engine.tape import Program


@dataclass(frozen=True, slots=True)
class Cost:
    """One forward and backward pass: the bytes that are kept for the backward, and seconds."""

    kept: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The same window in ``micro_batches`` passes (``kept`` is one pass's, ``seconds`` all of them) and in one."""

    micro_batches: int
    accumulated: Cost
    large_batch: Cost


def window_cost(
    engine: ReferenceEngine, programs: Sequence[Program], parameters: Sequence[torch.Tensor], layout: Layout
) -> WindowCost | None:
    """Run a window both ways once more, and measure; None where the large batch cannot be run."""
    try:
        large = _measured(partial(engine.large_batch, programs, parameters, layout), parameters)
        each = [_measured(partial(engine.one_by_one, program, parameters), parameters) for program in programs]
    except CannotReplay:
        return None
    accumulated = Cost(max(cost.kept for cost in each), sum(cost.seconds for cost in each))
    return WindowCost(len(programs), accumulated, large)


def _measured(run: Callable[[], Pass], parameters: Sequence[torch.Tensor]) -> Cost:
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
        run()
    if any(p.is_cuda for p in parameters):
        torch.cuda.synchronize()
    return Cost(sum(kept.values()), time.perf_counter() - start)

"""What is kept of a run: one record for each backward, one measurement for each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gradcheck_accum.engine.tape import Program
from gradcheck_accum.events import Backward, Step
from gradcheck_accum.verify.clipping import ClipCall
from gradcheck_accum.verify.measure import InnerProducts


@dataclass(slots=True, eq=False)
class Record:
    """One backward with the gradients that it alone gave, by parameter identity, and how to run it again."""

    event: Backward
    gradients: dict[int, torch.Tensor]
    program: Program | None
    changed: bool = False


@dataclass(slots=True)
class Replay:
    """The replayed gradient of the records of one place in the source; ``vectors`` are indices of inner products."""

    records: list[int]
    vectors: list[int]
    kind: str


@dataclass(slots=True)
class Measured:
    """One optimizer step as it was measured; vector 0 is the gradient before any clip, 1 the one that was used.

    ``update_error`` is |Δw - Δw_ref| / |Δw_ref|, None where Δw_ref is zero or unknown; ``drift`` how far the weights
    are from those of a reference run, where one was asked for. ``unmeasured`` says why there are no ``products``.
    """

    step: Step
    records: list[Record]
    products: InnerProducts | None = None
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype = torch.float32
    device: str = ""
    clips: list[ClipCall] = field(default_factory=list)
    after_clip: int | None = None
    replays: list[Replay] = field(default_factory=list)
    replay_problem: str = ""
    coupled_modules: list[str] = field(default_factory=list)
    update_error: float | None = None
    drift: float | None = None
    unmeasured: str = ""

    @property
    def first_record(self) -> int:
        """The index of the first record's own gradient among the inner products."""
        return 2

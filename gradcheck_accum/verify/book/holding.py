"""Decides what is compared and what is held for it: as requested, or as the memory allows.

References are requested by name. ``sketch`` is the ledger's reference, held as sketches. Without a name, both
references are compared if the memory for them, in addition to the loop's, fits in the budget, and sketches if it does
not; `gradcheck_accum.watch` uses sketches for all but small models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.free_memory import free_memory
from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.run_options import MemoryBudget
from gradcheck_accum.verify.book.gradient_book import SMALL
from gradcheck_accum.wording import amount_of_memory

_COPIES_OF_BOTH = 3
"""Copies of the gradients that both references take at most: what arrived, the large batch's, and one micro-batch's
while the costs are measured. What the large batch keeps for its backward comes on top."""

_COPIES_OF_STATE = 2
"""Copies of the weights that an optimizer may keep as its state, which it allocates at its first step."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What is compared, by name, and why, where it was not requested.

    ``room`` is how many bytes a large batch may keep for its backward, None where that is not known.
    """

    name: str
    why: str = ""
    room: float | None = None

    @property
    def replays(self) -> bool:
        """Whether large batches are run."""
        return self.name in ("replay", "both")

    @property
    def sketches(self) -> bool:
        """Whether only sketches of gradients are held."""
        return self.name == "sketch"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was requested: a reference by name or None, and the memory that it may take in addition to the loop.

    ``usual`` is the default reference.
    """

    reference: str | None = None
    usual: str = "both"
    budget: MemoryBudget | None = None

    @property
    def records(self) -> bool:
        """Whether large batches may be run, so that what computes the losses has to be recorded."""
        return (self.reference or self.usual) in ("replay", "both")

    def mode(self, parameters: Sequence[torch.Tensor], optimizers: Sequence[Optimizer]) -> Mode:
        """What is compared for ``parameters``; called when their first gradients are about to be computed."""
        name = self.reference or self.usual
        if sum(p.numel() for p in parameters) <= SMALL:
            return Mode("ledger" if self.reference is None and name == "sketch" else name)
        if self.reference is None and any(map(is_sharded, parameters)):
            # A rank keeps its shard of each gradient, and cannot run the large batch.
            return Mode("ledger" if name == "sketch" else name)
        if name == "sketch" and self.reference is None:
            return Mode("sketch", "no copy of the gradients is kept while a run is watched")
        if not self.records:
            return Mode(name)
        size = sum(p.numel() * p.itemsize for p in parameters)
        room, said = self._room(parameters, optimizers)
        needed = _COPIES_OF_BOTH * size
        if room is None or needed <= room or self.reference is not None:
            return Mode(name, room=None if room is None else max(0.0, room - needed))
        return Mode("sketch", f"both references would need {_in_words(needed)} in addition to the loop, and {said}")

    def _room(self, parameters: Sequence[torch.Tensor], optimizers: Sequence[Optimizer]) -> tuple[float | None, str]:
        """The bytes available for what is held, None where that is not known, and where that number is from."""
        if self.budget is not None and self.budget.share is None:
            return self.budget.bytes, f"--memory-budget is {_in_words(self.budget.bytes)}"
        free = free_memory(parameters[0].device)
        if free is None:
            return None, ""
        # The loop has yet to allocate its gradients, and its optimizers their state.
        stateless = [o for o in optimizers if not o.state and type(o) is not torch.optim.SGD]
        states = sum(p.numel() * p.itemsize for o in stateless for g in o.param_groups for p in g["params"])
        missing = sum(p.numel() * p.itemsize for p in parameters if p.grad is None)
        left = max(0.0, free - missing - _COPIES_OF_STATE * states)
        if self.budget is None or self.budget.share is None:
            return left, f"{_in_words(left)} are free in addition to what it needs itself"
        return (
            self.budget.share * left,
            f"--memory-budget is {self.budget.share:.3g} of the {_in_words(left)} that are free",
        )


def _in_words(size: float) -> str:
    """A number of bytes, in the units that a budget is written in."""
    return amount_of_memory(size, base=1000)

"""The interface of what takes part in a watched run, to compare each of its steps with another run's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.verify.book.records import Record

Gradients = Mapping[int, torch.Tensor | None]
"""Gradients by the identities of their parameters."""


@dataclass(frozen=True, slots=True)
class AtStep:
    """The inputs of an optimizer's next step: its gradients as they are, and as they were before any clip.

    ``before_clip`` is None where it is not known; ``clips_elements`` means that a clip limited single elements and did
    not just scale. ``records`` are the backwards since the optimizer's last step, on the data that they had.
    """

    optimizer: Optimizer
    name: str
    records: Sequence[Record]
    used: Gradients
    before_clip: Gradients | None
    path: str = ""
    line: int = 0
    parameters: Sequence[torch.Tensor] = field(default_factory=tuple)
    window: int = 0
    """The number of its window among those that the run's own report has."""
    clips_elements: bool = False
    has_closure: bool = False
    """Whether the step calls the script's own code once more."""


class Companion(Protocol):
    """Is notified of a watched run; what it does itself is not watched."""

    def along(self, tape: Tape) -> AbstractContextManager[None]:
        """The context of the whole run; ``tape`` is what it is recorded on."""

    def before_step(self, step: AtStep) -> None:
        """A step is about to be made."""

    def after_step(self, optimizer: Optimizer) -> None:
        """It has been made; raises `gradcheck_accum.verify.watching.steps.SeenEnough` where no more are wanted."""

    def over(self, left: Mapping[str, Sequence[Record]]) -> None:
        """The run is over; ``left`` are the backwards that no step followed, by the name of their optimizer."""

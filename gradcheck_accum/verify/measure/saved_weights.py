"""Weights that one optimizer has updated while losses computed with them wait for another's step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import torch

from gradcheck_accum.engine.determinism import holding
from gradcheck_accum.verify.book.records import Record


class MovedWeights:
    """The old values of such weights, so that a loss is replayed with the weights that it had.

    Two networks that are trained on one another are often stepped together, each frozen while the other's loss is
    computed.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, parameters: Sequence[torch.Tensor], waiting: Iterable[Record]) -> None:
        """A step is about to update ``parameters``; other optimizers have yet to use the backwards ``waiting``.

        Those that reached any of these parameters have been replayed for this step already.
        """
        own = {id(p): p for p in parameters}
        programs = [r.program for r in waiting if r.program is not None and own.keys().isdisjoint(r.squares)]
        modules = {id(module): module for program in programs for module in program.modules}
        for module in modules.values():
            for parameter in module.parameters():
                if id(parameter) in own:
                    self._before.setdefault(id(parameter), (parameter, parameter.detach().clone()))

    def as_they_were(self) -> AbstractContextManager[None]:
        """Inside the block the weights have their old values."""
        return holding(self._before.values())

    def forget(self) -> None:
        """Nothing is waiting any more."""
        self._before.clear()

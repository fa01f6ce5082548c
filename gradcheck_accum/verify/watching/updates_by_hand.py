"""Steps that a script's own code makes: it writes into weights, without an optimizer of PyTorch.

Where no optimizer is there yet when a backward begins, the weights that it will reach get one that does nothing, so
that their gradients are watched as those of any optimizer. No other step can use them: so the first write of what was
computed from them is their step.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection

import torch

from gradcheck_accum.engine.graph_nodes import weights_below
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.manual_updates import OwnSteps, UpdateByHand
from gradcheck_accum.verify.watching.returned_updates import UpdatesOfReturned
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.steps import Steps


class UpdatesByHand:
    """Finds the weights that no optimizer has, and their updates."""

    def __init__(self, run: Run, steps: Steps, returned: UpdatesOfReturned) -> None:
        self._run, self._steps, self._returned = run, steps, returned
        self._optimizer: UpdateByHand | None = None
        self.steps = 0
        """How many updates were seen."""
        self.own_steps = OwnSteps()
        """Where weights were written into otherwise, or by another library's code."""

    def backward_begins(self, losses: list[torch.Tensor], where: Location) -> None:
        """A backward at ``where`` begins: if no optimizer is known, its weights are those of an update by hand."""
        if self._optimizer is not None:
            self.own_steps.backward_at = where
            return
        self._returned.other_training()
        if self._run.book.optimizers:
            return
        weights = [w for w in weights_below(loss.grad_fn for loss in losses) if w.requires_grad]
        if not weights:
            return
        self.own_steps.backward_at = where
        self._optimizer = UpdateByHand(weights)
        # The tape outlives its run, and must not hold it.
        found = weakref.WeakMethod(self.about_to_write)

        def about_to_write(keys: Collection[int], uses: bool) -> None:
            listener = found()
            if listener is not None:
                listener(keys, uses)

        self._run.uses.on_write = about_to_write

    @property
    def is_all(self) -> bool:
        """Whether there is no other optimizer, and no update was seen."""
        return self._optimizer is not None and not self.steps

    def give_way(self) -> int:
        """A script's optimizer has been made, and no update was seen: forget the backwards that came before; how many.

        They were for something else (a trial run, the layout of a model).
        """
        run, own = self._run, self._optimizer
        if own is None or self.steps:
            return 0
        self._optimizer = None
        begun = run.dismiss(own)
        run.uses.on_write = None
        run.uses.forget()
        return begun

    def about_to_write(self, keys: Collection[int], uses: bool) -> None:
        """The loop is about to write into the weights ``keys``; it is a step if it ``uses`` their gradients."""
        own, run = self._optimizer, self._run
        if own is None or run.attention.idle or not run.awaited.of(own):
            return
        if own not in run.book.users_of(keys):
            return
        where = user_location()
        if where.through or not uses or self._steps.is_inside_backward:
            self.own_steps.at = self.own_steps.at or where
            return
        self.steps += 1
        with run.attention.unheard():
            self._steps.made_by_hand(own, where, is_now=True)
            self._steps.stop_if_enough()

"""Steps that a script's own code makes: it writes into the weights, without an optimizer of PyTorch.

Where no optimizer is there yet when a backward begins, the weights that it will reach get one that does nothing, so
that their gradients are watched as those of any optimizer. The first write into one of them after a backward is its
step.
"""

from __future__ import annotations

import weakref

import torch

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.manual_updates import OwnSteps, UpdateByHand, weights_below
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.steps import Steps


class UpdatesByHand:
    """Finds the weights that no optimizer has, and their updates."""

    def __init__(self, run: Run, steps: Steps) -> None:
        self._run, self._steps = run, steps
        self._optimizer: UpdateByHand | None = None
        self._places: dict[int, torch.Size] = {}
        """The shape of each weight by its place in memory."""
        self.steps = 0
        """How many updates were seen."""
        self.own_steps = OwnSteps()
        """Where another library's code makes the updates."""

    def backward_begins(self, losses: list[torch.Tensor], where: Location) -> None:
        """A backward at ``where`` begins: if no optimizer is known, its weights are those of an update by hand."""
        run = self._run
        if self._optimizer is not None:
            self.own_steps.backward_at = where
            self._find_weights(self._optimizer)
            return
        if run.book.optimizers or not run.losses.records:
            return
        weights = [w for w in weights_below(loss.grad_fn for loss in losses) if w.requires_grad]
        if not weights:
            return
        self.own_steps.backward_at = where
        self._optimizer = UpdateByHand(weights)
        self._find_weights(self._optimizer)
        found = weakref.ref(self)

        def written(tensor: torch.Tensor) -> None:
            own = found()
            if own is not None:
                own.about_to_write(tensor)

        run.losses.tape.on_write = written

    def _find_weights(self, own: UpdateByHand) -> None:
        self._places = {w.data_ptr(): w.shape for group in own.param_groups for w in group["params"]}

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
        begun = run.journal.begin_again()
        run.book.dismiss(own)
        run.awaited.restart()
        run.clips.forget()
        run.book.look(run.book.parameters)
        run.book.close_part()
        run.losses.tape.on_write = None
        return begun

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Something is about to write into a tensor: the first into a weight after a backward is a step."""
        own = self._optimizer
        if own is None or self._run.attention.idle or not self._run.awaited.of(own):
            return
        if tensor.layout is not torch.strided or self._places.get(tensor.data_ptr()) != tensor.shape:
            return
        where = user_location()
        if where.through:
            self.own_steps.at = self.own_steps.at or where
            return
        self.steps += 1
        with self._run.attention.unheard():
            self._steps.before(own, with_closure=False)
            self._steps.after(own)

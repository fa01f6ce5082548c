"""What depends on the number of updates: learning rates and moving averages of the weights."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger.events import AverageUpdate, SchedulerStep
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import NAME_OF_LENGTH
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.manual_averages import OwnAverages, Rates
from gradcheck_accum.verify.watching.run import Run


class Schedules:
    """Records the updates of schedulers and averages, and what a script does manually in their place."""

    def __init__(self, run: Run) -> None:
        self._attention, self._journal, self._book = run.attention, run.journal, run.book
        book = run.book
        self._averages = OwnAverages(lambda: book.optimizers)
        self._rates = Rates()
        # The tape outlives its run, and must not hold it.
        blended = weakref.WeakMethod(self._blended)

        def blends(*call: Any) -> None:
            listener = blended()
            if listener is not None:
                listener(*call)

        run.losses.tape.on_blend = blends

    def scheduler_stepped(self, scheduler: Any) -> None:
        """A learning rate scheduler has made a step."""
        self._rates.scheduled()
        optimizer = getattr(scheduler, "optimizer", None)
        own = parameters_of(optimizer) if isinstance(optimizer, Optimizer) else ()
        self._journal.add(
            SchedulerStep(
                where=user_location(),
                scheduler=f"{id(scheduler):x}",
                stores=self._book.stores(id(p) for p in own),
                horizon=_horizon(scheduler),
            )
        )

    def average_updated(self, average: Any, model: Any) -> None:
        """A moving average has taken in the weights of a model."""
        own = model.parameters() if isinstance(model, torch.nn.Module) else ()
        stores = self._book.stores(id(p) for p in own)
        self._journal.add(AverageUpdate(where=user_location(), average=f"{id(average):x}", stores=stores))

    def _blended(self, name: str, args: Any, kwargs: Any) -> None:
        """An operation that may take weights into an average is about to be called, by the script or by a package.

        A package's own averages are excluded, because they are watched where they are known.
        """
        for average, weight in () if self._attention.idle else self._averages.seen(name, args, kwargs):
            where = user_location()
            if not where.through:
                self._journal.add(AverageUpdate(where=where, average=average, stores=self._book.stores((id(weight),))))

    def notice(self, where: Location) -> None:
        """Emit that a learning rate was changed manually since the last comparison, if one was."""
        for optimizer in self._rates.look(self._book.optimizers):
            name = self._book.names.get(id(optimizer), type(optimizer).__name__)
            stores = self._book.stores(id(p) for p in parameters_of(optimizer))
            self._journal.add(SchedulerStep(where=where, scheduler=f"the rate of {name}", stores=stores, by_hand=True))

    def stepped(self) -> None:
        """An optimizer has stepped: what it has made of its own rate is not done by hand."""
        self._rates.stepped(self._book.optimizers)


def _horizon(scheduler: Any) -> int | None:
    """The number of steps that a scheduler was made for, if it has one: Transformers' bind it to their lambdas.

    timm's schedulers have a number of updates or of epochs.
    """
    said = [getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")]
    said += [getattr(scheduler, "t_initial", None)] if not getattr(scheduler, "t_in_epochs", False) else []
    bound = (getattr(function, "keywords", {}) for function in getattr(scheduler, "lr_lambdas", ()))
    said += [keywords.get(NAME_OF_LENGTH) for keywords in bound]
    return next((h for h in said if isinstance(h, int) and not isinstance(h, bool)), None)

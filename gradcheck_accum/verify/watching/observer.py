"""Watches a running loop: turns what PyTorch does into events, and keeps each window's gradients for the verdict.

The observer itself only combines the objects that do this, each for a part of what happens (`Backwards`, `Changes` of
gradients, `GradientsByHand`, `Schedules`, `Steps`), and decides whether they are notified at all.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, _global_optimizer_pre_hooks

from gradcheck_accum.engine.copied_models import CopyOfModel
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.verify.book.clips import ClipBook
from gradcheck_accum.verify.book.given_data import GivenData
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.holding import Wanted
from gradcheck_accum.verify.book.loaders import Loaders
from gradcheck_accum.verify.book.parameters import with_subclasses
from gradcheck_accum.verify.measure.measurer import Measurer
from gradcheck_accum.verify.provenance.counting import WindowCounters
from gradcheck_accum.verify.watching.arrivals import Arrivals
from gradcheck_accum.verify.watching.attention import Attention
from gradcheck_accum.verify.watching.awaited import Awaited
from gradcheck_accum.verify.watching.backwards import Backwards
from gradcheck_accum.verify.watching.batches import BatchCounter
from gradcheck_accum.verify.watching.changes import Changes
from gradcheck_accum.verify.watching.companion import Companion
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand, listed
from gradcheck_accum.verify.watching.journal import Journal
from gradcheck_accum.verify.watching.loss_reader import LossReader
from gradcheck_accum.verify.watching.manual_updates import UpdateByHand
from gradcheck_accum.verify.watching.returned_updates import UpdatesOfReturned
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.schedules import Schedules
from gradcheck_accum.verify.watching.step_measuring import StepMeasuring
from gradcheck_accum.verify.watching.steps import Steps
from gradcheck_accum.verify.watching.updates_by_hand import UpdatesByHand
from gradcheck_accum.verify.watching.uses_by_hand import UsesByHand

_P = ParamSpec("_P")


class Observer:
    """The observer of one run. It never changes the loop's own state."""

    def __init__(
        self, *, wanted: Wanted, engine: ReferenceEngine, max_windows: int | None, companion: Companion | None = None
    ) -> None:
        # No reference cycle may hold the observer: the run's model and optimizers would outlive it.
        book, losses = GradientBook(), LossReader(records=wanted.records or companion is not None)
        attention = Attention(losses.tape)
        self.arrivals = Arrivals(attention, book)
        measurer = Measurer(engine, wanted.records, self.arrivals.shards, book.sketcher)
        awaited = Awaited(book, measurer)
        uses = losses.tape.follower = UsesByHand(book, awaited)
        self.run = Run(
            wanted=wanted,
            attention=attention,
            losses=losses,
            batches=BatchCounter(),
            book=book,
            clips=ClipBook(book),
            journal=Journal(book),
            awaited=awaited,
            measurer=measurer,
            counters=WindowCounters(),
            given=GivenData(),
            uses=uses,
        )
        self._loaders = Loaders()
        self.schedules = Schedules(self.run)
        self.by_hand = GradientsByHand(self.run)
        # The tape outlives its run, and must not hold it.
        copies = weakref.WeakMethod(self.by_hand.copy_of)

        def copy_of(module: nn.Module) -> CopyOfModel | None:
            known = copies()
            return None if known is None else known(module)

        losses.tape.copy_of = copy_of
        self.changes = Changes(self.run, self.by_hand)
        self.backwards = Backwards(self.run, self.arrivals, self.changes, self.by_hand, self.schedules)
        measuring = StepMeasuring(self.run, self.by_hand, self.arrivals.shards, companion)
        self.comparer = measuring.comparer
        self.steps = Steps(
            self.run,
            self.arrivals,
            self.by_hand,
            self.changes,
            self.schedules,
            self.backwards,
            measuring,
            max_windows=max_windows,
        )
        self.returned = UpdatesOfReturned(self.run, self.by_hand, self.steps)
        self.updates = UpdatesByHand(self.run, self.steps, self.returned)
        if companion is None:
            self.backwards.updates = weakref.ref(self.updates)
        self._is_accompanied = companion is not None
        self.children = 0
        """How many processes that may train the loop has started."""
        self.threads_overlap = False
        """Whether several threads have trained at the same time."""

    # Notifications from PyTorch

    @property
    def idle(self) -> bool:
        """Whether what happens now is to be ignored."""
        return self.run.attention.idle

    def tell(self, whom: Callable[_P, object], *given: _P.args, **named: _P.kwargs) -> None:
        """Notify ``whom``, if what happens belongs to the loop, and to a window that is watched."""
        attention = self.run.attention
        if not attention.idle:
            with attention.unheard():
                whom(*given, **named)

    def notice_threads(self) -> None:
        """A backward or a step is entered: no other thread may be in one."""
        if self.run.attention.is_at_work_in_another_thread() or self.backwards.is_in_another_thread():
            self.threads_overlap = True

    def is_at_work(self) -> bool:
        """Whether what the calling thread does is our own reference's work."""
        return self.run.attention.is_at_work()

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got more parameters: to be known in windows that are watched later too."""
        if self.run.attention.elsewhere:
            return
        if not isinstance(optimizer, UpdateByHand):
            self.backwards.astray += self.updates.give_way()
            self.returned.other_training()
            self.returned.why_not = ""
        if self.run.attention.asleep:
            # Its parameters are listened to from the window that is watched next.
            self.run.book.adopt_unseen(optimizer)
        else:
            self.arrivals.adopt(optimizer)

    def step_begins(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` computes the update: where nothing is replayed, PyTorch's own have nothing to be seen.

        Nor where there is a companion: what the optimizer computes is part of no loss. A hook of the script's that runs
        before the step may change gradients.
        """
        is_pytorchs = type(optimizer).step.__module__.startswith("torch.optim.")
        hooks = len(_global_optimizer_pre_hooks) - 1 + len(optimizer._optimizer_step_pre_hooks)
        if is_pytorchs and not hooks and (self._is_accompanied or not self.run.losses.records):
            self.run.attention.look_away()

    def after_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned. Raises SeenEnough where no more are wanted."""
        if not self.run.attention.asleep:
            self.run.attention.look_again()
        self.tell(self.steps.after, optimizer)

    def nothing_to_see(self) -> AbstractContextManager[None]:
        """A block in which PyTorch clears gradients one by one: where nothing is replayed, none of it is seen."""
        return nullcontext() if self.run.losses.records else self.run.attention.unheard()

    def before_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` is entered, which clears the gradients of ``parameters``."""
        self.steps.about_to_clear({id(parameter) for parameter in parameters})
        self.steps.stop_if_enough()
        self.changes.before_zero(parameters)

    def loop_over(self) -> None:
        """The loop has ended: what it did to gradients by hand after its last call that is watched is seen now."""
        self.tell(self.returned.finish)
        last = self.run.journal.last
        if last is not None:
            self.tell(self.steps.about_to_clear, self.run.uses.written)
            self.tell(self.changes.notice, last.where, thoroughly=False)
        for records in self.run.awaited.left_over().values():
            self.steps.count(records)

    def before_grad(self, outputs: Any, inputs: Any, weights: Any) -> bool:
        """``torch.autograd.grad`` is entered; whether its gradients are those of watched parameters."""
        if self.idle or self.backwards.depth:
            return False
        if not self._is_accompanied:
            self.tell(self.returned.grad_begins, listed(inputs))
            if self.returned.why_not:
                return False
        return self.by_hand.before(outputs, inputs, weights)

    def module_called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module is called."""
        if self.run.attention.idle:
            return call(*args, **kwargs)
        return self.run.losses.tape.call_module(module, call, args, kwargs)

    def function_applied(self, function: type[Function], call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An autograd function of the loop's own is applied."""
        if self.run.attention.idle:
            return call(*args, **kwargs)
        return self.run.losses.tape.call_function(function, call, args, kwargs)

    def iterated(self, iterator: Any, loader: Any) -> None:
        """A data loader has made an iterator: to be known in windows that are watched later too."""
        self._loaders.iterated(iterator, loader)

    def drew(self, iterator: Any, batch: Any, is_first: bool) -> None:
        """A data loader's iterator gave a batch, the first of a pass over its data or another."""
        number = self._loaders.number_of(iterator)
        self.run.batches.drawn(iterator, number, is_first)
        self.run.given.drew(iterator, number, batch)

    def ended(self, iterator: Any) -> None:
        """A data loader's iterator has no more batches."""
        self.run.batches.ended(iterator)

    def checkpointed(self, function: Callable[..., Any], call: Callable[..., Any], args: Any) -> Any:
        """A function is run that is checkpointed, with ``args`` by ``call``."""
        return call(*args) if self.idle else self.run.losses.tape.call_checkpointed(function, call, args)

    def ran_on_rank(self, model: DistributedDataParallel) -> None:
        """A model has run forward whose gradients may be averaged over the ranks."""
        if torch.is_grad_enabled():
            self.arrivals.averaging.ran_forward(model)

    def process_started(self) -> None:
        """A process is started that may train, and is not watched."""
        self.children += 1

    # From when on, and until when

    def adopt_existing(self) -> None:
        """Add the optimizers that were created before watching began."""
        alive = _optimizers_alive()
        if alive:
            # Optimizers that are unreachable, but not collected yet, must not count.
            del alive
            gc.collect()
            alive = _optimizers_alive()
        for optimizer in alive:
            if getattr(optimizer, "param_groups", None):
                self.optimizer_made(optimizer)

    def restart(self, *, reads: bool) -> None:
        """Restart with the gradients as they are: what was seen before is forgotten.

        ``reads`` says whether gradients are read, and not only the events of what is done to them.
        """
        run = self.run
        self.returned.stop()
        run.journal.restart()
        run.awaited.restart()
        run.clips.forget()
        self.backwards.graphs.forget()
        self.steps.restart()
        run.choose_mode()
        if not reads:
            run.book.leave_unread()
            return
        run.book.look(run.book.parameters)
        run.book.close_part()


def _optimizers_alive() -> list[Optimizer]:
    # The type is checked, not the object: some objects emit a warning for isinstance.
    kinds = set(with_subclasses(Optimizer))
    objects = gc.get_objects()
    if kinds.isdisjoint(map(type, objects)):
        return []
    return [candidate for candidate in objects if type(candidate) in kinds]

"""Backwards: what each was called on, and what it added to which gradients."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

import torch

from gradcheck_accum.engine.lent_weights import is_parameter
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.transformed import as_outside
from gradcheck_accum.ledger.events import Backward, Cause, DataGradientRead, Opaque, Reason
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_sums import GradientSum, kind_of
from gradcheck_accum.verify.book.interning import Shared
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.provenance.counting import call_chain
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.arrivals import Arrivals
from gradcheck_accum.verify.watching.attention import is_of_the_loop
from gradcheck_accum.verify.watching.batches import data_of, identity_of
from gradcheck_accum.verify.watching.changes import Changes
from gradcheck_accum.verify.watching.framework_remedies import Remark, remark
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand
from gradcheck_accum.verify.watching.held_graphs import HeldGraphs
from gradcheck_accum.verify.watching.loss_reader import BackwardLosses
from gradcheck_accum.verify.watching.manual_updates import OwnSteps
from gradcheck_accum.verify.watching.rank_averaging import AVERAGED_OTHERWISE
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.schedules import Schedules

_NO_STORES = frozenset[str]()
"""One object for all events: Python creates a new object for each empty set, and a long run has very many events."""

PARTLY_AVERAGED = Reason(
    "one backward averages some of its gradients over the ranks and leaves others local: use one no_sync() for the "
    "whole model"
)
CHANGED_ON_ITS_WAY = Reason(
    "a hook on the parameters changes their gradients while they accumulate: change the complete gradient once, right "
    "before the step",
    Cause.BY_HAND,
)
RAISED = Reason(
    "a backward raised an exception, and what it had added by then is unknown: clear the gradients where the exception "
    "is caught"
)


class BeginsUpdates(Protocol):
    """Whoever has to know of a backward before anything else is done about it."""

    def backward_begins(self, losses: list[torch.Tensor], where: Location) -> None:
        """A backward of ``losses`` at ``where`` begins."""


class Backwards:
    """Enters each backward, when it has returned."""

    def __init__(
        self, run: Run, arrivals: Arrivals, changes: Changes, by_hand: GradientsByHand, schedules: Schedules
    ) -> None:
        self._run, self._by_hand = run, by_hand
        self._attention, self._journal, self._awaited = run.attention, run.journal, run.awaited
        self._losses, self._batches, self._book, self._clips = run.losses, run.batches, run.book, run.clips
        self._arrivals, self._changes, self._schedules = arrivals, changes, schedules
        self.depth = 0
        """How many backwards are under way, one inside another."""
        self._thread = 0
        """In which thread the outermost of them began."""
        self.begun = 0
        """How many have begun so far, but for those inside another."""
        self.astray = 0
        """How many have filled no gradient of an optimizer's parameters."""
        self.own_steps = OwnSteps()
        self.updates: weakref.ref[BeginsUpdates] | None = None
        """Finds the weights that no optimizer has."""
        self.remarks: dict[tuple[str, int], Remark] = {}
        """What a framework stated about the backwards of a line, by path and line."""
        self.graphs = HeldGraphs()
        self._backward_losses: tuple[BackwardLosses, Location, GradientSum] | None = None
        self._shared = Shared()
        self._reads_data = True
        """Whether it is known what data's gradient the last backward was for, or there is no backward yet."""
        # The tape outlives its run, and must not hold it.
        read = weakref.WeakMethod(self._gradient_read)

        def reads(tensor: torch.Tensor) -> None:
            listener = read()
            if listener is not None:
                listener(tensor)

        run.losses.tape.on_gradient_read = reads
        weights = weakref.ref(run.book)

        def is_weight(tensor: torch.Tensor) -> bool:
            book = weights()
            return is_parameter(tensor) or (book is not None and id(tensor) in book.parameters)

        def as_weight(tensor: torch.Tensor) -> torch.Tensor:
            book = weights()
            return as_outside(tensor) if book is None else book.as_weight(tensor)

        run.losses.tape.is_weight, run.losses.tape.as_weight = is_weight, as_weight

    def before(self, losses: Any, weights: Any) -> None:
        """``backward`` is entered; ``weights`` is its gradient argument."""
        self.depth += 1
        if self.depth > 1:
            # Reentrant checkpointing runs backwards inside a backward: what they give is part of the outer one's.
            return
        self.begun += 1
        self._thread = threading.get_ident()
        where = user_location()
        updates = None if self.updates is None else self.updates()
        if updates is not None:
            updates.backward_begins([losses] if isinstance(losses, torch.Tensor) else list(losses), where)
        self._run.choose_mode()
        self._changes.before_backward(where)
        self._schedules.notice(where)
        tensors = [losses] if isinstance(losses, torch.Tensor) else list(losses)
        stands = self._by_hand.copies_below(tensors)
        tape = self._losses.tape
        tape.through_copies = stands is not None
        backward_losses = self._losses.read(tensors, weights, self._batches.drawn_since, presumes=True)
        tape.through_copies = False
        if stands is not None:
            self._by_hand.of_copies(stands, backward_losses, where)
        before = self._batches.losses_before(where, backward_losses.program, goes_on=self._losses.tape.goes_on)
        if before:
            backward_losses = backward_losses.numbered(before)
        reading = backward_losses.reading
        if where.through and where.place not in self.remarks:
            self.remarks[where.place] = remark(where, reading.terms)
        for node in reading.reductions[:1]:
            self.graphs.mark(node)
        part = self._book.part_of(kind_of(where, reading.terms, self._batches.current_pass), reading.scale)
        self._backward_losses = backward_losses, where, part
        self._arrivals.begin()

    def is_in_another_thread(self) -> bool:
        """Whether a backward is under way in another of the loop's threads than the calling one."""
        return bool(self.depth) and self._thread != threading.get_ident() and is_of_the_loop()

    def after(self, failed: bool) -> None:
        """``backward`` has returned."""
        self.depth -= 1
        if self.depth or self._backward_losses is None:
            return
        backward_losses, where, part = self._backward_losses
        reading = backward_losses.reading
        arrived, self._backward_losses = self._arrivals.end(), None
        is_of_copies = self._by_hand.end_of_copies(failed)
        if arrived is None:
            return
        stores, cut_off = self._book.stores(arrived), self._cut_off(backward_losses)
        self._losses.next_segment()
        if not arrived:
            if is_of_copies:
                return
            self.astray += not self._book.sharded
            self._losses.went_astray(reading)
            if not self._journal.steps:
                self._look_for_own_steps(reading, where)
            return
        self._losses.next_micro_batch()
        squares = {key: own / reading.scale**2 if reading.scale != 1.0 else own for key, own in arrived.items()}
        averaged = self._arrivals.averaging.of_backward(arrived)
        chain = call_chain()
        micro_batch = self._batches.backward(
            where, backward_losses.program, chain, cut_off, losses_before=backward_losses.before
        )
        given = self._run.given.take(backward_losses.program)
        event = Backward(
            where=where,
            micro_batch=micro_batch,
            stores=stores,
            terms=self._shared.terms(reading.terms),
            epoch=self._batches.current_pass,
            given=self._batches.given,
            batch=identity_of(backward_losses.program),
            grad_scaled=reading.scale != 1.0,
            synced=averaged.synced if averaged is not None else None,
            ranks=averaged.ranks if averaged is not None else 1,
            kept_apart=averaged is not None and averaged.kept_apart,
            rescale=averaged.rescale if averaged is not None else 1.0,
            cut_off=cut_off - stores if cut_off else _NO_STORES,
            computation=self._run.given.computation(where, given),
            of_one_batch=backward_losses.of_one_batch or (backward_losses.adds_up_none and given.is_one_batch),
        )
        self._journal.add(event)
        self._reads_data = False
        self._clips.forget()
        self._awaited.reached(arrived)
        self._run.uses.late.reached(arrived)
        if averaged is not None and (averaged.kept_apart or (averaged.keys and averaged.ranks != 1)):
            # What the other ranks added is seen when the step is compared, and not here.
            self._book.look(averaged.keys)
            changed = AVERAGED_OTHERWISE if averaged.reworked else None
        else:
            changed = CHANGED_ON_ITS_WAY if self._book.arrived(arrived) else None
        record = Record(event, part, squares, backward_losses.program, changed, chain, given)
        record.presumed = backward_losses.presumed
        record.unread = frozenset(arrived).intersection(self._book.unread)
        self._awaited.add(record, reading.scale)
        self._run.uses.backward_ends()
        if record.changed:
            self._changes.any_by_hand = True
            self._journal.add(Opaque(where=where, stores=event.stores, reason=record.changed))
        if backward_losses.unknown:
            self._journal.add(Opaque(where=where, stores=event.stores, reason=Reason(backward_losses.unknown)))
        if averaged is not None and averaged.synced is None:
            self._journal.add(Opaque(where=where, stores=event.stores, reason=PARTLY_AVERAGED))
        if failed:
            self._journal.add(Opaque(where=where, stores=event.stores, reason=RAISED))

    def _cut_off(self, backward_losses: BackwardLosses) -> frozenset[str]:
        """The stores of the networks that made data of a loss, of which its graph knows nothing."""
        if len(self._book.optimizers) < 2 or backward_losses.program is None:
            return _NO_STORES
        with self._losses.tape.paused():
            modules = self._losses.tape.makers_of(data_of(backward_losses.program))
        return self._book.stores(id(parameter) for module in modules for parameter in module.parameters())

    def _gradient_read(self, tensor: torch.Tensor) -> None:
        """The loop reads ``.grad`` of a tensor: of data, it is what the last backward was for."""
        if self._attention.idle or not tensor.is_leaf or not tensor.requires_grad:
            return
        if self._losses.tape.is_weight(tensor):
            return
        self._losses.carried.read(tensor)
        if not self._reads_data:
            self._reads_data = True
            self._journal.add(DataGradientRead(where=user_location()))

    def _look_for_own_steps(self, reading: LossReading, where: Location) -> None:
        """A backward filled no optimizer's gradients before any step: look for what changes the weights instead."""
        self.own_steps.filled(reading.reductions, where)
        found, tape = weakref.ref(self.own_steps), self._losses.tape

        def written(tensor: torch.Tensor) -> None:
            own = found()
            if own is None or not own.is_looking:
                tape.on_write = None
            else:
                own.written(tensor)

        if self.own_steps.is_looking:
            tape.on_write = written

"""Steps of optimizers: when each begins and ends, which are parts of others, and which are not real steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger.events import GraphsHeld, Opaque, Reason, Step, WindowBound
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.held import Held
from gradcheck_accum.verify.book.interning import Shared
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Measured, Record
from gradcheck_accum.verify.book.steps_in_steps import calls_step_of_pytorch
from gradcheck_accum.verify.book.unread import is_cleared
from gradcheck_accum.verify.measure.shadow_step import ShadowStep
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.arrivals import Arrivals
from gradcheck_accum.verify.watching.backwards import Backwards
from gradcheck_accum.verify.watching.changes import CLEARED_BY_HAND, READ_BETWEEN, SCALED, Changes
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand
from gradcheck_accum.verify.watching.manual_updates import UpdateByHand
from gradcheck_accum.verify.watching.objectives import merged
from gradcheck_accum.verify.watching.presumed_counts import put_right
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.schedules import Schedules
from gradcheck_accum.verify.watching.step_measuring import INSIDE_BACKWARD, SKIPPED, StepMeasuring

UNUSED_CLOSURE = (
    "a step that was given a closure and never called it uses no gradient that this closure has computed: to compare, "
    "call step() without it"
)

BY_HAND = "by hand"
"""The name of the optimizer of steps that the loop itself makes."""


@dataclass(frozen=True, slots=True)
class OfReturned:
    """What a step by hand uses of gradients that were returned: the ``gradients`` that it uses, by parameter.

    ``rates_alone`` means that all else that it multiplies them by is known, and counts nothing; ``counted_by`` is what
    the source counted to when it began.
    """

    gradients: dict[int, Held | None]
    rates_alone: bool
    counted_by: WindowBound | None


class SeenEnough(BaseException):
    """The requested number of windows has been watched; no `except Exception` of a script catches this."""


class Steps:
    """Records each step: right before it is made, or when the closure that computes its gradient has returned."""

    def __init__(
        self,
        run: Run,
        arrivals: Arrivals,
        by_hand: GradientsByHand,
        changes: Changes,
        schedules: Schedules,
        backwards: Backwards,
        measuring: StepMeasuring,
        *,
        max_windows: int | None,
    ) -> None:
        self._journal, self._awaited, self._book, self._clips = run.journal, run.awaited, run.book, run.clips
        self._counters, self._uses, self._losses = run.counters, run.uses, run.losses
        self._arrivals, self._by_hand, self._changes = arrivals, by_hand, changes
        self._schedules, self._backwards, self._measuring = schedules, backwards, measuring
        self._max_windows = max_windows
        self.accumulation_steps: int | None = None
        """K, where the caller states it."""
        self.on_step: Callable[[int], object] | None = None
        """Called after every step with the number of steps so far."""
        self._shared = Shared()
        self._scaler_step: list[bool] = []
        """Of each ``scaler.step`` that is under way, whether its optimizer has stepped."""
        self._pending: tuple[Measured, ShadowStep | None] | None = None
        self._stepping: frozenset[int] = frozenset()
        """The parameters of the step that is pending."""
        self._begun_at = 0
        """How many backwards had begun when it was."""
        self._inner: set[int] = set()
        """Optimizers whose step is a part of another's."""
        self._outer: dict[int, Location] = {}
        """Optimizers whose class has a ``step`` of its own under way, which is to call that of PyTorch's class."""
        self._until_inner: set[int] = set()
        """Those of them in which that of PyTorch's class is not under way."""
        self._closure_calls: dict[int, int] = {}

    def restart(self) -> None:
        """Forget a scaler's step that was under way while the loop was not watched, and has ended since."""
        self._scaler_step.clear()
        self._outer.clear()
        self._until_inner.clear()

    def before_scaler(self) -> None:
        """``scaler.step`` is entered, which may look for inf in gradients by writing into them."""
        self._scaler_step.append(False)
        self._uses.looks_away()

    def after_scaler(self, optimizer: Optimizer) -> None:
        """``scaler.step`` has returned, with or without a step of the optimizer."""
        if not self._scaler_step:
            return
        if not self._scaler_step.pop():
            step = self._event(optimizer, skipped=True)
            self._journal.add(step)
            records = self._awaited.take(optimizer)
            self._awaited.let_go(records)
            self._clips.forget(optimizer)
            self._uses.forget()
            self._uses.step_ends({id(p) for p in parameters_of(optimizer)})
            self._journal.enter(Measured(step, records, unmeasured=SKIPPED), self._awaited.events())
            self._awaited.unscaled.discard(id(optimizer))

    def before(self, optimizer: Optimizer, with_closure: bool) -> None:
        """``optimizer.step`` is entered, the weights still those of the window's start.

        Where a class of the script's own calls the step of PyTorch's class, that is the step: what is done to gradients
        before it is done by hand.
        """
        if id(optimizer) not in self._outer and calls_step_of_pytorch(type(optimizer)):
            self._outer[id(optimizer)] = user_location()
            self._until_inner.add(id(optimizer))
            return
        self._until_inner.discard(id(optimizer))
        if with_closure:
            # What the step uses is complete when its closure has run.
            self._closure_calls[id(optimizer)] = 0
        else:
            self._begin(optimizer)

    def before_closure(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` calls its closure.

        An optimizer that calls it again, with other weights (a line search), has used the gradient that is there: each
        call is a window, whose gradient is compared. The update that is made of several gradients is not.
        """
        if id(optimizer) not in self._closure_calls:
            return
        self._closure_calls[id(optimizer)] += 1
        if self._closure_calls[id(optimizer)] > 1 and self._pending is not None:
            (measured, _), self._pending = self._pending, None
            self._is_used(optimizer)
            self._measuring.after(optimizer, measured, None, ends_step=False)

    def after_closure(self, optimizer: Optimizer) -> None:
        """The closure of ``optimizer.step`` has returned."""
        if id(optimizer) in self._closure_calls:
            self._begin(optimizer)

    def _begin(self, optimizer: Optimizer) -> None:
        self._arrivals.adopt(optimizer)
        where = self._place_of(optimizer)
        if not self._changes.notice(where, is_whole=True) and self._pending is not None:
            own = frozenset(id(p) for p in parameters_of(optimizer))
            if own < self._pending_parameters():
                # An optimizer distributes its parameters over others (or over the ranks): it has been measured as a
                # whole, with the gradients as they still are.
                self._inner.add(id(optimizer))
                self._awaited.take(optimizer)
                return
            if own == self._pending_parameters():
                # An optimizer wraps another: the step is the other's, and what follows it does not matter.
                self._take_back()
        self._uses.late.used({id(p) for p in parameters_of(optimizer)})
        # A fused optimizer is called all the same, and leaves its weights as they are.
        step = self._event(optimizer, skipped=bool(getattr(optimizer, "found_inf", False)))
        self._schedules.notice(where)
        if self._scaler_step:
            self._scaler_step[-1] = True
        inside_backward = bool(self._backwards.depth)
        closure_calls = self._closure_calls.get(id(optimizer), 0)
        if not inside_backward and closure_calls < 2:
            # Inside a backward its own graph is still in use, and inside a step those of its closure's earlier calls.
            self._journal.add(GraphsHeld(where=where, count=self._backwards.graphs.count()))
        records = self._awaited.take(optimizer)
        self.count(records)
        self._merge(records, self._counters.counted(step))
        if inside_backward:
            # The backward under way is entered when it has ended: the window does not hold it.
            self._journal.add(Opaque(where=where, stores=step.stores, reason=Reason(INSIDE_BACKWARD)))
        self._journal.add(step)
        self._arrivals.averaging.stepped()
        self._losses.carried.step()
        self._pending = self._measuring.before(
            optimizer,
            step,
            records,
            inside_backward=inside_backward,
            closure_calls=closure_calls,
        )
        self._stepping = frozenset(id(p) for p in parameters_of(optimizer))
        self._begun_at = self._backwards.begun
        self._uses.step_begins(is_pytorchs=type(optimizer).step.__module__.startswith("torch.optim."))

    def is_in_step_of_own_class(self, optimizer: Optimizer) -> bool:
        """Whether the ``step`` of a class of the script's own is under way, and not yet that of PyTorch's class."""
        return id(optimizer) in self._until_inner

    def about_to_clear(self, cleared: Collection[int]) -> None:
        """The gradients of the parameters ``cleared`` are about to be: where the loop has used them, it has stepped.

        That is so if it has written into the weights what it computed from their gradients, and no optimizer has used
        these. The weights have changed since, but what waits is replayed with what they were.
        """
        written, where = self._uses.written, self._uses.at
        if where is None or written.isdisjoint(cleared):
            return
        if all(is_cleared(self._book.gradient(key)) for key in written):
            # It is too late to compare them.
            self._journal.add(Opaque(where=where, stores=self._book.stores(written), reason=CLEARED_BY_HAND))
        elif self.is_inside_backward or self._book.sharded or any(self._book.is_scaled(key) for key in written):
            # What becomes of a grad scaler's scale is the loop's own affair.
            self._journal.add(Opaque(where=where, stores=self._book.stores(written), reason=SCALED))
        else:
            # Where there is no optimizer, the write itself decides.
            for optimizer in self._book.users_of(written):
                if not isinstance(optimizer, UpdateByHand):
                    self.made_by_hand(optimizer, where)
        self._uses.forget()

    @property
    def is_inside_backward(self) -> bool:
        """Whether a backward is under way."""
        return bool(self._backwards.depth)

    def made_by_hand(
        self, optimizer: Optimizer, where: Location, *, is_now: bool = False, of_returned: OfReturned | None = None
    ) -> None:
        """Record a step that the loop itself makes, at ``where``, of what waits for ``optimizer``.

        ``optimizer`` only says which parameters these are. ``is_now`` means that the step is about to be made, so that
        the source's counters have their values of it. ``of_returned`` is given if it uses returned gradients.
        """
        self._changes.notice(where, is_whole=True)
        own = {id(p) for p in parameters_of(optimizer)}
        stores = self._book.stores(own)
        if not self._uses.late.are_whole(own):
            self._journal.add(Opaque(where=where, stores=stores, reason=READ_BETWEEN))
        self._schedules.notice(where)
        callers = [record.called_from for record in self._awaited.of(optimizer)]
        counted_by = None if of_returned is None else of_returned.counted_by
        step = Step(
            where=where,
            optimizer=BY_HAND,
            stores=stores,
            accumulation_steps=self.accumulation_steps,
            counted_by=self._counters.at_step(BY_HAND, callers) if is_now else counted_by,
            by_hand=True,
            rates_alone=of_returned is not None and of_returned.rates_alone,
            used=self._uses.used,
            unread=self._is_unread(optimizer),
        )
        self._journal.add(GraphsHeld(where=where, count=self._backwards.graphs.count()))
        records = self._awaited.take_all(self._book.sharing(optimizer))
        self.count(records)
        self._merge(records, self._counters.counted(step))
        self._journal.add(step)
        self._arrivals.averaging.stepped()
        self._measuring.made_by_hand(optimizer, step, records, None if of_returned is None else of_returned.gradients)
        self._is_used(optimizer)
        self._uses.forget()
        self._uses.step_ends(own)
        if self.on_step is not None:
            self.on_step(self._journal.steps)

    def count(self, records: Iterable[Record]) -> None:
        """Ask how many targets the losses of backwards have counted, where that was presumed."""
        changed = put_right(records, self._losses.counts)
        if changed:
            self._journal.put_right(changed)

    def _merge(self, records: Sequence[Record], counted: int | None) -> None:
        """Give backwards over one micro-batch its number."""
        found = merged(records, counted)
        if found:
            changed = {event: replace(own, terms=self._shared.terms(own.terms)) for event, own in found.items()}
            self._journal.put_right(changed)
            for record in records:
                record.event = changed.get(record.event, record.event)

    def _pending_parameters(self) -> frozenset[int]:
        """The parameters of the step that is pending, as long as no backward follows it."""
        return self._stepping if self._backwards.begun == self._begun_at else frozenset()

    def _event(self, optimizer: Optimizer, skipped: bool = False) -> Step:
        stores = self._book.stores(id(p) for p in parameters_of(optimizer))
        name = self._book.names.get(id(optimizer), type(optimizer).__name__)
        scaled = bool(self._scaler_step) or skipped
        window = self._awaited.of(optimizer)
        return Step(
            where=self._place_of(optimizer),
            optimizer=name,
            stores=stores,
            accumulation_steps=self.accumulation_steps,
            counted_by=self._counters.at_step(name, (record.called_from for record in window)),
            through_scaler=scaled,
            skipped=skipped,
            again=self._closure_calls.get(id(optimizer), 0) > 1,
            unread=self._is_unread(optimizer),
        )

    def _is_unread(self, optimizer: Optimizer) -> bool:
        """Whether a gradient that waits for a step of ``optimizer`` was not read."""
        own = {id(p) for p in parameters_of(optimizer)}
        waits = any(not record.unread.isdisjoint(own) for record in self._awaited.of(optimizer))
        return waits or self._book.is_unread(optimizer)

    def _place_of(self, optimizer: Optimizer) -> Location:
        """Where the loop calls the step that is about to be made."""
        return self._outer.get(id(optimizer)) or user_location()

    def _take_back(self) -> None:
        """The pending step was not a real one."""
        if self._pending is not None:
            (measured, _), self._pending = self._pending, None
            self._journal.take_back(measured.step)

    def after(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned. Raises SeenEnough where no more are wanted."""
        if id(optimizer) in self._until_inner:
            # That of the script's own class: what it has done since PyTorch's step matters no more.
            self._until_inner.discard(id(optimizer))
            del self._outer[id(optimizer)]
            if self._scaler_step:
                # If PyTorch's was not called, this was not the scaler's doing.
                self._scaler_step[-1] = True
            return
        if id(optimizer) in self._outer:
            self._until_inner.add(id(optimizer))
        called = self._closure_calls.pop(id(optimizer), 1)
        if id(optimizer) in self._inner:
            self._inner.discard(id(optimizer))
            return
        if not called:
            self._give_up(optimizer)
        if self._pending is None:
            return
        (measured, shadow), self._pending = self._pending, None
        self._schedules.stepped()
        self._is_used(optimizer)
        self._uses.step_ends(self._stepping)
        inside_backward = bool(self._backwards.depth)
        self._measuring.after(optimizer, measured, shadow if called == 1 else None, ends_step=not inside_backward)
        if not inside_backward:
            self._changes.after_step(measured.step.where)
        if self.on_step is not None:
            self.on_step(self._journal.steps)
        self.stop_if_enough()

    def stop_if_enough(self) -> None:
        """Raise SeenEnough where no more steps are wanted."""
        if self.have_been_seen:
            raise SeenEnough

    def _is_used(self, optimizer: Optimizer) -> None:
        """The gradients that an optimizer has read are those of a step."""
        self._clips.forget(optimizer)
        self._by_hand.forget({id(p) for p in parameters_of(optimizer)})
        self._awaited.has_stepped(optimizer)

    @property
    def have_been_seen(self) -> bool:
        """Whether as many steps were made as are wanted."""
        return self._max_windows is not None and self._journal.steps >= self._max_windows

    def _give_up(self, optimizer: Optimizer) -> None:
        """A step whose closure was never called has been made."""
        step = self._event(optimizer)
        self._journal.add(Opaque(where=step.where, stores=step.stores, reason=Reason(UNUSED_CLOSURE)))
        self._journal.add(step)
        self._pending = Measured(step, self._awaited.take(optimizer), unmeasured=UNUSED_CLOSURE), None

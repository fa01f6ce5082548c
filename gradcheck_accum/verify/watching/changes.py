"""What is done to gradients between the backwards and the step: cleared, clipped, unscaled, or changed by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger.events import (
    Cause,
    ChangedByStep,
    Clip,
    Event,
    Opaque,
    Reason,
    Rework,
    ScaleGrads,
    ScalerUpdate,
    Unscale,
    ZeroGrad,
)
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import UNREAD
from gradcheck_accum.verify.book.clips import BY_HAND, ClipCall, change_by
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.unread import PARTLY_CLEARED, is_cleared
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.vectors.sharded import whole_norm
from gradcheck_accum.verify.watching.gradient_operations import GradientOperations
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand
from gradcheck_accum.verify.watching.late_changes import Late
from gradcheck_accum.verify.watching.run import Run

CHANGED_WEIGHTS = Reason(
    "the weights were changed manually, and the gradients cleared without a step: only gradients passed to an "
    "optimizer's step() are compared",
    Cause.BY_HAND,
)
CLEARED_BY_HAND = Reason(
    "the weights were updated manually from gradients that were then cleared by hand, before they could be compared: "
    "clear them with zero_grad()",
    Cause.USED_BY_HAND,
)
SCALED = Reason(
    "the weights were updated manually from gradients that still have the scale of a GradScaler, or are sharded: what "
    "becomes of them is unknown, so unscale them before that",
    Cause.USED_BY_HAND,
)
READ_BETWEEN = Reason(
    "the weights are updated manually, perhaps also from gradients that the loop read between the micro-batches of the "
    "window: accumulate in .grad, and read it once, after the last backward",
    Cause.USED_BY_HAND,
)
AT_SEVERAL_WEIGHTS = Reason(
    "gradients that were computed with different weights add up: the weights were moved manually by what was computed "
    "from the first of them, and these were not cleared before the next backward(): if they were only for that, call "
    "zero_grad() in between",
    Cause.USED_BY_HAND,
)


class Changes:
    """Records what changes ``.grad``: PyTorch's own calls, and whatever else was done since the last comparison."""

    def __init__(self, run: Run, by_hand: GradientsByHand) -> None:
        self._journal, self._awaited, self._losses = run.journal, run.awaited, run.losses
        self._counters, self._uses = run.counters, run.uses
        self._book, self._clips, self._by_hand = run.book, run.clips, by_hand
        self._operations = GradientOperations(run.book)
        self._late: dict[frozenset[str], Mapping[int, Late]] = {}
        """By store: what was done by hand to its gradients, as found when they were last looked at."""
        run.losses.tape.on_scale = self._operations.scales
        run.losses.tape.on_clamp = self._operations.clamps
        self.any_by_hand = False
        """Whether the loop has changed weights or gradients by hand, other than by clearing these."""
        self._partly: dict[str, Opaque] = {}
        """By store: that only some of its gradients are cleared so far; the next call may clear the others."""

    def notice(self, where: Location, *, thoroughly: bool = True, is_whole: bool = False) -> bool:
        """Emit changes of ``.grad`` by other means than a watched call since the last comparison, if there are any.

        Clearing is over: what is not cleared by now stays. ``is_whole`` means that it may be a whole window's.
        """
        for opaque in self._partly.values():
            self._journal.add(opaque)
        self._partly.clear()
        if self._book.unread:
            self._look_at_unread(where, is_whole=is_whole)
        return self._look(where, thoroughly=thoroughly, is_whole=is_whole)

    def _look_at_unread(self, where: Location, *, is_whole: bool) -> None:
        """Emit what was done by hand to gradients that are not read, as far as it shows, and what is left of them."""
        with self._losses.tape.paused():
            events: list[Event] = self._book.read_left_over(where)
        changed = self._book.stores(self._book.changed_unread()) if is_whole else frozenset[str]()
        if changed:
            events.append(Opaque(where=where, stores=changed, reason=UNREAD))
        for event in events:
            self._journal.add(event)
        self.any_by_hand = self.any_by_hand or not all(isinstance(event, ZeroGrad) for event in events)

    def before_backward(self, where: Location) -> None:
        """A backward is entered: what was done to gradients and weights until then was done before it."""
        self.notice(where, thoroughly=False)
        written, at = self._uses.written, self._uses.at
        if written and at is not None:
            cleared = all(is_cleared(self._book.gradient(key)) for key in written)
            reason = CLEARED_BY_HAND if cleared else AT_SEVERAL_WEIGHTS
            self._journal.add(Opaque(where=at, stores=self._book.stores(written), reason=reason))
        self._uses.forget()
        self._uses.late.backward_begins()
        self._operations.backward_begins()
        self._awaited.moved.settle()

    def _look(self, where: Location, *, thoroughly: bool, clears: bool = False, is_whole: bool = False) -> bool:
        """Emit changes by other means; ``clears`` means that a clearing is about to follow.

        There is no backward between the two, so the source's counters have the same values for both.
        """
        taken_in = self._by_hand.take_in(where, thoroughly=thoroughly)
        with self._losses.tape.paused():
            # What is multiplied to find out what was done to gradients is not done to them.
            events, changed = self._book.changes(
                where,
                self._operations.limits,
                thoroughly=thoroughly,
                as_they_were=self._as_they_were if is_whole else None,
            )
        for event in events:
            if isinstance(event, Rework):
                event = self._reworked(event)
            if clears and isinstance(event, ZeroGrad):
                event = self._counted(event)
            if isinstance(event, ScaleGrads):
                scaled = {key for key, cell in self._book.cells().items() if cell in event.stores}
                event = replace(event, read_between=not self._uses.late.are_whole(scaled))
            self._journal.add(self._operations.with_origins(event, changed))
        changes = any(not isinstance(event, ZeroGrad) for event in events)
        self.any_by_hand = self.any_by_hand or taken_in or changes
        clamped = self._clamped(events, changed)
        if thoroughly or changed:
            self._operations.forget()
        self._late.clear()
        # A clearing is one, whoever makes it: nothing that was clipped is left to compare.
        cells, reworked = self._book.cells(), {s for e in events if isinstance(e, Rework) for s in e.stores}
        others = [key for key in changed if key not in clamped and cells.get(key) not in reworked]
        self._clips.changed(key for key in others if not is_cleared(self._book.gradient(key)))
        return taken_in or bool(events)

    def _as_they_were(self, keys: Collection[int]) -> dict[int, torch.Tensor]:
        """The gradients of a store's parameters before the loop reworked them, as far as that is known."""
        late = self._late[self._book.stores(keys)] = self._uses.late.of(keys)
        return {key: each.as_it_was() for key, each in late.items()}

    def _reworked(self, event: Rework) -> Rework:
        """Record what the loop did by hand to the whole gradients of a store; the event, at its place."""
        late = self._late[event.stores]
        self._clips.begin(late, as_they_were={key: each.as_it_was() for key, each in late.items()})
        self._clips.end(ClipCall(frozenset(late), BY_HAND, 0.0, 0.0))
        first = next(iter(late.values()))
        return replace(
            event,
            where=first.where,
            only_adds=all(each.only_adds for each in late.values()),
            origins=frozenset[str]().union(*(each.origins for each in late.values())),
        )

    def _clamped(self, events: Iterable[Event], changed: Collection[int]) -> set[int]:
        """Record the clips among these events, which the loop has made by hand; the parameters that they clipped.

        The gradients of some were ``changed`` by them; others were within the limits.
        """
        found: set[int] = set()
        for event in events:
            if isinstance(event, Clip):
                keys, limit = self._operations.clamped(event.stores)
                self._clips.begin(keys.intersection(changed), before_last_change=True)
                self._clips.end(ClipCall(keys, "value", limit, 0.0))
                found |= keys
        return found

    def after_step(self, where: Location) -> None:
        """An optimizer has stepped: what it did to the gradients that it had used, it did for no step of the loop."""
        with self._losses.tape.paused():
            events, _ = self._book.changes(where, thoroughly=False)
        left: set[str] = set(self._book.stores(self._book.changed_unread()))
        for event in events:
            if isinstance(event, (Unscale, ZeroGrad)):
                self._journal.add(event)
            elif isinstance(event, (Clip, Opaque, ScaleGrads)):
                left |= event.stores
        if left:
            self._journal.add(ChangedByStep(where=where, stores=frozenset(left)))

    def before_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` is entered; what values are cleared does not matter."""
        where = user_location()
        self._look(where, thoroughly=False, clears=True)
        if self._awaited.has_changed(parameters):
            # A manual step, or the first of two that belong together (sharpness-aware minimization).
            stores = self._book.stores(id(p) for p in parameters)
            self._journal.add(Opaque(where=where, stores=stores, reason=CHANGED_WEIGHTS))
            self.any_by_hand = True
        # It reads gradients, but not for the loop.
        self._uses.looks_away()

    def after_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` has returned."""
        self._uses.looks_again()
        whole, part = self._book.cleared({id(p) for p in parameters} & self._book.parameters.keys())
        where = user_location()
        if whole:
            self._journal.add(self._counted(ZeroGrad(where=where, stores=whole)))
        for store in whole:
            self._partly.pop(store, None)
        for store in part:
            self._partly.setdefault(store, Opaque(where=where, stores=frozenset({store}), reason=PARTLY_CLEARED))

    def _counted(self, clearing: ZeroGrad) -> ZeroGrad:
        """The clearing with what the counters of steps have come to, and in whose loop it happens."""
        waiting = self._awaited.left_over()
        return replace(clearing, counted=self._counters.now(waiting), within=self._counters.stepping(waiting))

    def before_clip(self, parameters: Any) -> None:
        """A clip is entered: the gradient before it is what the large batch is compared with."""
        self.notice(user_location(), is_whole=True)
        self._clips.begin([id(p) for p in parameters])
        self._uses.looks_away()

    def after_clip(self, parameters: Any, kind: str, limit: float, norm_type: float, norm: Any = None) -> None:
        """A clip has returned; ``norm`` is its result."""
        self._uses.looks_again()
        keys = {id(p) for p in parameters} & self._book.parameters.keys()
        self._journal.add(Clip(where=user_location(), stores=self._book.stores(keys)))
        returned = norm.detach().clone() if type(norm) is torch.Tensor else None
        call = ClipCall(frozenset(keys), kind, limit, norm_type, whole_norm(norm), returned)
        self._clips.end(call)
        # A sketch cannot be clipped by value.
        unknown = self._book.sharded or (self._book.sketches and kind != "norm")
        change = None if unknown else change_by(call, norm)
        if change is None:
            self._book.look(keys)
        else:
            self._book.changed_by(keys, change)

    def before_unscale(self, optimizer: Optimizer) -> None:
        """A grad scaler is about to divide its scale out."""
        self.notice(user_location(), is_whole=True)
        self._uses.looks_away()

    def after_unscale(self, scaler: Any, optimizer: Optimizer) -> None:
        """A grad scaler has divided its scale out."""
        self._uses.looks_again()
        keys = {id(p) for p in parameters_of(optimizer)} & self._book.parameters.keys()
        self._awaited.unscaled.add(id(optimizer))
        self._journal.add(Unscale(where=user_location(), stores=self._book.stores(keys)))
        self._book.unscaled(keys, self._losses.scale_of(scaler))

    def scaler_updated(self, scaler: Any) -> None:
        """A grad scaler has updated its scale."""
        if not scaler.is_enabled():
            return
        self._awaited.unscaled.clear()
        self._journal.add(ScalerUpdate(where=user_location()))

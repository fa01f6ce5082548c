"""Folds a loop's events into its ledger: for every step, the micro-batches in its gradient."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradcheck_accum.ledger.by_products import History, set_by_products_apart
from gradcheck_accum.ledger.cleared_gradients import part
from gradcheck_accum.ledger.events import (
    Backward,
    Cause,
    ChangedByStep,
    Event,
    Factor,
    Opaque,
    Operation,
    Purpose,
    Reason,
    Rework,
    ScaleGrads,
    Step,
    Trace,
    ZeroGrad,
)
from gradcheck_accum.ledger.passes import Passes
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.windows import UNREAD, Entry, Fate, Ledger, Window

REWORKED_BETWEEN = Reason(
    "gradients were modified manually between the micro-batches of a window, and not by one factor for all of them: "
    "modify them once, after its last backward",
    Cause.BY_HAND,
)
CLEARED_AND_REWORKED = Reason(
    "gradients were cleared within a window and modified manually before its step, so what was cleared may have been "
    "put back: accumulate in .grad to compare",
    Cause.BY_HAND,
)
LEFT_CHANGED = Reason(
    "the optimizer's step changed the gradients that it used, as PyTorch's SGD with Nesterov momentum does on a GPU, "
    "and they were used again: clear them after each step"
)


@dataclass(slots=True)
class _StoreState:
    """The running state of one (optimizer, store) pair while events are folded."""

    optimizer: str
    store: str
    passes: Passes
    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    unknown: Reason | None = None
    rework: Rework | None = None
    """What was done by hand to the gradients that no step has used yet."""
    changed_by_step: bool = False
    """Whether a step has changed what is left in the store."""
    waiting: set[Backward] = field(default_factory=set)
    """The backwards whose gradients are not in the store yet."""

    def take(self, event: Event, steps: int) -> None:
        """Record an event; ``steps`` is the number of steps of the whole run before it."""
        self.events.append(event)
        match event:
            case Backward():
                if self.rework is not None:
                    self.unknown, self.rework = self.unknown or REWORKED_BETWEEN, None
                if self.changed_by_step:
                    self.unknown = self.unknown or LEFT_CHANGED
                self.entries.append(Entry(event, Fate.LIVE, grad_factors=_rescaled(event), epoch=self.passes.of(event)))
                self.waiting = {*self.waiting, event} if event.waits else set()
            case ScaleGrads():
                self.entries = [self._scaled(entry, event) for entry in self.entries]
            case Rework():
                only_adds = event.only_adds and (self.rework is None or self.rework.only_adds)
                origins = event.origins | (self.rework.origins if self.rework is not None else frozenset())
                self.rework = replace(event, only_adds=only_adds, origins=origins)
            case ChangedByStep():
                self.changed_by_step = True
            case ZeroGrad():
                self.rework, self.changed_by_step = None, False
                self.entries = [
                    replace(entry, fate=Fate.WIPED, wiped_by=event) if self._is_cleared_now(entry) else entry
                    for entry in self.entries
                    if entry.fate is not Fate.STALE
                ]
            case Opaque():
                self.unknown = self.unknown or event.reason
            case Step() if event.optimizer == self.optimizer:
                self._close(event, steps)

    def _is_cleared_now(self, entry: Entry) -> bool:
        return entry.fate is Fate.LIVE and entry.backward not in self.waiting

    def _scaled(self, entry: Entry, event: ScaleGrads) -> Entry:
        if entry.fate is Fate.WIPED or entry.backward in self.waiting:
            return entry
        # `replace` takes three times as long.
        factors = (*entry.grad_factors, event)
        return Entry(entry.backward, entry.fate, entry.wiped_by, factors, entry.by_product, entry.epoch)

    def _close(self, step: Step | None, index: int) -> None:
        stale = [entry for entry in self.entries if entry.fate is Fate.STALE]
        entries = [*stale, *(e for e in self.entries if e.fate is not Fate.STALE)] if stale else self.entries
        if step is None:
            entries = [replace(e, fate=Fate.LEFT) if e.fate is Fate.LIVE else e for e in entries]
        unknown, rework = self.unknown, self.rework
        if unknown is None and step is not None and self.changed_by_step:
            unknown = LEFT_CHANGED
        if unknown is None and rework is not None and _may_put_back(entries):
            unknown = CLEARED_AND_REWORKED
        window = Window(
            index, self.optimizer, self.store, tuple(entries), step, tuple(self.events), unknown, rework=rework
        )
        self.windows.append(window)
        self.rework = None
        self.entries = [e.as_stale() for e in entries if e.fate in (Fate.LIVE, Fate.STALE)]
        self.events = []
        self.waiting = set()

    def finish(self, steps: int) -> None:
        """Close what is left without a step, after the ``steps`` steps of the run."""
        if any(entry.fate is not Fate.STALE for entry in self.entries):
            self._close(None, steps)


def _with_unread(windows: list[Window]) -> list[Window]:
    """The windows of one account; where gradients of some were changed by hand, so may those that were not read.

    Then the others do not show what is done in every window: nothing is known of any.
    """
    unread = any(window.step is not None and window.step.unread for window in windows)
    if not unread or not any(map(_is_changed_by_hand, windows)):
        return windows
    return [
        replace(window, unknown=UNREAD) if window.unknown is None or window.unknown.cause is Cause.BY_HAND else window
        for window in windows
    ]


def _is_changed_by_hand(window: Window) -> bool:
    """Whether it is known that the loop itself changed the gradients of a window."""
    by_hand = window.unknown is not None and window.unknown.cause is Cause.BY_HAND
    return by_hand or window.rework is not None or any(isinstance(event, ScaleGrads) for event in window.events)


def _may_put_back(entries: list[Entry]) -> bool:
    """Whether a change by hand may give a step the gradients that were cleared: most of its micro-batches' were."""
    fates = [entry.fate for entry in entries]
    return 0 < fates.count(Fate.WIPED) >= fates.count(Fate.LIVE)


def _rescaled(backward: Backward) -> tuple[ScaleGrads, ...]:
    if backward.rescale == 1.0:
        return ()
    factor = Factor(backward.rescale, Operation.MULTIPLY, Purpose.ACCUMULATION)
    return (ScaleGrads(where=backward.where, stores=backward.stores, factor=factor),)


def fold(trace: Trace) -> Ledger:
    """Fold a loop's events into its ledger.

    Every optimizer that steps has one state for each store that it reads, because a store that is cleared and
    one that is not have different histories under the same optimizer. Micro-batches whose gradients were cleared unused
    as a block of their own (the remainder of an epoch) are moved to an abandoned window, and those that were discarded
    on purpose to a rejected or restarted one (`cleared_gradients`). What was never meant for the step belongs to no
    window, unless it is in the gradient (`by_products`).
    """
    passes = Passes.of_events(trace.events)
    states: dict[tuple[str, str], _StoreState] = {}
    for event in trace.events:
        if isinstance(event, Step):
            for store in sorted(event.stores):
                states.setdefault((event.optimizer, store), _StoreState(event.optimizer, store, passes))
    steps = 0
    own = list(states.values())
    for event in trace.events:
        stores = getattr(event, "stores", ())
        for state in own if stores else ():
            if state.store in stores:
                state.take(event, steps)
        steps += isinstance(event, Step)
    for state in states.values():
        state.finish(steps)
        state.windows = _with_unread(state.windows)
    histories = [History(state.optimizer, state.store, state.windows) for state in states.values()]
    set_by_products_apart(histories, trace)
    same = Same(trace.precision)
    parted = [part(history.windows, same) for history in histories]
    return Ledger(
        tuple(window for own in parted for window in own.windows),
        tuple(window for own in parted for window in own.abandoned),
        trace,
        tuple(window for own in parted for window in own.rejected),
        tuple(window for own in parted for window in own.restarted),
        passes,
    )

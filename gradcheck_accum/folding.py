"""Folds a loop's events into its ledger: for every step, which micro-batches its gradient holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradcheck_accum.cleared import part
from gradcheck_accum.events import (
    Backward,
    Event,
    Factor,
    Opaque,
    Operation,
    Purpose,
    ScaleGrads,
    Step,
    Trace,
    ZeroGrad,
)
from gradcheck_accum.ledger import Entry, Fate, Ledger, Window


@dataclass(slots=True)
class _Account:
    """The running state of one (optimizer, store) pair while events are folded."""

    optimizer: str
    store: str
    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    unknown: str = ""
    waiting: set[int] = field(default_factory=set)
    """The identities of the backwards whose gradients are not in the store yet."""

    def take(self, event: Event, steps: int) -> None:
        """Enter an event; ``steps`` is how many steps the whole run has made before it."""
        self.events.append(event)
        match event:
            case Backward():
                self.entries.append(Entry(event, Fate.LIVE, grad_factors=_rescaled(event)))
                self.waiting = {*self.waiting, id(event)} if event.waits else set()
            case ScaleGrads():
                self.entries = [self._scaled(entry, event) for entry in self.entries]
            case ZeroGrad():
                self.entries = [
                    Entry(entry.backward, Fate.WIPED, event, entry.grad_factors)
                    if self._is_cleared_now(entry)
                    else entry
                    for entry in self.entries
                    if entry.fate is not Fate.STALE
                ]
            case Opaque():
                self.unknown = self.unknown or event.reason
            case Step() if event.optimizer == self.optimizer:
                self._close(event, steps)

    def _is_cleared_now(self, entry: Entry) -> bool:
        return entry.fate is Fate.LIVE and id(entry.backward) not in self.waiting

    def _scaled(self, entry: Entry, event: ScaleGrads) -> Entry:
        if entry.fate is Fate.WIPED or id(entry.backward) in self.waiting:
            return entry
        return Entry(entry.backward, entry.fate, entry.wiped_by, (*entry.grad_factors, event))

    def _close(self, step: Step | None, index: int) -> None:
        entries = sorted(self.entries, key=lambda entry: entry.fate is not Fate.STALE)
        if step is None:
            entries = [replace(e, fate=Fate.LEFT) if e.fate is Fate.LIVE else e for e in entries]
        window = Window(index, self.optimizer, self.store, tuple(entries), step, tuple(self.events), self.unknown)
        self.windows.append(window)
        self.entries = [e.as_stale() for e in entries if e.fate in (Fate.LIVE, Fate.STALE)]
        self.events = []
        self.waiting = set()

    def finish(self, steps: int) -> None:
        """Close what no step has, after ``steps`` of them."""
        if any(entry.fate is not Fate.STALE for entry in self.entries):
            self._close(None, steps)


def _rescaled(backward: Backward) -> tuple[ScaleGrads, ...]:
    if backward.rescale == 1.0:
        return ()
    factor = Factor(backward.rescale, Operation.MULTIPLY, Purpose.ACCUMULATION)
    return (ScaleGrads(where=backward.where, stores=backward.stores, factor=factor),)


def fold(trace: Trace) -> Ledger:
    """Fold a loop's events into its ledger.

    Every optimizer that steps has one account for each store that it reads, because a store that is cleared and
    one that is not have different histories under the same optimizer. Micro-batches whose gradients were cleared
    unused as a block of their own (the remainder of an epoch) are moved to an abandoned window, and those that were
    thrown away on purpose to one that was rejected or begun again (`gradcheck_accum.cleared`). Incidental entries,
    which were never meant for the step, belong to no window.
    """
    accounts: dict[tuple[str, str], _Account] = {}
    for event in trace.events:
        if isinstance(event, Step):
            for store in sorted(event.stores):
                accounts.setdefault((event.optimizer, store), _Account(event.optimizer, store))
    steps = 0
    own = list(accounts.values())
    for event in trace.events:
        stores = getattr(event, "stores", ())
        for account in own if stores else ():
            if account.store in stores:
                account.take(event, steps)
        steps += isinstance(event, Step)
    for account in accounts.values():
        account.finish(steps)
    for account in accounts.values():
        _drop_rehearsal(account)
    _drop_incidental(list(accounts.values()))
    _mark_spilled(list(accounts.values()), trace)
    parted = [part(account.windows) for account in accounts.values()]
    return Ledger(
        tuple(window for own in parted for window in own.windows),
        tuple(window for own in parted for window in own.abandoned),
        trace,
        tuple(window for own in parted for window in own.rejected),
        tuple(window for own in parted for window in own.restarted),
    )


def _drop_rehearsal(account: _Account) -> None:
    """Take out what ran before the first window and was cleared: a warm-up, by which memory is taken or speed measured.

    It stands at places of its own, none of which ever reaches a step.
    """
    if len(account.windows) < 2 or account.windows[0].step is None:
        return
    first, *later = account.windows
    used = {e.backward.where.place for w in account.windows for e in w.entries if e.fate is not Fate.WIPED}
    used |= {e.backward.where.place for w in later for e in w.entries}
    begins = next((i for i, e in enumerate(first.entries) if e.backward.where.place in used), 0)
    rehearsed, entries = first.entries[:begins], first.entries[begins:]
    if not rehearsed or any(e.backward.where.place not in used for e in entries):
        return
    opens = next(i for i, event in enumerate(first.events) if event is entries[0].backward)
    clears = {id(e.wiped_by) for e in rehearsed}
    cleared = [i for i, event in enumerate(first.events[:opens]) if id(event) in clears]
    if len(cleared) == len(clears):
        # What was done to them (a clip, say) is none of the window that followed.
        account.windows[0] = replace(first, entries=entries, events=first.events[cleared[-1] + 1 :])


def _drop_incidental(accounts: list[_Account]) -> None:
    """Take out of every account the entries that were never meant for its optimizer.

    One model's loss leaves gradients in another model that it flows through, and a first backward may serve to find
    an adversarial input only; clearing those is right. Such a place in the source never reaches this step, while the
    very same backward reaches another optimizer's, or the same micro-batch reaches this one from another place.
    """
    live = [{id(e.backward) for w in a.windows for e in w.with_fate(Fate.LIVE)} for a in accounts]
    for position, account in enumerate(accounts):
        others = (own for own, a in zip(live, accounts, strict=True) if a.optimizer != account.optimizer)
        elsewhere = set[int]().union(*others)
        entries = [e for w in account.windows for e in w.entries]
        if not elsewhere and len({e.backward.where.place for e in entries}) < 2:
            continue
        used = {e.backward.where.place for e in entries if id(e.backward) in live[position]}
        batches = {e.backward.micro_batch for e in entries if id(e.backward) in live[position]}
        gone = {
            id(e.backward)
            for e in entries
            if used
            and e.backward.where.place not in used
            and (id(e.backward) in elsewhere or e.backward.micro_batch in batches)
        }
        # What the last micro-batch leaves here after its own step is another optimizer's too.
        gone |= {
            id(e.backward)
            for e in entries
            if e.fate is Fate.LEFT and id(e.backward) in elsewhere and e.backward.micro_batch in batches
        }
        if gone:
            account.windows = [w.without(gone) for w in account.windows]
            account.windows = [w for w in account.windows if w.step is not None or w.fresh()]


def _mark_spilled(accounts: list[_Account], trace: Trace) -> None:
    """Take what another optimizer's loss has left in an account for stale, where the two take turns.

    One model's turn ends with its step, and its gradients are cleared right then; the other's loss, which flows through
    it, fills them again. Each turn but the first so begins with gradients that the other's step has used already.
    """
    positions: dict[int, int] = {}
    for account in accounts:
        closed = [w for w in account.windows if w.step is not None]
        if len(closed) < 2 or any(w.with_fate(Fate.STALE) for w in closed):
            continue
        used = {
            id(entry.backward): window.step
            for other in accounts
            if other.optimizer != account.optimizer
            for window in other.windows
            for entry in window.with_fate(Fate.LIVE)
        }
        if not used:
            continue
        own = {e.backward.where.place for w in closed for e in w.entries if id(e.backward) not in used}
        if not {e.backward.where.place for e in closed[0].entries} <= own:
            continue
        positions = positions or {id(event): position for position, event in enumerate(trace.events)}
        foreign = [[e for e in w.with_fate(Fate.LIVE) if e.backward.where.place not in own] for w in closed[1:]]
        if all(_is_past(theirs, w, used, positions) for theirs, w in zip(foreign, closed[1:], strict=True)):
            gone = {id(e.backward) for theirs in foreign for e in theirs}
            places = {e.backward.where.place for theirs in foreign for e in theirs}
            account.windows = [
                replace(w, entries=tuple(e.as_stale() if id(e.backward) in gone else e for e in w.entries))
                for w in account.windows
                # What the other's last turn has left is no remainder.
                if w.step is not None or any(e.backward.where.place not in places for e in w.entries)
            ]


def _is_past(theirs: list[Entry], window: Window, used: dict[int, Step | None], positions: dict[int, int]) -> bool:
    """Whether other optimizers' steps have used all of ``theirs`` before the first of the window's own entries."""
    steps = [used.get(id(entry.backward)) for entry in theirs]
    own = [e for e in window.entries if not any(e is other for other in theirs)]
    begins = positions[id(own[0].backward)] if own else -1
    return bool(steps) and all(step is not None and positions[id(step)] < begins for step in steps)

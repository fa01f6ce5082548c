"""Which optimizers' steps a backward's gradients are meant for; in all other stores they are by-products.

A backward fills the gradients of all weights that its loss flows through. Which steps it is meant for is decided once,
here, for each place in the source and each account (an optimizer on a store), from what becomes of its gradients:

1. A step uses up what its weights hold: a gradient that was used by another optimizer's step over the very same
   weights, and by none of this optimizer's, was meant for the other.
2. A place whose gradients never reach this optimizer's steps, although those of other places do, is not meant for them
   where the same backward reaches another optimizer's steps; where the same micro-batch reaches them from another
   place; or where no step lacks it: it ran before the first window or after the last (a rehearsal), or only in some
   windows, which hold the usual number of micro-batches all the same, and not on the passes over the data that steps
   train on.
3. Optimizers may take turns. What another optimizer's step used before an optimizer's own losses first ran belongs to
   the other's turn; so does what only the other's steps use, where no backward is ever used by both.
4. A loss that is computed from another network's output, but detached from it (``detach()``, ``no_grad()``), separates
   the two networks. A loss that flows through both is then the other network's.
5. The backward of an unscaled loss, right before the gradient of data is read, is run for that gradient, where another
   place divides its losses for the window.

   Rules 4 and 5 apply only to what reaches steps together with an optimizer's own losses: what reaches a step by itself
   is trained on.

A by-product that is cleared, or is left when the loop ends, is no micro-batch of any window. One that is in a step's
gradient is stale, like what an earlier step has used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradcheck_accum.ledger.events import Backward, DataGradientRead, Step, Trace
from gradcheck_accum.ledger.windows import ByProduct, Entry, Fate, Window

Place = tuple[str, int]


@dataclass(slots=True)
class History:
    """The windows of one optimizer on one store, in order, separated by its steps alone."""

    optimizer: str
    store: str
    windows: list[Window]

    def closed(self) -> list[Window]:
        """Those that a step closed."""
        return [window for window in self.windows if window.step is not None]

    def entries(self) -> Iterator[Entry]:
        """The entries of all windows; an entry held by two windows is yielded twice."""
        return (entry for window in self.windows for entry in window.entries)


def set_by_products_apart(histories: Sequence[History], trace: Trace) -> None:
    """Remove what was not meant for the steps from all windows, or mark it where it is in a step's gradient."""
    for history in histories:
        _drop_rehearsal(history)
    uses = _Uses(histories)
    for_data = _read_for_data(trace)
    for history in histories:
        _take_out(history, _never_used(history, uses), uses.of_others_there(history))
        foreign = _of_other_turns(history, uses, trace) or _cut_off(history) or _made_for_data(history, for_data)
        _mark(history, foreign)


def _place(entry: Entry) -> Place:
    return entry.backward.where.place


class _Uses:
    """Which steps use which backwards."""

    def __init__(self, histories: Iterable[History]) -> None:
        self._by_account = [
            (
                (history.optimizer, history.store),
                {e.backward: w.step for w in history.windows for e in w.with_fate(Fate.LIVE)},
            )
            for history in histories
        ]

    def own(self, history: History) -> dict[Backward, Step | None]:
        """The backwards that an account's own steps use, each with the first step that does."""
        return next(own for account, own in self._by_account if account == (history.optimizer, history.store))

    def of_others(self, history: History) -> dict[Backward, Step | None]:
        """The backwards that other optimizers' steps use, each with such a step."""
        found: dict[Backward, Step | None] = {}
        for (optimizer, _), own in self._by_account:
            if optimizer != history.optimizer:
                found |= own
        return found

    def of_others_there(self, history: History) -> set[Backward]:
        """The backwards that other optimizers' steps over the very same weights use."""
        return {
            backward
            for (optimizer, store), own in self._by_account
            if optimizer != history.optimizer and store == history.store
            for backward in own
        }


def _drop_rehearsal(history: History) -> None:
    """Remove what ran before the first window and was cleared: a warm-up that allocates memory or measures speed.

    It has places of its own, none of which ever reaches a step.
    """
    if len(history.windows) < 2 or history.windows[0].step is None:
        return
    first, *later = history.windows
    used = {_place(e) for e in history.entries() if e.fate is not Fate.WIPED}
    used |= {_place(e) for w in later for e in w.entries}
    begins = next((i for i, e in enumerate(first.entries) if _place(e) in used), 0)
    rehearsed, entries = first.entries[:begins], first.entries[begins:]
    if not rehearsed or any(_place(e) not in used for e in entries):
        return
    opens = next(i for i, event in enumerate(first.events) if event is entries[0].backward)
    clears = {e.wiped_by for e in rehearsed}
    cleared = [i for i, event in enumerate(first.events[:opens]) if event in clears]
    if len(cleared) == len(clears):
        # What was done to them (a clip, say) does not belong to the window that followed.
        history.windows[0] = replace(first, entries=entries, events=first.events[cleared[-1] + 1 :])


def _never_used(history: History, uses: _Uses) -> set[Backward]:
    """The backwards whose gradients this optimizer's steps never get, and that were not meant for them."""
    own, elsewhere = uses.own(history), uses.of_others(history)
    entries = list(history.entries())
    used = {backward.where.place for backward in own}
    if not used or (not elsewhere and len({_place(e) for e in entries}) < 2):
        return set()
    batches = {backward.micro_batch for backward in own}
    take_turns = own.keys().isdisjoint(elsewhere)
    theirs = elsewhere.keys() if take_turns else uses.of_others_there(history)
    gone = {e.backward for e in entries if e.fate in (Fate.WIPED, Fate.LEFT) and e.backward in theirs}
    unmissed = _unmissed(history, used)
    gone |= {
        e.backward
        for e in entries
        if _place(e) not in used
        and (e.backward in elsewhere or e.backward.micro_batch in batches or _place(e) in unmissed)
    }
    # What the last micro-batch leaves here after its own step is meant for another optimizer too.
    return gone | {
        e.backward
        for e in entries
        if e.fate is Fate.LEFT and e.backward in elsewhere and e.backward.micro_batch in batches
    }


def _unmissed(history: History, used: set[Place]) -> set[Place]:
    """The places that never reach a step, though the windows that lose them are as long as those that do not."""
    unused = {_place(e) for e in history.entries()} - used
    if not unused:
        return unused
    # A pass over the data that steps train on was meant to be trained on completely.
    learned = {e.backward.epoch for e in history.entries() if _place(e) in used} - {None}
    missed = {_place(e) for e in history.entries() if e.fate is Fate.LEFT or e.backward.epoch in learned}
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for window in history.closed():
        loses = any(_place(e) in unused for e in window.entries)
        lengths[loses].append(len({e.backward.micro_batch for e in window.with_fate(Fate.LIVE)}))
    usual = Counter(lengths[False]).most_common(1)
    if len(lengths[True]) >= len(lengths[False]) or any(length != usual[0][0] for length in lengths[True]):
        return set()
    return unused - missed


def _of_other_turns(history: History, uses: _Uses, trace: Trace) -> dict[Place, ByProduct]:
    """The places whose gradients another optimizer's steps used before each turn of this one but the first.

    One model's turn ends with its step, right after which its gradients are cleared; the other's loss, which flows
    through it, fills them again.
    """
    closed, used = history.closed(), uses.of_others(history)
    if len(closed) < 2 or not used:
        return {}
    own = {_place(e) for w in closed for e in w.with_fate(Fate.LIVE) if e.backward not in used}
    if not {_place(e) for e in closed[0].entries} <= own:
        return {}
    positions = {event: position for position, event in enumerate(trace.events)}
    places: set[Place] = set()
    for window in closed[1:]:
        live = window.with_fate(Fate.LIVE)
        theirs = [e for e in live if _place(e) not in own]
        begins = min((positions[e.backward] for e in live if _place(e) in own), default=-1)
        steps = [used.get(e.backward) for e in theirs]
        if not steps or not all(step is not None and positions[step] < begins for step in steps):
            return {}
        places |= {_place(e) for e in theirs}
    return dict.fromkeys(places, ByProduct.OTHERS_TURN)


def _cut_off(history: History) -> dict[Place, ByProduct]:
    """The places whose losses flow through networks that a loss of this optimizer was detached from."""
    own_stores = {store for window in history.closed() if window.step is not None for store in window.step.stores}
    apart = {store for e in history.entries() for store in e.backward.cut_off} - own_stores
    if not apart:
        return {}
    flows = {_place(e) for e in history.entries() if not apart.isdisjoint(e.backward.stores)}
    cut = {_place(e) for e in history.entries() if not apart.isdisjoint(e.backward.cut_off)}
    return dict.fromkeys(_beside(history, flows - cut, cut), ByProduct.CUT_OFF)


def _read_for_data(trace: Trace) -> set[Backward]:
    """The backwards after which, and before the next, the gradient of data was read."""
    found: set[Backward] = set()
    last: Backward | None = None
    for event in trace.events:
        if isinstance(event, Backward):
            last = event
        elif isinstance(event, DataGradientRead) and last is not None:
            found.add(last)
    return found


def _made_for_data(history: History, for_data: set[Backward]) -> dict[Place, ByProduct]:
    """The places that run the backward of an unscaled loss for the gradient of data, where others divide theirs."""
    if not for_data:
        return {}
    every: dict[Place, list[Backward]] = {}
    for entry in history.entries():
        every.setdefault(_place(entry), []).append(entry.backward)
    made = {
        place
        for place, own in every.items()
        # The read after the last backward may not have happened yet.
        if any(b in for_data for b in own) and all(b in for_data for b in own[:-1]) and all(map(_is_as_it_is, own))
    }
    others = every.keys() - made
    if any(_is_as_it_is(backward) for place in others for backward in every[place]):
        return {}
    return dict.fromkeys(_beside(history, made, others), ByProduct.FOR_DATA)


def _beside(history: History, places: set[Place], own: set[Place]) -> set[Place]:
    """Those of ``places`` that reach a step only together with one of an optimizer's ``own``.

    A place that reaches a step by itself is trained on: a loop may have phases.
    """
    live = [{_place(e) for e in window.with_fate(Fate.LIVE)} for window in history.closed()]
    return places - {place for reached in live if reached.isdisjoint(own) for place in reached}


def _is_as_it_is(backward: Backward) -> bool:
    """Whether no factor changes a backward's loss after its reduction, except for its sign."""
    return all(abs(f.value or 0.0) == 1.0 for term in backward.terms for f in term.factors)


def _take_out(history: History, gone: set[Backward], of_others: Collection[Backward] = ()) -> None:
    """Remove backwards; those ``of_others`` have been used by another optimizer's step over the same weights."""
    if gone:
        windows = [_begun_after(window, gone.intersection(of_others)).without(gone) for window in history.windows]
        history.windows = [window for window in windows if window.step is not None or window.fresh()]


def _begun_after(window: Window, of_others: Collection[Backward]) -> Window:
    """A window without what was done to another's gradients (a clip, say) before they were cleared and it began."""
    clears = {entry.wiped_by for entry in window.entries if entry.backward in of_others}
    own = {entry.backward for entry in window.entries if entry.backward not in of_others}
    cleared = max((place for place, event in enumerate(window.events) if event in clears), default=0)
    if not own.isdisjoint(window.events[:cleared]):
        return window
    return replace(window, events=window.events[cleared:])


def _mark(history: History, foreign: dict[Place, ByProduct]) -> None:
    """Mark by-products in a step's gradient as stale, and remove all others."""
    if not foreign:
        return
    _take_out(
        history,
        {e.backward for e in history.entries() if _place(e) in foreign and e.fate in (Fate.WIPED, Fate.LEFT)},
    )
    history.windows = [
        replace(
            window,
            entries=tuple(e.as_by_product(foreign[_place(e)]) if _place(e) in foreign else e for e in window.entries),
        )
        for window in history.windows
    ]

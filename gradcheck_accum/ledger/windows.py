"""The gradient ledger: windows of entries.

In a window the loop runs micro-batches; each adds an entry to ``.grad``. The optimizer uses the sum of the entries that
are still there when it steps. This module defines entries, their fates, and windows. Events are folded into them in
`gradcheck_accum.ledger.folding`; each entry's weight is read in `gradcheck_accum.ledger.weights`, and mistakes are
found in `gradcheck_accum.diagnosis`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate

from gradcheck_accum.ledger.events import (
    Backward,
    Cause,
    Event,
    Reason,
    Rework,
    ScaleGrads,
    Step,
    Trace,
    ZeroGrad,
)
from gradcheck_accum.ledger.passes import KnownBy, Passes
from gradcheck_accum.ledger.same_number import Same

NOT_FINITE = Reason("the gradient is not finite", Cause.NOT_FINITE)
"""Why a window is unknown whose gradient has overflowed: manual changes to it cannot be seen."""

ZERO = Reason("the gradient is zero, and those of other steps were scaled by hand", Cause.ZERO)
"""Why a window is unknown that may have been scaled as others were: scaling a zero gradient does not change it."""

UNREAD = Reason(
    "gradients were modified manually, and those of the window before were not read: the next window that is checked "
    "is read together with the one before it",
    Cause.UNREAD,
)
"""Why a window is unknown that may have been changed in another way than the one before it, which was not read."""

_UNSEEN_SCALING = frozenset({Cause.NOT_FINITE, Cause.ZERO, Cause.UNREAD})
"""Causes that hide the weights of a window, though its entries are known."""


class Fate(Enum):
    """What became of an entry by the time the optimizer stepped."""

    LIVE = "live"
    """it reached this step, and this step is the first that it reached"""
    STALE = "stale"
    """an earlier step has used it already, and it was not cleared"""
    WIPED = "wiped"
    """it was cleared before any step could use it"""
    LEFT = "left"
    """the loop ended and no step came"""


class ByProduct(Enum):
    """Why an entry in a step's gradient was not meant for it (`gradcheck_accum.ledger.by_products`)."""

    OTHERS_TURN = "another optimizer's step has used it"
    CUT_OFF = "it is the other network's loss"
    FOR_DATA = "its backward was run for the gradient of data"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One backward's contribution to one store, and what became of it; entries compare by identity."""

    backward: Backward
    fate: Fate
    wiped_by: ZeroGrad | None = None
    grad_factors: tuple[ScaleGrads, ...] = ()
    by_product: ByProduct | None = None
    epoch: int | None = None
    """The pass over the data that it belongs to, None where that is unknown."""

    def as_stale(self) -> Entry:
        """This entry after a step has used it."""
        if self.fate is Fate.STALE:
            return self
        # Every entry of a run gets here, and `replace` takes three times as long.
        return Entry(self.backward, Fate.STALE, None, self.grad_factors, self.by_product, self.epoch)

    def as_by_product(self, why: ByProduct) -> Entry:
        """This entry, stale because it is in a step's gradient though it was not meant for it."""
        return replace(self, fate=Fate.STALE, wiped_by=None, by_product=why)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """All that reached one store between two steps of one optimizer; windows compare by identity.

    ``index`` counts the steps of the whole run, of all its optimizers, from 0. ``entries`` are in the order of their
    backwards, stale ones first. ``step`` is None for gradients that no step ever consumed. ``events`` is everything
    that touched the store in that time, in order, the step included. ``unknown`` gives the reason where something could
    not be followed. ``elsewhere`` are the fresh entries of each other rank whose gradients are
    averaged with these (`gradcheck_accum.ledger.ranks`), and ``divisor`` is what the average divides the ranks' sum by.
    ``rework`` is the last change by hand of the whole gradient, right before the step.
    """

    index: int
    optimizer: str
    store: str
    entries: tuple[Entry, ...]
    step: Step | None
    events: tuple[Event, ...]
    unknown: Reason | None = None
    elsewhere: tuple[tuple[Entry, ...], ...] = ()
    divisor: int = 1
    rework: Rework | None = None
    micro_batches: int = field(init=False, repr=False)
    """How many micro-batches (distinct batches of data) the window's own entries come from."""
    spans_passes: bool = field(init=False, repr=False, compare=False)
    """Whether they come from more than one pass over the data, as far as that is known."""
    _fresh: tuple[Entry, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every pattern reads these many times.
        fresh = tuple([entry for entry in self.entries if entry.fate is not Fate.STALE])
        object.__setattr__(self, "_fresh", fresh)
        object.__setattr__(self, "micro_batches", len({entry.backward.micro_batch for entry in fresh}))
        object.__setattr__(self, "spans_passes", len({entry.epoch for entry in fresh} - {None}) > 1)

    def fresh(self) -> tuple[Entry, ...]:
        """The entries of this window's own micro-batches: all except the stale ones."""
        return self._fresh

    def by_rank(self) -> tuple[tuple[Entry, ...], ...]:
        """The fresh entries of every rank, those of this window's own rank first."""
        return self.fresh(), *self.elsewhere

    def passes(self, steps: int, *, leaks: bool = False) -> tuple[tuple[tuple[Entry, ...], ...], ...]:
        """Its fresh entries by rank, split by pass over the data if there are more than ``steps`` micro-batches.

        What an earlier pass left over, without a step of its own, was scaled for the window that it should have made.
        ``leaks`` means that all but the last ``steps`` were left over, where passes cannot be distinguished.
        """
        if self.micro_batches <= steps or self.elsewhere:
            return (self.by_rank(),)
        fresh = self.fresh()
        if self.spans_passes:
            passes = dict.fromkeys(entry.epoch for entry in fresh)
            return tuple((tuple(entry for entry in fresh if entry.epoch == own),) for own in passes)
        if not leaks or any(entry.epoch is not None for entry in fresh):
            return (self.by_rank(),)
        last = [*dict.fromkeys(entry.backward.micro_batch for entry in fresh)][-steps:]
        left_over = tuple(entry for entry in fresh if entry.backward.micro_batch not in last)
        return (left_over,), (tuple(entry for entry in fresh if entry.backward.micro_batch in last),)

    @property
    def is_followed(self) -> bool:
        """Whether it is known which micro-batches the window holds, though perhaps not their weights."""
        return self.unknown is None or self.hides_scaling

    @property
    def hides_scaling(self) -> bool:
        """Whether its gradient hides what it was scaled by."""
        return self.unknown is not None and self.unknown.cause in _UNSEEN_SCALING

    @property
    def micro_batches_over_ranks(self) -> int:
        """How many micro-batches all ranks together hold of the window's step."""
        return sum(len({entry.backward.micro_batch for entry in own}) for own in self.by_rank())

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether the ranks hold different numbers of micro-batches of this step, or some hold none."""
        held = {len({entry.backward.micro_batch for entry in own}) for own in self.by_rank()}
        return len(held) > 1 or 1 + len(self.elsewhere) < self.divisor

    def with_fate(self, fate: Fate) -> tuple[Entry, ...]:
        """The entries with this ``fate``."""
        return tuple([entry for entry in self.entries if entry.fate is fate])

    def without(self, backwards: set[Backward]) -> Window:
        """This window without these backwards."""
        entries = tuple(e for e in self.entries if e.backward not in backwards)
        return replace(self, entries=entries, events=tuple(e for e in self.events if e not in backwards))


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every window of a loop: those that a step closed, and the abandoned ones without a step.

    Windows that were discarded on purpose have no step either: ``rejected`` ones were complete, ``restarted`` ones are
    what was cleared of a window before it was restarted. Their index is that of the step that came next.
    """

    windows: tuple[Window, ...]
    abandoned: tuple[Window, ...]
    trace: Trace
    rejected: tuple[Window, ...] = ()
    restarted: tuple[Window, ...] = ()
    passes: Passes = field(default_factory=lambda: Passes(KnownBy.NOTHING))
    _by_step: dict[Step | None, list[Window]] = field(init=False, repr=False, compare=False)
    """The windows by their step, since there may be very many of both."""

    _skipped_by_pass: dict[int | None, tuple[list[int], list[int]]] = field(init=False, repr=False, compare=False)
    """By pass: its micro-batches in order, and how many batches were skipped by each."""

    _counted_only: dict[Step, int] = field(init=False, repr=False, compare=False)
    """By step: how many more micro-batches the source counted since the step before than ran."""

    def __post_init__(self) -> None:
        by_step: dict[Step | None, list[Window]] = {}
        for window in self.windows:
            by_step.setdefault(window.step, []).append(window)
        object.__setattr__(self, "_by_step", by_step)
        skipped = {epoch: _in_order(_skipped_before(given)) for epoch, given in self._given().items()}
        object.__setattr__(self, "_skipped_by_pass", skipped)
        counted = [self._counted_of(*account) for account in self.accounts()]
        object.__setattr__(self, "_counted_only", {step: count for own in counted for step, count in own.items()})

    @property
    def same(self) -> Same:
        """Compares two numbers of this loop."""
        return Same(self.trace.precision)

    def closed_by(self, step: Step) -> tuple[Window, ...]:
        """The windows that ``step`` closed: one for each store that it reads."""
        return tuple(self._by_step.get(step, ()))

    def account(self, optimizer: str, store: str) -> tuple[Window, ...]:
        """The closed windows of one optimizer on one store, in order."""
        return tuple(w for w in self.windows if w.optimizer == optimizer and w.store == store)

    def skipped(self, window: Window) -> int:
        """How many batches were loaded or counted along with a window's, but had no backward.

        A data loader yielded them, or the source's own counter counted them; 0 where there is neither.
        """
        entries = window.fresh()
        if not entries:
            return 0
        first, last = entries[0].backward, entries[-1].backward
        numbers, skipped = self._skipped_by_pass.get(self.passes.of(last), ([], []))
        if not numbers and window.step is not None:
            return self._counted_only.get(window.step, 0)
        until, before = bisect_right(numbers, last.micro_batch), bisect_left(numbers, first.micro_batch)
        return (skipped[until - 1] if until else 0) - (skipped[before - 1] if before else 0)

    def skipped_in_all(self) -> int:
        """The same for all passes, each up to the last batch that it ran."""
        return sum(skipped[-1] for _, skipped in self._skipped_by_pass.values() if skipped)

    def _given(self) -> dict[int | None, dict[int, int]]:
        """By pass and micro-batch: how many batches the pass had loaded when that ran."""
        given: dict[int | None, dict[int, int]] = {}
        for event in self.trace.events:
            if isinstance(event, Backward) and event.given is not None:
                given.setdefault(self.passes.of(event), {}).setdefault(event.micro_batch, event.given)
        return given

    def _counted_of(self, optimizer: str, store: str) -> dict[Step, int]:
        """By step of one optimizer on one store: how many more micro-batches were counted than ran.

        Counting what does not run is an exception: where most of what is counted did not run, it is not micro-batches.
        """
        own = self.account(optimizer, store)
        counted = counted_before(own)
        lost = Counter[int]()
        for window in (*self.rejected, *self.restarted):
            if (window.optimizer, window.store) == (optimizer, store):
                lost[window.index] += window.micro_batches
        known = [(w.step, w) for w in own if w.step is not None and w.step in counted]
        found = {step: max(0, counted[step] - w.micro_batches - lost[w.index]) for step, w in known}
        return found if sum(found.values()) < sum(w.micro_batches for _, w in known) else {}

    def accounts(self) -> list[tuple[str, str]]:
        """The (optimizer, store) pairs that have a window, in order of their first step."""
        return list(dict.fromkeys((w.optimizer, w.store) for w in (*self.windows, *self.abandoned)))


def counted_before(windows: Iterable[Window]) -> dict[Step | ZeroGrad, int]:
    """By step: how many micro-batches the source counted since the step before, of one optimizer on one store.

    By clearing of unused gradients: how many it counted since the step, or such a clearing, before. A step is omitted
    where its counter is not known (`WindowBound.counted_since`).
    """
    found: dict[Step | ZeroGrad, int] = {}
    before: int | None = None
    for window in windows:
        since = before
        for cause in dict.fromkeys(entry.wiped_by for entry in window.with_fate(Fate.WIPED)):
            reached = None if cause is None else dict(cause.counted).get(window.optimizer)
            if cause is not None and reached is not None and since is not None and reached > since:
                found[cause], since = reached - since, reached
        if window.step is None:
            continue
        bound = window.step.counted_by
        counted = None if bound is None else bound.counted_since(before)
        if counted is not None:
            found[window.step] = counted
        before = None if bound is None else bound.reached
    return found


def _in_order(skipped_before: dict[int, int]) -> tuple[list[int], list[int]]:
    """Micro-batches in order, and the largest number of batches that were skipped by each."""
    numbers = sorted(skipped_before)
    return numbers, list(accumulate((skipped_before[number] for number in numbers), max))


def _skipped_before(given: dict[int, int]) -> dict[int, int]:
    """How many batches of a pass never ran, of those that it had loaded by the time of each micro-batch that did.

    Skipping a batch is an exception: where most backwards came after several batches, they ran on them together.
    """
    behind = [count - number for number, count in enumerate(given.values(), 1)]
    # Only what never catches up was skipped: batches that are loaded ahead run later.
    settled = [max(0, least) for least in accumulate(reversed(behind), min)][::-1]
    rises = sum(after > before for before, after in zip([0, *settled], settled, strict=False))
    return dict(zip(given, settled, strict=True)) if 2 * rises < len(given) else {}

"""The windows of one optimizer on one store, and the messages that all patterns share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from gradcheck_accum.ledger.events import Cause, Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Readings, Series, Weight, total_of
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Fate, Ledger, Window
from gradcheck_accum.mistakes import CATALOGUE, Mistake
from gradcheck_accum.wording import Said, in_words


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One ``mistake`` of the catalogue, with the place (``where``) that causes it.

    ``message`` states the fact and its consequence (``said`` is the same with its places as values), ``help`` the
    remedy. ``windows`` are the indices of the windows that show it; empty for gradients that no step ever used.
    ``framework`` is the package, with its version, in whose code it happened, if any. ``states_steps`` is whether the
    message states numbers that follow from K, ``likely`` whether it depends on data that the ledger does not show.
    """

    mistake: Mistake
    where: Location
    said: Said
    help: str
    windows: tuple[int, ...] = ()
    framework: str = ""
    states_steps: bool = True
    likely: bool = False

    @property
    def message(self) -> str:
        """The fact and its consequence, with lines of the same file as "line 12"."""
        return in_words(self.said, self.where)

    @property
    def in_words(self) -> str:
        """The message, with the framework through which the mistake is made."""
        return f"through {self.framework}: {self.message}" if self.framework else self.message


@dataclass(frozen=True)
class Account:
    """The windows of one optimizer on one store, with what every finder asks of them.

    Properties of all windows that are needed for each of them (their lengths, where passes begin) are cached, because a
    run has very many windows.
    """

    ledger: Ledger
    optimizer: str
    store: str
    windows: tuple[Window, ...]
    abandoned: tuple[Window, ...]
    readings: Readings
    steps: int

    @classmethod
    def of(cls, ledger: Ledger, optimizer: str, store: str, readings: Readings) -> Account:
        # A step that looks at its window's gradient again, with other weights, makes no mistake twice.
        closed = tuple(w for w in ledger.account(optimizer, store) if w.step is None or not w.step.again)
        abandoned = tuple(w for w in ledger.abandoned if (w.optimizer, w.store) == (optimizer, store))
        return cls(ledger, optimizer, store, closed, abandoned, readings, usual_steps(closed, ledger.same) or 1)

    @cached_property
    def states_steps(self) -> bool:
        """Whether K is stated, and need not be inferred from the windows."""
        return any(w.step is not None and w.step.accumulation_steps for w in self.windows)

    @cached_property
    def lengths(self) -> Counter[int]:
        """How many windows hold how many micro-batches."""
        return Counter(w.micro_batches for w in self.windows)

    @cached_property
    def has_no_full_window(self) -> bool:
        """Whether no window holds the K that the source counts to: then lengths and scale are each compared with K."""
        counted = {
            w.step.counted_by.steps for w in self.windows if w.step is not None and w.step.counted_by is not None
        }
        return counted == {self.steps} and self.steps not in self.lengths

    @cached_property
    def phases(self) -> frozenset[int]:
        """The lengths that windows have in one part of the run each; empty where one recurs."""
        runs = [(length, len(list(own))) for length, own in groupby(w.micro_batches for w in self.windows)]
        comes_again = len(runs) > len({length for length, _ in runs})
        return frozenset() if comes_again else frozenset(length for length, windows in runs if windows > 1)

    @cached_property
    def recurring(self) -> frozenset[int]:
        """The lengths that two windows in a row have: these are intended, and not due to the end of a pass."""
        pairs = zip(self.windows, self.windows[1:], strict=False)
        return frozenset(one.micro_batches for one, other in pairs if one.micro_batches == other.micro_batches)

    @cached_property
    def pass_bounds(self) -> dict[int | None, tuple[int, int]]:
        """The indices of the first and the last window that hold a micro-batch of each pass over the data."""
        found: dict[int | None, tuple[int, int]] = {}
        for window in self.windows:
            for entry in window.fresh():
                first, last = found.get(entry.epoch, (window.index, window.index))
                found[entry.epoch] = min(first, window.index), max(last, window.index)
        return found

    def known(self) -> tuple[Window, ...]:
        """The closed windows that could be followed."""
        return tuple(w for w in self.windows if not w.unknown)

    def of_unknown_length(self) -> tuple[Window, ...]:
        """Those of which it is known what is done to each micro-batch, and not how many there are."""
        return tuple(w for w in self.windows if w.unknown and w.unknown.cause is Cause.LENGTH)

    def full(self) -> tuple[Window, ...]:
        """Those of them that hold K micro-batches."""
        return tuple(w for w in self.known() if w.micro_batches == self.steps)

    def series(self) -> tuple[Series, ...]:
        """The terms of the objective that reach this store."""
        return self.readings.series.get((self.optimizer, self.store), ())

    def shares(self, window: Window, series: Series) -> Shares | None:
        """How one series of a window adds up, or None where it has no live entry or a weight is not known."""
        weights = [w for w in self.readings.weights(window, series) if w.entry.fate is not Fate.STALE]
        live = [w for w in weights if w.entry.fate is Fate.LIVE]
        if not live or any(w.relative is None for w in weights):
            return None
        others = tuple(w for w in self.readings.weights_elsewhere(window, series) if w.entry.fate is Fate.LIVE)
        if any(w.relative is None for w in others):
            return None
        return Shares(window, tuple(weights), tuple(live), self.readings.kind(window, series), others)

    def same(self, left: float, right: float) -> bool:
        """Whether two weights are equal within the precision that they were read in."""
        return self.readings.same(left, right)


@dataclass(frozen=True, slots=True)
class Shares:
    """The known weights of one series in one window; ``elsewhere`` are those of the live entries of other ranks."""

    window: Window
    weights: tuple[Weight, ...]
    live: tuple[Weight, ...]
    kind: Reduction
    elsewhere: tuple[Weight, ...] = ()

    @property
    def length(self) -> int:
        """How many micro-batches of the series the window's own entries hold."""
        return len(self.weights)

    def is_mixed(self, same: Callable[[float, float], bool]) -> bool:
        """Whether neither the losses nor their units have equal weights: then there is no common scale."""
        each = ([w.share or 0.0 for w in self.weights], [w.relative or 0.0 for w in self.weights])
        return all(any(not same(value, values[0]) for value in values) for values in each)

    @property
    def units(self) -> float:
        """The units of the window's own entries; 0 where they are not known."""
        return total_of(w.units for w in self.weights) or 0.0

    @property
    def length_over_ranks(self) -> float:
        """How many of them all ranks hold together, divided as the average over the ranks is."""
        return (len(self.weights) + len(self.elsewhere)) / self.window.divisor

    @property
    def level(self) -> float:
        """The mean relative weight of the window's own entries on all ranks, every unit counted once: 1 is right.

        Cleared entries count as if they had not been cleared, because that is no mistake of scale.
        """
        weights = (*self.weights, *self.elsewhere)
        if self.kind is Reduction.SUM:
            return math.fsum(w.relative or 0.0 for w in weights) / len(weights)
        # Weighted by units, so that a mean of means over unequal counts still adds up to 1. The mean of no units at all
        # (every target ignored) takes its share all the same.
        total = math.fsum(1.0 if w.units is None else w.units for w in weights) or 1.0
        empty = math.fsum(w.share or 0.0 for w in weights if w.units == 0) / self.window.divisor
        counted = ((w.relative or 0.0) * (1.0 if w.units is None else w.units) for w in weights)
        return math.fsum(counted) / total + empty


def diagnosis(
    code: str,
    where: Location,
    said: Said,
    help: str,
    *windows: Window,
    framework: str | None = None,
    states_steps: bool = True,
) -> Diagnosis:
    """The mistake ``code`` at ``where``, seen in ``windows`` (those that no step closed have no index to name).

    ``framework`` is the one that ``where`` called, unless another is given; ``states_steps`` says whether the message
    states numbers that follow from K.
    """
    indices = tuple(sorted({w.index for w in windows if w.step}))
    through = where.through if framework is None else framework
    return Diagnosis(CATALOGUE[code], where, said, help, indices, through, states_steps)


def interrupted(account: Account) -> set[int]:
    """The indices of the windows in which gradients were cleared as an exception: most windows have no clearing.

    The step counts the cleared micro-batches all the same, so what is left is less than a window. Where a complete
    window is cleared and the step is still made, the clearing is in the wrong place instead.
    """
    cleared = [window for window in account.windows if window.with_fate(Fate.WIPED)]
    if 2 * len(cleared) >= len(account.windows):
        return set()
    left = {w.index: len({entry.backward.micro_batch for entry in w.with_fate(Fate.LIVE)}) for w in cleared}
    return {
        window.index
        for window in cleared
        if 0 < left[window.index] < account.steps or (not left[window.index] and window.micro_batches < account.steps)
    }


def lacks_what_was_cleared(account: Account, window: Window) -> bool:
    """Whether a pass's first window is short by what was cleared of the pass before, over which the counter went on.

    One clearing has lost both: what never reaches a step, and the weight of those that share its count.
    """
    own = {entry.epoch for entry in window.fresh()}
    cleared = [w for w in account.abandoned if w.index == window.index and w.with_fate(Fate.WIPED)]
    gone = sum(w.micro_batches for w in cleared)
    before = {entry.epoch for w in cleared for entry in w.entries}
    if not gone or None in own | before or not own.isdisjoint(before):
        return False
    begins = all(account.pass_bounds[epoch][0] == window.index < account.pass_bounds[epoch][1] for epoch in own)
    return begins and (gone + window.micro_batches) % account.steps == 0


def scalers(shares: Shares) -> list[Location]:
    """The places that multiplied or divided a window's losses by other than 1, as far as they are known."""
    factors = (f for weight in shares.live for term in weight.entry.backward.terms for f in term.factors)
    return list(dict.fromkeys(f.where for f in factors if f.where is not None and f.value != 1.0))


def scaling_framework(shares: Shares) -> str:
    """The package that scaled the losses, where one did."""
    return next((place.through for place in scalers(shares) if place.through), "")


def times(weight: float) -> str:
    """A relative weight in words: 4 is "4x"."""
    return f"{weight:.4g}x"


def plural(count: int) -> str:
    """A number of micro-batches in words."""
    return f"{count} micro-batch" if count == 1 else f"{count} micro-batches"


def opens_short(account: Account) -> bool:
    """Whether the first window is the odd one out: its step counts fewer micro-batches than those right after it."""
    if not _opens_unlike_the_rest(account):
        return False
    first = account.windows[0]
    return first.micro_batches + account.ledger.skipped(first) < account.steps


def opens_long(account: Account) -> bool:
    """Whether the first window is the odd one out: one micro-batch longer than the windows right after it."""
    return _opens_unlike_the_rest(account) and account.windows[0].micro_batches == account.steps + 1


def _opens_unlike_the_rest(account: Account) -> bool:
    if not account.ledger.trace.from_start or len(account.windows) < 2:
        return False
    first, second = account.windows[:2]
    same_step = first.step is not None and second.step is not None and first.step.where == second.step.where
    return same_step and first.micro_batches > 0 and second.micro_batches == account.steps


def holds_remainders_alone(account: Account) -> bool:
    """Whether no window is as long as K, which then is stated, because every pass over the data is shorter.

    The length of windows that could not be followed is unknown.
    """
    if any(not window.is_followed for window in account.abandoned):
        return False
    if any(length >= account.steps for length in account.lengths):
        return False
    passes = [e.epoch for w in account.windows for e in w.fresh()[-1:]]
    return len(account.windows) == 1 or (None not in passes and len(set(passes)) == len(account.windows))

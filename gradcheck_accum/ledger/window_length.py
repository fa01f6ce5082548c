"""K, the intended micro-batches of a window: stated, counted to in the source, or inferred from the windows.

K is a hypothesis. A length *explains* a window that holds as many micro-batches, or fewer at the end of a pass over the
data. Evidence comes in this order:

1. What is stated: by the caller, or by a framework.
2. What the source counts to before it steps, if as many ran in a window, or between two clearings, or if losses are
   divided by that very number (or by an equal literal, if it is a literal and they are scaled for no window's length).
3. A length that explains every window.
4. Lengths whose windows' losses have factors that add up to 1.
5. The length that explains the most micro-batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from gradcheck_accum.ledger.events import Factor, Operation, Reduction, product_of
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import WHAT_REMAINS, is_literal, is_place, is_written_out, names_steps
from gradcheck_accum.ledger.windows import Entry, Window


def usual_steps(windows: Iterable[Window], same: Same) -> int | None:
    """K of these windows, all of one optimizer on one store; None where there is none.

    Windows that extend into another pass over the data are used only where there is no other, and so are the windows of
    a step that never closes more than one micro-batch while another step does.
    """
    closed = [w for w in windows if w.micro_batches]
    stated = [w.step.accumulation_steps for w in closed if w.step and w.step.accumulation_steps]
    if stated:
        return Counter(stated).most_common(1)[0][0]
    closed = [w for w in closed if not w.spans_passes] or closed
    if not closed:
        return None
    # A step that never closes more than one micro-batch accumulates nothing (a plain warm-up before the real loop).
    accumulating = {w.step.where for w in closed if w.step and w.micro_batches > 1}
    closed = [w for w in closed if w.step and w.step.where in accumulating] or closed
    counted = _counted(closed, same)
    if counted is not None:
        return counted
    candidates = _explaining(closed)
    explained = {length: _explained(length, closed) for length in candidates}
    if any(count < sum(w.micro_batches for w in closed) for count in explained.values()):
        candidates = {length for length in candidates if _makes_whole(length, closed, same)} or candidates
    return max(candidates, key=lambda length: (explained[length], length))


def _counted(windows: Sequence[Window], same: Same) -> int | None:
    """What the source counts to before it steps, where the windows confirm that it counts micro-batches."""
    counters = [w.step.counted_by for w in windows if w.step is not None and w.step.counted_by is not None]
    numbers = Counter(own.steps for own in counters if own.steps and not _counts_turns(own.steps, windows))
    if not numbers:
        return None
    origins = frozenset[str]().union(*(own.origins for own in counters))
    lengths = {w.micro_batches for w in windows} | {length for w in windows for length in _stretches(w)}
    borne_out = [n for n in numbers if n in lengths]
    if len(borne_out) < len(numbers):
        borne_out = [n for n in numbers if n in lengths or _is_divisor(n, origins, windows, same)]
    return max(borne_out, key=lambda n: (numbers[n] * n, n)) if borne_out else None


def _counts_turns(count: int, windows: Sequence[Window]) -> bool:
    """Whether each window is one backward, of a loss that as many turns as are counted may have added terms to."""
    return all(
        window.micro_batches == 1 and all(entry.backward.gathers(count) for entry in window.fresh())
        for window in windows
    )


def _is_divisor(count: int, origins: frozenset[str], windows: Sequence[Window], same: Same) -> bool:
    """Whether losses are divided by the very number that the source counts to, or by an equal literal."""
    if _divide_by(origins, windows):
        return True
    # Losses that are divided by the length of their window's list are scaled, also where that is 1.
    right = _divide_by(frozenset[str]().union(*map(lengths_of_list, windows)), windows) or any(
        _makes_whole(length, windows, same, strictly=True) for length in _explaining(windows)
    )
    return not right and _divide_by_literal(count, origins, windows, same)


def lengths_of_list(window: Window) -> frozenset[str]:
    """The origins of the length of the list that a window is, if it holds as many items as micro-batches ran."""
    bound = window.step.counted_by if window.step is not None else None
    listed = None if bound is None else bound.listed
    return listed.origins if listed is not None and listed.items == window.micro_batches else frozenset()


def _explaining(windows: Sequence[Window]) -> set[int]:
    """The lengths that explain every window; all of them if none does."""
    lengths = {w.micro_batches for w in windows}
    every = sum(w.micro_batches for w in windows)
    return {length for length in lengths if _explained(length, windows) == every} or lengths


def _stretches(window: Window) -> Iterator[int]:
    """How many micro-batches ran between two clearings of a window, and since the last: some may be discarded."""
    for _, own in groupby(window.fresh(), key=lambda entry: entry.wiped_by):
        yield len({entry.backward.micro_batch for entry in own})


def _divide_by(origins: frozenset[str], windows: Iterable[Window]) -> bool:
    """Whether losses are divided by the very number that the source counts to, as their origins show."""
    return any(not factor.origins.isdisjoint(origins) for factor in _all_factors(windows))


def _divide_by_literal(count: int, origins: frozenset[str], windows: Iterable[Window], same: Same) -> bool:
    """Whether losses are divided by a literal, or a bound on what remains, that equals the literal counted to."""
    return is_literal(origins) and any(
        (is_written_out(factor.origins) or WHAT_REMAINS in factor.origins) and divides_by(factor, count, same)
        for factor in _all_factors(windows)
    )


def _all_factors(windows: Iterable[Window]) -> Iterator[Factor]:
    for window in windows:
        for entry in window.entries:
            for term in entry.backward.terms:
                yield from term.factors


def divides_by(factor: Factor, count: int, same: Same) -> bool:
    """Whether a factor is a division by ``count``."""
    return factor.operation is Operation.DIVIDE and bool(factor.value) and same((factor.value or 0.0) * count, 1.0)


def _explained(length: int, windows: Sequence[Window]) -> int:
    """How many micro-batches are in windows that hold ``length`` of them, or fewer at the end of a pass."""
    return sum(
        window.micro_batches
        for position, window in enumerate(windows)
        if window.micro_batches == length or (window.micro_batches < length and _ends_a_pass(position, windows))
    )


def _ends_a_pass(position: int, windows: Sequence[Window]) -> bool:
    if position + 1 == len(windows):
        return True
    own, following = (w.fresh()[-1].epoch for w in windows[position : position + 2])
    return own != following and None not in (own, following)


def _makes_whole(length: int, windows: Iterable[Window], same: Same, *, strictly: bool = False) -> bool:
    """Whether the factors of the losses add up to 1 in every window of ``length`` micro-batches.

    ``strictly``, a division by the number of a loss's terms is none for the window, nor is a constant with a name.
    """
    own = [window for window in windows if window.micro_batches == length]
    return length > 1 and all(_is_made_whole(window, same, strictly) for window in own)


def is_divided_by(window: Window, count: int, same: Same) -> bool:
    """Whether every loss of a window's own entries is divided by ``count``, which is more than 1."""
    return count > 1 and scales_every_loss(window, lambda factor: divides_by(factor, count, same))


def scales_every_loss(window: Window, is_sought: Callable[[Factor], bool]) -> bool:
    """Whether every loss of a window's own entries has such a factor."""
    return all(
        any(is_sought(factor) for factor in term.factors) for entry in window.fresh() for term in entry.backward.terms
    )


def _is_made_whole(window: Window, same: Same, strictly: bool) -> bool:
    """Whether the factors of several micro-batches' losses, at one place or their products, add up to 1 in a window."""
    fresh = window.fresh()
    if window.micro_batches < 2 or any(not entry.backward.terms for entry in fresh):
        return False
    factors = [_factors(entry) for entry in fresh]
    each = list(zip(*factors, strict=True)) if len({len(own) for own in factors}) == 1 else []
    if strictly:
        mean = next((place for place in each if _makes_mean_of_terms(place, fresh, same)), None)
        each = [place for place in each if place is not mean and not all(map(_is_named_constant, place))]
    wholes = [math.fsum(factor.value or 0.0 for factor in place) for place in each]
    shares = [_share(entry) for entry in fresh]
    return any(same(whole, 1.0) for whole in wholes) or (
        None not in shares and same(math.fsum(share or 0.0 for share in shares), 1.0)
    )


def _is_named_constant(factor: Factor) -> bool:
    """Whether a factor is a constant that the source has under a name, which is not K's."""
    return any(map(is_place, factor.origins)) and not is_written_out(factor.origins) and not names_steps(factor.origins)


def _makes_mean_of_terms(factors: Sequence[Factor], entries: Sequence[Entry], same: Same) -> bool:
    """Whether each factor divides by the number of its loss's terms, of which there are several."""
    numbers = [len(entry.backward.terms) for entry in entries]
    return min(numbers) > 1 and all(divides_by(f, n, same) for f, n in zip(factors, numbers, strict=True))


def _factors(entry: Entry) -> tuple[Factor, ...]:
    """The factors of an entry in order: those of its loss's first term, and then those of its gradient."""
    return (*entry.backward.terms[0].factors, *(scaling.factor for scaling in entry.grad_factors))


def _share(entry: Entry) -> float | None:
    """The product of all factors of a micro-batch's mean loss, None where it is not known."""
    term = entry.backward.terms[0]
    scale = product_of(_factors(entry))
    units = term.units if term.reduction is Reduction.SUM else 1.0
    return None if scale is None or units is None else scale * units

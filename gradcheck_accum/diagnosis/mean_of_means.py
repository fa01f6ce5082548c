"""Patterns of uneven weight: GA104."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from gradcheck_accum.diagnosis.account import Account, Diagnosis, Shares, diagnosis, times
from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Weight


def find_left_out(account: Account) -> Iterator[Diagnosis]:
    """GA104 where it is likely: means of equal weight over targets of which as many count as the data say.

    So it is where a loss leaves targets out by their value, or counts each by the weight of its class, where a mask
    chooses them, and where a sum is divided by a count of its own micro-batch's data: padding, what bears no label.
    """
    if account.steps < 2:
        return
    for series in account.series():
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or shares.kind is not Reduction.MEAN or shares.length != account.steps:
                continue
            terms = [t for w in shares.live for t in w.entry.backward.terms if t.name == series.name and t.leaves_out]
            even = all(w.share is not None and account.same(w.share, 1 / shares.length) for w in shares.weights)
            alike = all(w.units == shares.weights[0].units for w in shares.weights)
            if terms and even and alike:
                found = diagnosis(
                    "GA104",
                    shares.live[0].entry.backward.where,
                    "likely a mean of means: the number of targets that the loss averages over depends on the data "
                    "(ignore_index, class weights, a mask, a selection, padding), yet every micro-batch has the same "
                    "weight: where these numbers differ, a target in a micro-batch with few targets is weighted more "
                    "than in the large batch",
                    "sum the loss over the micro-batch and divide by the number of targets in the whole window",
                    window,
                    states_steps=False,
                )
                yield replace(found, likely=True)
                break


def judge_evenness(account: Account, shares: Shares, where: Location) -> Iterator[Diagnosis]:
    """GA104 where the units of a window have unequal weights; a weight of 0 was excluded, and is no mean of means."""
    own = [w for w in shares.weights if w.relative]
    weights = [*own, *(w for w in shares.elsewhere if w.relative)]
    counting = _relatives(w for w in weights if w.units != 0)
    if not counting:
        return
    low, high = _bounds(counting)
    # The mean of no units at all (every target ignored) takes its share from the others.
    robbed = shares.kind is Reduction.MEAN and any(w.units == 0 for w in weights)
    if account.same(low, high) and not robbed:
        return
    counts = [w.units for w in weights if w.units is not None]
    if len(counts) < len(weights):
        return
    if shares.elsewhere and (not own or account.same(*_bounds(_relatives(own)))):
        yield from _judge_evenness_of_ranks(account, shares, where, low, high)
        return
    if shares.kind is Reduction.SUM and not shares.elsewhere and _are_of_counts_so_far(account, own):
        yield diagnosis(
            "GA104",
            where,
            f"the sums of this window's micro-batches, which hold {_listed(counts)} units, are divided by the units "
            f"counted so far, and only the last one by all of them: per-unit weights range from {times(low)} to "
            f"{times(high)} relative to the large batch",
            "count the units of the whole window before its first backward()",
            shares.window,
        )
        return
    if all(account.same(count, counts[0]) for count in counts):
        return
    yield diagnosis(
        "GA104",
        where,
        f"mean of means: the micro-batches of this window hold {_listed(counts)} units, but their means have equal "
        f"weight, so per-unit weights range from {times(low)} to {times(high)} relative to the large batch",
        "sum the loss over the micro-batch and divide by the units of the whole window",
        shares.window,
    )


def _are_of_counts_so_far(account: Account, weights: Sequence[Weight]) -> bool:
    """Whether each weight makes up for a count of the window that has come only to its own micro-batch."""
    reached = list(accumulate(weight.units or 0.0 for weight in weights))
    made_up = ((weight.relative or 0.0) * count for weight, count in zip(weights, reached, strict=True))
    return all(account.same(own, reached[-1]) for own in made_up)


def _listed(counts: Sequence[float]) -> str:
    """The counts, or the first of many."""
    return ", ".join(f"{count:g}" for count in counts[:8]) + (", …" if len(counts) > 8 else "")


def _judge_evenness_of_ranks(
    account: Account, shares: Shares, where: Location, low: float, high: float
) -> Iterator[Diagnosis]:
    """GA104 over ranks: each rank's loss is a mean over its own units, and the ranks hold unequal numbers of them."""
    units = {w.entry: w.units for w in (*shares.live, *shares.elsewhere) if w.relative and w.units is not None}
    sums = [math.fsum(units.get(entry, 0.0) for entry in own) for own in shares.window.by_rank()]
    if account.same(*_bounds(sums)):
        return
    yield diagnosis(
        "GA104",
        where,
        f"mean of means: {len(sums)} ranks hold {_listed(sums)} units of this window, but averaging over the ranks "
        f"gives their means equal weight, so per-unit weights range from {times(low)} to {times(high)} relative to the "
        "large batch",
        "sum the loss, divide it by the window's units on all ranks (all_reduce the count), and multiply it by the "
        "number of ranks, by which averaging divides",
        shares.window,
    )


def _relatives(weights: Iterable[Weight]) -> list[float]:
    return [w.relative for w in weights if w.relative is not None]


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)

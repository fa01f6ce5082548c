"""Losses that are shown after they have been scaled: GA802."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from enum import Enum
from itertools import pairwise

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis
from gradcheck_accum.ledger.events import Backward, LossShown, ShownLoss, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import names_steps
from gradcheck_accum.ledger.windows import Fate, Window
from gradcheck_accum.wording import message


class _Mean(Enum):
    """What a reported mean is the mean of."""

    OF_DIVIDED = "losses that were divided by K for the backward"
    OF_ONE_DIVIDED = "the loss of one micro-batch, which was divided by K for the backward"
    OF_FEW = "the losses of those micro-batches alone that end a window, over the number of all"
    OF_FEW_DIVIDED = "the same, and each was divided by K for the backward"
    MULTIPLIED = "losses that were multiplied by K, although that undoes no division"


def find_misreported(account: Account) -> Iterator[Diagnosis]:
    """GA802: what is shown as the mean loss is the mean of losses that were divided by K for the backward.

    Or of those of the micro-batches alone that end a window, over the number of all; or the divided loss of one
    micro-batch; or K times the mean loss, by a multiplication that undoes no division.
    """
    scaled, by_name = _scaled(account)
    places: dict[tuple[Location, Location], list[LossShown]] = {}
    for event in account.ledger.trace.events:
        if not isinstance(event, LossShown) or event.backward not in scaled:
            continue
        if scaled[event.backward] > 1 or _all_times_steps(event):
            places.setdefault((event.where, event.shown_at), []).append(event)
    if places and account.readings.may_be_exchanged(account.windows):
        return  # which of two equal divisions a loss was shown after is known, and not which of them is by K
    accumulation = account.readings.scaled_at(account.windows) | by_name if places else frozenset[Location]()
    whole = _divided_as_in_full_windows(account, accumulation) if places else set[int]()
    shorter = [w for w in (*account.known(), *account.abandoned) if w.micro_batches < account.steps] if places else []
    short = {e.backward.micro_batch for w in shorter for e in w.entries}
    for (where, shown_at), events in places.items():
        # What a shorter window's losses are divided by may be their own number, and may be 1.
        events = [event for event in events if not event.as_read or event.losses[0].micro_batch in whole]
        each_kind = [_kind(account, event, accumulation, scaled[event.backward]) for event in events]
        # One micro-batch's loss may be a sum that is still growing, and of a shorter window's another share is shown.
        kinds = {
            kind
            for kind, event in zip(each_kind, events, strict=True)
            if kind or ((len(event.losses) > 1 or event.as_read) and not _holds_of(short, event))
        }
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None:
            continue
        at = "" if shown_at.place == where.place else message(" at ", shown_at)
        steps = account.steps
        if kind is _Mean.MULTIPLIED:
            said = message(
                "the reported loss",
                at,
                f" is multiplied by {steps}, but that undoes no division (backward at ",
                events[-1].backward,
                f"): it is {steps} times the mean loss",
            )
            advice = "multiply only what was divided for accumulation, and either add up a window's losses or do that"
        elif kind in (_Mean.OF_DIVIDED, _Mean.OF_ONE_DIVIDED):
            is_mean = kind is _Mean.OF_DIVIDED
            what = "the mean of losses that were already" if is_mean else "that of a micro-batch, already"
            said = message(
                "the reported loss",
                at,
                f" is {what} divided by {steps} for accumulation (backward at ",
                events[-1].backward,
                f"): it is 1/{steps} of the {'mean loss' if is_mean else 'loss'}",
            )
            advice = f"log the loss before it is divided, or multiply it by {steps}"
        else:
            each, share = (", each already divided for accumulation", f"1/{steps}²")
            if kind is _Mean.OF_FEW:
                each, share = "", f"1/{steps}"
            said = message(
                "the reported loss",
                at,
                f" is a sum over the last micro-batch of each window alone{each} (backward at ",
                events[-1].backward,
                f"), divided by the number of all micro-batches: it is about {share} of the mean loss",
            )
            advice = "add up the loss of every micro-batch, before it is divided for accumulation"
        yield diagnosis("GA802", where, said, advice)


def _divided_as_in_full_windows(account: Account, accumulation: Collection[Location]) -> set[int]:
    """The micro-batches whose losses were divided by K, and those of full windows of which that is not known.

    A remainder that leaks fills up a window, though its losses were divided by their own number.
    """
    full = {entry.backward.micro_batch for window in account.full() for entry in window.entries}
    backwards = [event for event in account.ledger.trace.events if isinstance(event, Backward)]
    scales = {backward.micro_batch: _scale(account, backward, accumulation) for backward in backwards}
    divided = {number for number, scale in scales.items() if scale is not None and account.same(scale, 1.0)}
    return divided | {number for number in full if scales.get(number) is None}


def _scale(account: Account, backward: Backward, accumulation: Collection[Location]) -> float | None:
    """K times what each term of a loss was multiplied by for the accumulation; None if that is not one known number."""
    own = [[factor.value for factor in term.factors if factor.where in accumulation] for term in backward.terms]
    if not all(own) or any(value is None for values in own for value in values):
        return None
    scales = [math.prod(value or 0.0 for value in values) * account.steps for values in own]
    return scales[0] if scales and all(account.same(scale, scales[0]) for scale in scales) else None


def _holds_of(micro_batches: Collection[int], event: LossShown) -> bool:
    """Whether the loss of any of some micro-batches is in what is shown."""
    return any(loss.micro_batch in micro_batches for loss in event.losses)


def _all_times_steps(event: LossShown) -> bool:
    return all(loss.times_steps for loss in event.losses)


def _kind(account: Account, event: LossShown, accumulation: Collection[Location], divisor: int) -> _Mean | None:
    """What a reported number is, of losses that were divided by ``divisor``; None where that is nothing wrong."""
    shares = [_share(loss, accumulation) for loss in event.losses]
    count = len(shares)
    if _all_times_steps(event) and account.same(math.fsum(shares), float(account.steps * divisor)):
        return _Mean.MULTIPLIED
    if divisor == 1 or _is_as_weighed(account, event):
        return None
    if count > 1 and account.same(math.fsum(shares), 1.0) and not _is_of_few(account, event, accumulation):
        return _Mean.OF_DIVIDED
    if event.as_read and count == 1 and account.same(shares[0], 1.0):
        return _Mean.OF_ONE_DIVIDED
    if any(not account.same(share, shares[0]) for share in shares) or shares[0] <= 0:
        return None
    if _are_successive(event.losses, 1) and count > 2 and _is_one_off(account, 1 / shares[0], count):
        return _Mean.OF_DIVIDED
    return _is_of_few(account, event, accumulation)


def _is_as_weighed(account: Account, event: LossShown) -> bool:
    """Whether what is shown is the mean of the losses with the weights of the objective, its coefficients."""
    weighed = [loss.share / (product_of(loss.left_out) or math.inf) for loss in event.losses]
    return account.same(math.fsum(weighed), float(account.steps))


def _is_one_off(account: Account, divisor: float, count: int) -> bool:
    """Whether a sum of so many losses is divided by one less, or one more: the last index, say, for their number."""
    return any(account.same(divisor, number) for number in (count - 1, count + 1))


def _is_of_few(account: Account, event: LossShown, accumulation: Collection[Location]) -> _Mean | None:
    """Whether the losses are those of one micro-batch of each window, and are divided by the number of all."""
    steps, losses = account.steps, event.losses
    divides = {_scaling(loss, accumulation) for loss in losses}
    divided = divides == {1.0}
    if steps < 2 or len(divides) > 1 or not _are_successive(losses, steps):
        return None
    if len(losses) == 1 and not divided:
        return None
    divisor = 1 / losses[0].share if losses[0].share > 0 else 0.0
    equal = all(account.same(loss.share, losses[0].share) for loss in losses)
    is_number_of_all = len(losses) * steps <= divisor * (1 + 1e-9) and divisor < (len(losses) + 1) * steps
    if not (equal and is_number_of_all):
        return None
    return _Mean.OF_FEW_DIVIDED if divided else _Mean.OF_FEW


def _are_successive(losses: Collection[ShownLoss], distance: int) -> bool:
    """Whether the micro-batches of some losses are ``distance`` apart."""
    numbers = [loss.micro_batch for loss in losses]
    return all(later - before == distance for before, later in pairwise(numbers))


def _share(loss: ShownLoss, accumulation: Collection[Location]) -> float:
    """The share of a loss scaled for the accumulation in what is shown, regardless of the objective's factors.

    A loss without that scaling counts as many times as the scaling divides by.
    """
    return loss.share / _scaling(loss, accumulation)


def _scaling(loss: ShownLoss, accumulation: Collection[Location]) -> float:
    """By what a loss was multiplied for the accumulation after it was read; 1 where it was read afterwards."""
    return math.prod(factor.value or 1.0 for factor in loss.left_out if factor.where in accumulation)


def _scaled(account: Account) -> tuple[dict[Location, int], frozenset[Location]]:
    """By what the losses of each backward were themselves divided: by K, so that full windows are right, or by 1.

    And where those were divided whose weight is not known, but that were divided by K according to the source: what
    else they were multiplied by before is in what is shown of them as well. The terms of one loss may be of both kinds.
    One term that was not divided shows that the whole loss was not.
    """
    shares: dict[Location, list[float | None]] = {}
    by_name: dict[Location, list[Location | None]] = {}
    full = account.full() if account.steps > 1 else ()
    for window in full:
        for series in account.series():
            for weight in account.readings.weights(window, series):
                if weight.entry.fate is Fate.STALE:
                    continue
                later = [scaling.factor.value for scaling in weight.entry.grad_factors]
                share = (
                    None if weight.share is None or None in later else weight.share / math.prod(f or 1.0 for f in later)
                )
                backward = weight.entry.backward
                shares.setdefault(backward.where, []).append(share)
                if share is None:
                    by_name.setdefault(backward.where, []).append(
                        None if later else _divided_by_name(account, window, backward)
                    )
    scaled = {
        where: divisor
        for where, own in shares.items()
        for divisor in (account.steps, 1)
        for known in ([share for share in own if share is not None],)
        if known and (divisor == 1 or len(known) == len(own))
        if all(account.same(share * divisor, 1.0) for share in known)
    }
    named = {
        where: {place for place in own if place is not None}
        for where, own in by_name.items()
        if None not in own
        if all(account.same(share * account.steps, 1.0) for share in shares[where] if share is not None)
    }
    return scaled | dict.fromkeys(named, account.steps), frozenset[Location]().union(*named.values())


def _divided_by_name(account: Account, window: Window, backward: Backward) -> Location | None:
    """Where a loss of unknown weight was divided by K by its origin, all of it, and once; None if it was not."""
    bound = window.step.counted_by if window.step is not None else None
    counted = bound.origins if bound is not None else frozenset[str]()
    places: set[Location | None] = set()
    for term in backward.terms:
        by_steps = [f for f in term.factors if names_steps(f.origins) or not f.origins.isdisjoint(counted)]
        if len(by_steps) != 1 or not account.same((by_steps[0].value or 0.0) * account.steps, 1.0):
            return None
        places.add(by_steps[0].where)
    return places.pop() if len(places) == 1 else None

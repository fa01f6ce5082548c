"""Losses that are shown after they have been scaled: GA802."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis
from gradcheck_accum.ledger.events import LossShown
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import Fate
from gradcheck_accum.wording import message


def find_misreported(account: Account) -> Iterator[Diagnosis]:
    """GA802: what is shown as the mean loss is the mean of losses that were divided by K for the backward."""
    scaled = _scaled(account)
    places: dict[tuple[Location, Location], list[LossShown]] = {}
    for event in account.ledger.trace.events:
        # One micro-batch's own loss is only a progress report, and may be a sum that is still growing.
        if isinstance(event, LossShown) and event.backward in scaled and len(event.losses) > 1:
            places.setdefault((event.where, event.shown_at), []).append(event)
    if places and account.readings.may_be_exchanged(account.windows):
        return  # which of two equal divisions a loss was shown after is known, and not which of them is by K
    accumulation = account.readings.scaled_at(account.windows) if places else ()
    for (where, shown_at), events in places.items():
        if all(account.same(_share(event, accumulation), 1.0) for event in events):
            at = "" if shown_at.place == where.place else message(" at ", shown_at)
            divided = f"divided by {account.steps} for accumulation"
            yield diagnosis(
                "GA802",
                where,
                message(
                    "the reported loss",
                    at,
                    f" is the mean of losses that were already {divided} (backward at ",
                    events[-1].backward,
                    f"): it is 1/{account.steps} of the mean loss",
                ),
                f"log the loss before it is divided, or multiply it by {account.steps}",
            )


def _share(event: LossShown, accumulation: Collection[Location]) -> float:
    """The total share of losses scaled for the accumulation in what is shown, regardless of the objective's factors.

    A loss without that scaling counts as many times as the scaling divides by.
    """
    scalings = (
        math.prod(factor.value or 1.0 for factor in loss.left_out if factor.where in accumulation)
        for loss in event.losses
    )
    return math.fsum(loss.share / scaling for loss, scaling in zip(event.losses, scalings, strict=True))


def _scaled(account: Account) -> set[Location]:
    """The backwards whose losses were themselves divided by K, so that full windows are right."""
    full = [w for w in account.known() if w.micro_batches == account.steps > 1 and w.step is not None]
    shares: dict[Location, list[float | None]] = {}
    for window in full:
        for series in account.series():
            for weight in account.readings.weights(window, series):
                if weight.entry.fate is Fate.STALE:
                    continue
                later = [scaling.factor.value for scaling in weight.entry.grad_factors]
                share = (
                    None if weight.share is None or None in later else weight.share / math.prod(f or 1.0 for f in later)
                )
                shares.setdefault(weight.entry.backward.where, []).append(share)
    return {
        where
        for where, own in shares.items()
        if all(share is not None and account.same(share * account.steps, 1.0) for share in own)
    }

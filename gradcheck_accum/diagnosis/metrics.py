"""Losses that are shown after they have been scaled: GA802."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis
from gradcheck_accum.events import LossShown
from gradcheck_accum.ledger import Fate
from gradcheck_accum.location import Location
from gradcheck_accum.wording import message


def find_misreported(account: Account) -> Iterator[Diagnosis]:
    """GA802: what is shown as the mean loss is the mean of losses that were divided by K for the gradients' sake."""
    scaled = _scaled(account)
    places: dict[tuple[Location, Location], list[LossShown]] = {}
    for event in account.ledger.trace.events:
        # One micro-batch's own loss is a sign of life, and may be a sum that is still to grow.
        if isinstance(event, LossShown) and event.backward in scaled and event.micro_batches > 1:
            places.setdefault((event.where, event.shown_at), []).append(event)
    for (where, shown_at), events in places.items():
        if all(account.same(event.share, 1.0) for event in events):
            at = "" if shown_at.place == where.place else message(" at ", shown_at)
            divided = f"divided by {account.steps} for the gradients' sake"
            yield diagnosis(
                "GA802",
                where,
                message(
                    "the loss that is shown",
                    at,
                    f" is the mean of losses that were {divided} (the backward at ",
                    events[-1].backward,
                    f"): it is 1/{account.steps} of the mean loss",
                ),
                f"read the loss before it is divided, or multiply by {account.steps} again",
            )


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

"""From a ledger to the mistakes that it shows, in the words that a person needs.

Each ``find_…`` function reads one pattern off the windows of one account (one optimizer on one store). The patterns
are independent: a loop that makes two mistakes shows both. Nothing is concluded from a window whose events could not
be followed, nor from a weight that is not known.
"""

from __future__ import annotations

from dataclasses import replace

from gradcheck_accum.diagnosis.account import Account, Diagnosis
from gradcheck_accum.diagnosis.boundary import find_off_by_one, find_remainder
from gradcheck_accum.diagnosis.clipping import find_clip
from gradcheck_accum.diagnosis.scale import find_remainder_scale, find_scale, find_step_every_batch
from gradcheck_accum.diagnosis.zeroing import find_stale, find_zeroing
from gradcheck_accum.events import Location
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.weights import read_weights

__all__ = ["Diagnosis", "diagnose"]

_FINDERS = (
    find_scale,
    find_remainder_scale,
    find_zeroing,
    find_stale,
    find_remainder,
    find_off_by_one,
    find_step_every_batch,
    find_clip,
)


def diagnose(ledger: Ledger, *, coefficient: float | None = None) -> list[Diagnosis]:
    """Every mistake that the ledger shows, in order of place; what is unknown is never one.

    ``coefficient`` is the loss's intended coefficient where the caller states it.
    """
    readings = read_weights(ledger, coefficient=coefficient)
    found: dict[tuple[str, Location], Diagnosis] = {}
    for optimizer, store in ledger.accounts():
        account = Account.of(ledger, optimizer, store, readings)
        for find in _FINDERS:
            for diagnosis in find(account):
                key = diagnosis.mistake.code, replace(diagnosis.where, end_line=0, end_column=0)
                known = found.setdefault(key, diagnosis)
                windows = tuple(sorted({*known.windows, *diagnosis.windows}))
                found[key] = replace(known, windows=windows)
    return sorted(found.values(), key=lambda d: (d.where, d.mistake.code))

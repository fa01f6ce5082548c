"""Finds the mistakes that a ledger shows, and words the messages on them.

Each ``find_…`` function reads one pattern from the windows of one account (one optimizer on one store), or from the
whole trace where no gradient shows it. The patterns are independent: a loop that makes two mistakes shows both. Nothing
is concluded from a window whose events could not be followed, nor from a weight that is not known.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from gradcheck_accum.diagnosis.account import Account, Diagnosis
from gradcheck_accum.diagnosis.clearing import find_stale, find_zeroing
from gradcheck_accum.diagnosis.clipping import find_clip
from gradcheck_accum.diagnosis.grad_scaler import find_scaler_misuse, find_scaler_pace
from gradcheck_accum.diagnosis.loss_scaling import find_divided_again, find_scale
from gradcheck_accum.diagnosis.mean_of_means import find_left_out
from gradcheck_accum.diagnosis.per_micro_batch import find_average, find_cut_short, find_schedule
from gradcheck_accum.diagnosis.reported_loss import find_misreported
from gradcheck_accum.diagnosis.retained_graphs import find_held_graphs, find_kept_losses
from gradcheck_accum.diagnosis.short_windows import (
    find_partly_scaled_remainder,
    find_remainder_scale,
    find_skipped_step,
    find_step_every_batch,
)
from gradcheck_accum.diagnosis.sync import find_synchronisation
from gradcheck_accum.diagnosis.window_boundary import find_off_by_one, find_remainder
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Readings, read_weights
from gradcheck_accum.ledger.windows import Ledger

__all__ = ["Diagnosis", "diagnose"]

_FINDERS = (
    find_scale,
    find_divided_again,
    find_left_out,
    find_remainder_scale,
    find_partly_scaled_remainder,
    find_skipped_step,
    find_zeroing,
    find_stale,
    find_remainder,
    find_off_by_one,
    find_step_every_batch,
    find_clip,
    find_scaler_misuse,
    find_misreported,
    find_synchronisation,
)
_FINDERS_OF_THE_WHOLE = (
    find_scaler_pace,
    find_schedule,
    find_cut_short,
    find_average,
    find_held_graphs,
    find_kept_losses,
)


def diagnose(ledger: Ledger, readings: Readings | None = None) -> list[Diagnosis]:
    """Every mistake that the ledger shows, in order of place; what is unknown is never one.

    ``readings`` are the ledger's weights where they have been read already, with a stated coefficient for example.
    """
    readings = readings or read_weights(ledger)
    found: dict[tuple[str, Location], Diagnosis] = {}
    shown: dict[tuple[str, Location], set[int]] = {}
    accounts = [Account.of(ledger, optimizer, store, readings) for optimizer, store in ledger.accounts()]
    everything = chain(
        (d for account in accounts for find in _FINDERS for d in find(account)),
        (d for find in _FINDERS_OF_THE_WHOLE for d in find(ledger)),
    )
    for diagnosis in everything:
        key = diagnosis.mistake.code, replace(diagnosis.where, end_line=0, end_column=0)
        found.setdefault(key, diagnosis)
        shown.setdefault(key, set()).update(diagnosis.windows)
    together = [replace(diagnosis, windows=tuple(sorted(shown[key]))) for key, diagnosis in found.items()]
    return sorted(together, key=lambda d: (d.where, d.mistake.code))

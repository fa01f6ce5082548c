"""From a ledger to the mistakes that it shows, in the words that a person needs."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.events import Location
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.mistakes import Mistake


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One mistake, the place that causes it, and what the ledger shows.

    ``windows`` are the indices of the windows that show it (empty for gradients that no step ever consumed);
    ``message`` states the fact and its consequence, ``help`` the remedy.
    """

    mistake: Mistake
    where: Location
    message: str
    help: str
    windows: tuple[int, ...] = ()


def diagnose(ledger: Ledger, *, coefficient: float | None = None) -> list[Diagnosis]:
    """Every mistake that the ledger shows, in order of place; what is unknown is never one.

    ``coefficient`` is the loss's intended coefficient where the caller states it.
    """
    raise NotImplementedError

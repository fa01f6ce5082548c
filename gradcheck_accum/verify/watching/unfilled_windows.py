"""Batches that a loop took from a data loader for a window that the loader's end left unfilled, and that never ran."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.stack.frames import user_location


@dataclass(slots=True)
class _Pass:
    """One pass over a loader's data, as far as it has come."""

    loader: int
    given: int = 0
    ran: int = 0
    most_ahead: int = 0
    """The most batches that had been given and had not run, when one of them did."""
    most_behind: int = 0
    """The most micro-batches that ran here on what the pass before had given."""
    all_have_run: bool = False
    """Whether all that was given by its last micro-batch had run by then."""
    ended_at: Location | None = None
    by_zip: bool = False

    @property
    def left(self) -> int:
        """How many batches have not run, where the micro-batches of the pass before are not counted."""
        return self.given + self.most_behind - self.ran


@dataclass(frozen=True, slots=True)
class GivenUp:
    """``batches`` were taken for windows that were not filled, and reached no backward; a loader ended ``at`` a line.

    ``by_zip`` means that ``zip`` took them, all from one iterator: no code of the loop has ever had them.
    """

    batches: int
    at: Location
    by_zip: bool


class UnfilledWindows:
    """Counts what the passes over data loaders gave, and what ran of it."""

    def __init__(self) -> None:
        self._passes: dict[int, _Pass] = {}

    def drawn(self, number: int, loader: int) -> None:
        """A pass gave a batch."""
        self._passes.setdefault(number, _Pass(loader)).given += 1

    def ran(self, number: int | None) -> None:
        """A micro-batch ran in a pass, None where there is none."""
        own = self._passes.get(-1 if number is None else number)
        if own is not None:
            own.most_ahead = max(own.most_ahead, own.given - own.ran)
            own.ran += 1
            own.most_behind = max(own.most_behind, own.ran - own.given)
            own.all_have_run = own.left == 0

    def ended(self, number: int | None, iterator: Any) -> None:
        """A pass has no more batches."""
        own = self._passes.get(-1 if number is None else number)
        if own is not None and own.ended_at is None:
            own.ended_at = user_location()
            own.by_zip = bool(own.ran and own.left) and _is_zipped_with_itself(iterator)

    def given_up(self) -> GivenUp | None:
        """What all passes have given up together; None if that is nothing, or not known."""
        trained = [own for own in self._passes.values() if own.ran]
        if len({own.loader for own in trained}) != 1:
            return None
        found = []
        for own, following in pairwise([*trained, _Pass(trained[0].loader)]):
            # What a pass leaves over may run in the first window of the next one.
            left = own.left - following.most_behind
            if own.ended_at is not None and own.all_have_run and 0 < left < own.most_ahead:
                found.append(GivenUp(left, own.ended_at, own.by_zip))
        if not found:
            return None
        shown = next((own for own in found if own.by_zip), found[0])
        return GivenUp(sum(own.batches for own in found), shown.at, shown.by_zip)


def _is_zipped_with_itself(iterator: Any) -> bool:
    """Whether ``zip`` takes several of an iterator's items together (``zip(*[iter(loader)] * K)``)."""
    holders = [held for held in gc.get_referrers(iterator) if type(held) is tuple]
    several = [held for held in holders if sum(one is iterator for one in held) > 1]
    return any(type(holder) is zip for held in several for holder in gc.get_referrers(held))

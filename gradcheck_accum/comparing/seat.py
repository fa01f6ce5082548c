"""Where in a comparison a run belongs: made where the runs are led from, and taken in the run's own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcheck_accum.verify.watching.companion import Companion


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of run ``number`` in a comparison that is led from ``address``; called in its process, it takes it.

    ``tolerance`` is what stands in the place of the derived one (rtol and atol), where it is given; ``is_free`` says
    that it takes no other run's state on. ``rank`` is which of its ranks it is, where the run has several.
    """

    address: str
    number: int
    no_dropout: bool
    tolerance: tuple[float, float] | None
    is_free: bool = False
    rank: int = 0

    def __call__(self) -> Companion:
        """What goes along with the run."""
        from gradcheck_accum.comparing.compared_run import Side

        return Side(
            self.address,
            self.number,
            no_dropout=self.no_dropout,
            tolerance=self.tolerance,
            is_free=self.is_free,
            rank=self.rank,
        )

"""The state that the observers of one run share."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.verify.book.clips import ClipBook
from gradcheck_accum.verify.book.given_data import GivenData
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.holding import Mode, Wanted
from gradcheck_accum.verify.measure.measurer import Measurer
from gradcheck_accum.verify.provenance.counting import WindowCounters
from gradcheck_accum.verify.watching.attention import Attention
from gradcheck_accum.verify.watching.awaited import Awaited
from gradcheck_accum.verify.watching.batches import BatchCounter
from gradcheck_accum.verify.watching.journal import Journal
from gradcheck_accum.verify.watching.loss_reader import LossReader
from gradcheck_accum.verify.watching.manual_updates import UpdateByHand
from gradcheck_accum.verify.watching.uses_by_hand import UsesByHand


@dataclass(slots=True)
class Run:
    """What is known of a run by now, and how it is compared: ``mode`` is chosen when its first gradients are made."""

    wanted: Wanted
    attention: Attention
    losses: LossReader
    batches: BatchCounter
    book: GradientBook
    clips: ClipBook
    journal: Journal
    awaited: Awaited
    measurer: Measurer
    counters: WindowCounters
    given: GivenData
    uses: UsesByHand
    mode: Mode | None = None

    def choose_mode(self) -> None:
        """Where gradients are about to be made for the first time: choose what is compared, and what is held for it."""
        if self.mode is not None or not self.book.parameters:
            return
        self.mode = self.wanted.mode(list(self.book.parameters.values()), self.book.optimizers)
        self.measurer.costs.room = self.mode.room
        if self.mode.sketches:
            self.book.begin_sketches()
        # What computes the losses stays recorded where it was: it tells which of them are of one batch.
        self.measurer.replays = self.mode.replays

    def dismiss(self, optimizer: UpdateByHand) -> int:
        """Forget all that was seen of weights that were taken for those of an update by hand; how many backwards."""
        begun = self.journal.begin_again()
        self.book.dismiss(optimizer)
        self.awaited.restart()
        self.clips.forget()
        self.book.look(self.book.parameters)
        self.book.close_part()
        return begun

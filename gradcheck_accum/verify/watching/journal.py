"""What is written down of a run: its events in their order, and what was measured of each step."""

from __future__ import annotations

from collections.abc import Mapping

from gradcheck_accum.ledger.events import Backward, Clip, Event, Opaque, ScaleGrads, Step, Unscale, ZeroGrad
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.records import Measured

_TOUCHING = (ZeroGrad, ScaleGrads, Clip, Unscale, Opaque, Step)
"""Events that may set backwards apart: those before weigh otherwise than those after."""
_TELLING = 8
"""Windows that tell how a loop scales, while it runs."""


class Journal:
    """The events of a run and its measured steps, from its start or from where it was begun anew."""

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self.events: list[Event] = []
        self.measured: list[Measured] = []
        self.from_start = True
        """Whether ``events`` go back to where the loop began."""

    def add(self, event: Event) -> None:
        """Something has happened."""
        self.events.append(event)
        if isinstance(event, _TOUCHING):
            self._book.close_part()

    def put_right(self, changed: Mapping[Backward, Backward]) -> None:
        """Backwards of the last windows have become known for what they are."""
        left = set(changed)
        for position in range(len(self.events) - 1, -1, -1):
            event = self.events[position]
            if not left:
                break
            if isinstance(event, Backward) and event in left:
                self.events[position] = changed[event]
                left.discard(event)

    def take_back(self, step: Step) -> None:
        """A step that was entered was none."""
        # It is one of the last: a long run has very many.
        del self.events[next(i for i in range(len(self.events) - 1, -1, -1) if self.events[i] is step)]

    def restart(self) -> None:
        """Begin anew: what was seen before is forgotten."""
        self.from_start = False
        self.events.clear()
        self.measured.clear()

    def forget_before(self, windows: int) -> None:
        """Forget all but the last ``windows`` windows."""
        if len(self.measured) > windows:
            self.from_start = False
            del self.measured[:-windows]
            del self.events[: -self._count_of_last(windows)]

    def last_events(self) -> tuple[Event, ...]:
        """The events that tell how this loop scales: those of the last few windows."""
        return tuple(self.events[-self._count_of_last(_TELLING) :])

    def _count_of_last(self, windows: int) -> int:
        """How many of the last events are those of so many windows."""
        steps = 0
        for position, event in enumerate(reversed(self.events), 1):
            steps += isinstance(event, Step)
            if steps > windows:
                return position - 1
        return len(self.events)

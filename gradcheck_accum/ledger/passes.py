"""The passes that a loop makes over the data: seen, inferred from the positions of its steps, or unknown.

An engine sees passes where a data loader yields the batches, or where the source shows the loop over them. Where none
are seen, they are inferred from the steps, if these recur at the same positions of two or more passes of equal length
and are not evenly spaced: evenly spaced steps recur at the same positions for any length that holds a whole number of
windows. Otherwise all is treated as one pass, and what depends on its end is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from gradcheck_accum.ledger.events import Backward, Event, Step


class KnownBy(Enum):
    """How passes are known."""

    ENGINE = "an engine has seen them"
    STEPS = "the steps come at the same places of each"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Passes:
    """The pass over the data that each backward belongs to."""

    known_by: KnownBy
    _by_micro_batch: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_events(cls, events: Sequence[Event]) -> Passes:
        """The passes of a loop."""
        backwards = [event for event in events if isinstance(event, Backward)]
        if any(backward.epoch is not None for backward in backwards):
            return cls(KnownBy.ENGINE)
        length = _length(events)
        if not length:
            return cls(KnownBy.NOTHING)
        numbers = dict.fromkeys(backward.micro_batch for backward in backwards)
        return cls(KnownBy.STEPS, {number: position // length for position, number in enumerate(numbers)})

    def of(self, backward: Backward) -> int | None:
        """The pass that a backward belongs to, None where it is unknown."""
        return backward.epoch if self.known_by is KnownBy.ENGINE else self._by_micro_batch.get(backward.micro_batch)

    def count(self, events: Iterable[Event]) -> int:
        """The number of passes that events belong to, at least one if there is any backward among them."""
        return len({self.of(event) for event in events if isinstance(event, Backward)})


def _length(events: Iterable[Event]) -> int:
    """The micro-batches of each pass, inferred from the steps of an optimizer; 0 where that is not possible."""
    seen: set[int] = set()
    steps: dict[str, set[int]] = {}
    for event in events:
        if isinstance(event, Backward):
            seen.add(event.micro_batch)
        elif isinstance(event, Step) and seen:
            steps.setdefault(event.optimizer, set()).add(len(seen))
    return max((_period(sorted(own), len(seen)) for own in steps.values()), default=0)


def _period(steps: Sequence[int], count: int) -> int:
    """The length of the passes of ``count`` micro-batches, two at least, in which ``steps`` recur; 0 if none."""
    for length in range(1, count // 2 + 1):
        if count % length == 0:
            first = [step for step in steps if step <= length]
            recurs = list(steps) == [start + step for start in range(0, count, length) for step in first]
            # The last of a pass to the first of the next is a window too.
            around = [*first, *(length + step for step in first[:1])]
            if recurs and len({after - before for before, after in pairwise(around)}) > 1:
                return length
    return 0

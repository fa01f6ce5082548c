"""Losses that are kept with their graphs, which no gradient shows: GA801."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from gradcheck_accum.diagnosis.account import Diagnosis, diagnosis, plural
from gradcheck_accum.ledger.events import Backward, GraphsHeld, Step
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.wording import message

_STEPS_OF_GROWTH = 3
"""Steps in a row at which more graphs must be held than before: fewer may be a list that is about to be used."""
_HELP = "store a number or a detached tensor: total += loss.item(), or loss.detach()"


def find_held_graphs(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA801 in a run: at the steps of one place, more and more losses are held with their graphs.

    The steps of another place come at another moment of the turn, when the loop's variables hold other losses.
    """
    held: dict[Location, list[GraphsHeld]] = {}
    counted: set[Location] = set()
    for event in ledger.trace.events:
        if isinstance(event, Backward):
            counted.clear()
        elif isinstance(event, GraphsHeld) and not event.read:
            own = held.pop(event.where, [])
            # A window that several optimizers step on counts once.
            if event.where in counted:
                own.pop()
            own.append(event)
            held[event.where] = own
            counted.add(event.where)
    growing = [own[-1] for own in held.values() if _grows(own)]
    if growing:
        last = growing[-1]
        yield diagnosis(
            "GA801",
            last.where,
            "losses are stored with their autograd graphs: at the last step the graphs of "
            f"{plural(last.count)} were still in memory, and their number grows at every step",
            _HELP,
            states_steps=False,
        )


def _grows(held: list[GraphsHeld]) -> bool:
    """Whether more graphs were held at every one of several steps in a row, until they were let go or the run ended.

    What the loop's variables hold grows too, until each of them holds one. So what is let go has to grow again, for as
    many steps: a variable that is assigned in every other turn goes up and down.
    """
    growing = 1
    for number, (earlier, later) in enumerate(pairwise(held), 2):
        then = held[number - 1 : number - 1 + _STEPS_OF_GROWTH]
        grows_again = all(after.count > before.count for before, after in pairwise(then))
        if later.count < earlier.count and growing >= _STEPS_OF_GROWTH and grows_again:
            return True
        growing = growing + 1 if later.count > earlier.count else 1
    return growing >= _STEPS_OF_GROWTH


def find_kept_losses(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA801 in the source: a place that keeps every loss until its pass over the data ends, or for several windows."""
    events = ledger.trace.events
    if all(window.unknown for window in ledger.windows):
        return
    steps = [event.where for event in events if isinstance(event, Step)]
    for place in dict.fromkeys(e.where for e in events if isinstance(e, GraphsHeld) and e.read):
        passes = [kept for kept in _kept_in_passes(ledger, place) if kept.tells]
        if passes and all(kept.is_whole for kept in passes):
            held = "all micro-batches so far" if passes[-1].is_whole_pass else "several windows"
            yield diagnosis(
                "GA801",
                place,
                message(
                    "losses are stored with their autograd graphs: at the step at ",
                    steps[-1],
                    f" the graphs of {held} are still in memory",
                ),
                _HELP,
                states_steps=False,
            )


@dataclass(slots=True)
class _Kept:
    """What one place holds after the last of ``steps`` steps of a pass over the data, or since it last let go of some.

    ``is_whole_pass`` says that it lets go of none within a pass.
    """

    epoch: int | None
    is_whole_pass: bool
    batches: set[int] = field(default_factory=set)
    before: int = 0
    """How many of the micro-batches are of windows before the last."""
    count: int = 0
    steps: int = 0

    @property
    def tells(self) -> bool:
        """Whether there are enough steps to tell a place that keeps all from one that is about to let go.

        Of one micro-batch there is nothing else to be let go.
        """
        enough = _STEPS_OF_GROWTH - 1 if self.is_whole_pass else _STEPS_OF_GROWTH
        return self.steps >= enough and len(self.batches) > 1

    @property
    def is_whole(self) -> bool:
        """Whether it is every loss of the pass.

        Those of the last window may join the others only after its step, which several steps have to show.
        """
        all_before = self.steps >= _STEPS_OF_GROWTH and self.count >= self.before
        return all_before or self.count >= len(self.batches)


def _kept_in_passes(ledger: Ledger, place: Location) -> Iterator[_Kept]:
    """What a place holds in each pass; where less is held than before, it has let go of some."""
    now: _Kept | None = None
    since: set[int] = set()
    for event in ledger.trace.events:
        if isinstance(event, Backward):
            epoch = ledger.passes.of(event)
            if now is None or now.epoch != epoch:
                if now is not None:
                    yield now
                now, since = _Kept(epoch, is_whole_pass=epoch is not None), set()
            since.add(event.micro_batch)
        elif isinstance(event, GraphsHeld) and event.read and event.where == place and now is not None:
            if event.count < now.count:
                now.is_whole_pass = False
                yield now
                now = _Kept(now.epoch, is_whole_pass=False)
            now.before = len(now.batches)
            now.batches |= since
            now.count, now.steps, since = event.count, now.steps + 1, set()
    if now is not None:
        yield now

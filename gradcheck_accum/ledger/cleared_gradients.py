"""What became of gradients that were cleared before any step could use them.

Discarding an update on purpose is no mistake. Three cases look alike, and only the last one is a mistake:

- A window was *rejected* (its gradient is not finite, the loss has spiked): it was complete when it was cleared, where
  a step could have come, and what follows is complete as well, or is the rest of its pass over the data. A last
  micro-batch that was loaded or counted, and never ran because the window was rejected for it, belongs to the window.
- A window was *restarted* (an error was handled): what was cleared is less than a window, but the step still waited for
  a whole one, of the very same data or of the same pass. What was cleared is counted nowhere. That the pass is the same
  also shows where the source's counter, which decides on steps, went on counting over both, or where the clearing is in
  the very loop that counts, before the end of a pass.
- Anything else is *lost*: the remainder of a pass over the data, or micro-batches that the step counts although they
  are gone. So is what is cleared at the end of every pass, since a decision of the script depends on the data and not
  on the position in the loop; except where a micro-batch was counted and never ran, because the clearing was then a
  response to it. Where every pass ends with a complete window that is cleared in the very loop that steps, both are
  possible, because the data at the end may be the same each time: the window is taken as rejected, for an unknown
  reason. The same goes for what was cleared at the end of a pass without a call (``p.grad = None``): this may have
  happened in the loop, for a micro-batch that never ran.

All of this depends on K. It is read from the windows without clearings if they are the majority, since rejecting a
window is the exception. Where most windows had clearings, that is how the loop works, and K is the number that it
counts to, unless the losses are divided by the number of micro-batches between two clearings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from gradcheck_accum.ledger.events import Reason, Step, ZeroGrad
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.window_length import is_divided_by, usual_steps
from gradcheck_accum.ledger.windows import Entry, Fate, Window, counted_before

REFUSED_AT_EVERY_END = Reason(
    "every pass over the data ends with a complete window whose gradients are cleared without a step, because of its "
    "data or of its place: run the loop on the data in another order"
)
"""Why it is unknown whether a rejected window is a decision of the script, or a step that is missing."""

CLEARED_UNSEEN = Reason(
    "the gradients of the last micro-batches of a pass were cleared by hand (p.grad = None, p.grad.zero_()), either "
    "for a micro-batch that the loop discarded or after the loop: clear them with zero_grad() to see which"
)
"""Why it is unknown whether what is left at the end of a pass is a remainder."""


@dataclass(slots=True)
class Parted:
    """The windows of one optimizer on one store, separated from what was cleared on purpose and what was lost."""

    windows: list[Window] = field(default_factory=list)
    abandoned: list[Window] = field(default_factory=list)
    rejected: list[Window] = field(default_factory=list)
    restarted: list[Window] = field(default_factory=list)


def part(windows: Sequence[Window], same: Same) -> Parted:
    """Separate what was cleared in ``windows``, all of one optimizer and store, from what the steps should have used.

    Windows without a step remain abandoned, except for the rejected windows in them.
    """
    if not any(entry.fate is Fate.WIPED for window in windows for entry in window.entries):
        closed = [window for window in windows if window.step is not None]
        return Parted(closed, [window for window in windows if window.step is None and window.fresh()])
    steps = _usual_steps([window for window in windows if window.step is not None], same)
    passes = _Passes(windows)
    counted = counted_before(windows)
    parted = Parted()
    for window in windows:
        kept = window
        if steps is not None and not window.unknown:
            for block in _blocks(window):
                at_every_end = _ends_every_pass(block, window, passes, counted)
                is_missing = at_every_end and not _is_cleared_where_it_steps(block, window)
                if not is_missing and _is_rejected(block, window, steps, passes, counted):
                    kept = _without(kept, block)
                    doubt = REFUSED_AT_EVERY_END if at_every_end else None
                    parted.rejected.append(replace(_discarded(window, block), unknown=doubt))
                elif _is_restarted(block, window, steps, passes, counted):
                    kept = _without(kept, block)
                    parted.restarted.append(_discarded(window, block))
                elif _is_cleared_unseen(block) and passes.end_with(block[-1]) and _comes_before_others(window):
                    kept = _without(kept, block)
                    parted.rejected.append(replace(_discarded(window, block), unknown=CLEARED_UNSEEN))
        if window.step is None:
            parted.abandoned += [kept] if kept.fresh() else []
            continue
        lost = _lost_before(kept, steps)
        if lost:
            kept = _without(kept, lost)
            parted.abandoned.append(_discarded(window, lost))
        parted.windows.append(kept)
    return parted


def _usual_steps(closed: Sequence[Window], same: Same) -> int | None:
    """K, from the windows without clearings if they are the majority; otherwise from all of them.

    If they are not, and all losses are divided by the largest number of micro-batches between two clearings, that is K.
    """
    whole = [window for window in closed if not window.with_fate(Fate.WIPED)]
    if 2 * len(whole) > len(closed):
        return usual_steps(whole, same)
    stretches = (_count(own) for w in closed for own in (*_blocks(w), w.with_fate(Fate.LIVE)))
    longest = max(stretches, default=0)
    is_stated = any(window.step is not None and window.step.accumulation_steps for window in closed)
    divided = not is_stated and all(is_divided_by(window, longest, same) for window in closed)
    return longest if divided else usual_steps(closed, same)


class _Passes:
    """Where the passes over the data end that the windows come from, as far as that is known.

    Where nothing else shows passes, the source's counter does: it restarts with each.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        entries = [entry for window in windows for entry in window.fresh()]
        self._ends = {e.epoch: e for e in entries if e.epoch is not None}
        self._last = entries[-1] if entries else None
        self._counted_out = list(_counted_out(windows))

    def end_with(self, entry: Entry) -> bool:
        """Whether ``entry`` is the last of its pass, or of the run."""
        own = entry.epoch
        if own is not None:
            return entry is self._last or self._ends[own] is entry
        return entry is self._last or any(entry is last for last in self._counted_out)

    def all_end_unused(self) -> bool:
        """Whether no pass of several has a step at its end."""
        return len(self._ends) > 1 and all(e.fate in (Fate.WIPED, Fate.LEFT) for e in self._ends.values())


def _counted_out(windows: Sequence[Window]) -> Iterator[Entry]:
    """The last entries before each restart of the source's counter: those of a window, or what was cleared after it."""
    for window, following in pairwise(window for window in windows if window.fresh()):
        own, other = (w.step.counted_by if w.step is not None else None for w in (window, following))
        if own is None or other is None or own.reached is None or other.reached is None or own.reached < other.reached:
            continue
        counted = other.counted_since(own.reached)
        wiped = following.with_fate(Fate.WIPED)
        if counted is not None and following.micro_batches <= counted:
            yield window.fresh()[-1]
        elif counted is not None and wiped and _count(following.with_fate(Fate.LIVE)) <= counted:
            yield wiped[-1]


def _blocks(window: Window) -> list[tuple[Entry, ...]]:
    """The entries that were cleared together, in order."""
    wiped = window.with_fate(Fate.WIPED)
    return [tuple(own) for _, own in groupby(wiped, key=lambda entry: entry.wiped_by)]


def _is_rejected(
    block: Sequence[Entry], window: Window, steps: int, passes: _Passes, counted: Mapping[Step | ZeroGrad, int]
) -> bool:
    live = window.with_fate(Fate.LIVE)
    not_run = _never_ran(block, live, window, counted)
    if _count(block) != steps and _count(block) + not_run != steps:
        return False
    if window.step is None:
        return True
    return _comes_before_others(window) and (_count(live) == steps or passes.end_with(live[-1]))


def _is_cleared_unseen(block: Sequence[Entry]) -> bool:
    """Whether ``block`` was cleared without a call: the loop may have moved on to a micro-batch that never ran."""
    cause = block[-1].wiped_by
    return cause is not None and cause.seen_later


def _comes_before_others(window: Window) -> bool:
    """Whether no step was made on nothing but what was cleared: there is no step, or it has other gradients."""
    return window.step is None or bool(window.with_fate(Fate.LIVE))


def _ends_every_pass(
    block: Sequence[Entry], window: Window, passes: _Passes, counted: Mapping[Step | ZeroGrad, int]
) -> bool:
    """Whether ``block`` ends its pass, all passes end unused, and no micro-batch that never ran is the reason."""
    if not passes.end_with(block[-1]) or not passes.all_end_unused():
        return False
    return not _never_ran(block, window.with_fate(Fate.LIVE), window, counted)


def _is_cleared_where_it_steps(block: Sequence[Entry], window: Window) -> bool:
    """Whether the clearing may be in the loop that steps: then it may replace a step that the script rejected."""
    cause = block[-1].wiped_by
    return _is_cleared_unseen(block) or (cause is not None and window.optimizer in cause.within)


def _never_ran(
    block: Sequence[Entry], live: Sequence[Entry], window: Window, counted: Mapping[Step | ZeroGrad, int]
) -> int:
    """How many micro-batches came after those of ``block`` and before the next one of its window, and never ran."""
    cause = block[-1].wiped_by
    if cause is not None and cause in counted and _ends_with(block, cause, window):
        # What had been counted at the clearing, and is not in the block, never ran.
        return max(0, counted[cause] - _count(block))
    if not live or window.step is None:
        return 0
    last, following = block[-1].backward.given, _following(block, window).backward.given
    if last is not None and following is not None:
        return max(0, following - last - 1)
    return max(0, counted.get(window.step, 0) - window.micro_batches)


def _following(block: Sequence[Entry], window: Window) -> Entry:
    """The entry after ``block`` in a window that has live ones."""
    fresh = window.fresh()
    return fresh[next(i for i, entry in enumerate(fresh) if entry is block[-1]) + 1]


def _ends_with(block: Sequence[Entry], cause: ZeroGrad, window: Window) -> bool:
    """Whether the counting loop ended with the clearing ``cause``: no micro-batch that it had counted ran later."""
    if window.step is None:
        return window.fresh()[-1] is block[-1]
    bound, reached = window.step.counted_by, dict(cause.counted).get(window.optimizer)
    return bound is not None and bound.reached is not None and reached is not None and bound.reached < reached


def _is_restarted(
    block: Sequence[Entry], window: Window, steps: int, passes: _Passes, counted: Mapping[Step | ZeroGrad, int]
) -> bool:
    live = window.with_fate(Fate.LIVE)
    if window.step is None or _count(block) >= steps or _count(live) != steps:
        return False
    batches, again = ({entry.backward.batch for entry in own} for own in (block, live))
    epochs = {entry.epoch for entry in (*block, *live)}
    in_one_pass = len(epochs) == 1 if None not in epochs else counted.get(window.step, 0) >= window.micro_batches
    cause = block[-1].wiped_by
    is_in_the_loop = cause is not None and window.optimizer in cause.within and not passes.end_with(block[-1])
    return in_one_pass or is_in_the_loop or (None not in batches and batches <= again)


def _lost_before(window: Window, steps: int | None) -> tuple[Entry, ...]:
    """The micro-batches that were discarded as a remainder before those that the step of ``window`` used.

    They are a remainder if they belong to an earlier pass over the data than every entry that stayed, or, where passes
    cannot be distinguished, if the window is complete without them. Not if the window is complete with them, and what
    was cleared together is of both passes: the count went on, and the clearing is in the middle of the window.
    """
    wiped, live = window.with_fate(Fate.WIPED), window.with_fate(Fate.LIVE)
    if not wiped or not live or steps is None:
        return ()
    first = live[0].epoch
    if first is not None and wiped[0].epoch is not None:
        runs_on = any({first} < {entry.epoch for entry in block} for block in _blocks(window))
        if runs_on and _count(window.fresh()) == steps:
            return ()
        lost = tuple(e for e in wiped if e.epoch is not None and e.epoch < first)
    else:
        lost = wiped if _count(live) >= steps else ()
    return lost if _count(lost) < max(steps, 2) else ()


def _count(entries: Iterable[Entry]) -> int:
    """The number of micro-batches that entries come from."""
    return len({entry.backward.micro_batch for entry in entries})


def _without(window: Window, gone: Sequence[Entry]) -> Window:
    """A window without entries that were cleared, and without what was done to them before that (a clip, say)."""
    begins = next((i for i, event in enumerate(window.events) if event is gone[-1].wiped_by), 0)
    return replace(window, events=window.events[begins:]).without({entry.backward for entry in gone})


def _discarded(window: Window, entries: Sequence[Entry]) -> Window:
    """What was cleared before the step of ``window``, as a window that no step closed."""
    return replace(window, entries=tuple(entries), step=None, events=tuple(e.backward for e in entries))

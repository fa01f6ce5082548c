"""Patterns of clipping: GA401, GA402, GA501."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis, interrupted, plural
from gradcheck_accum.ledger.events import Backward, Clip, Event, Opaque, Unscale, ZeroGrad
from gradcheck_accum.ledger.windows import Fate, Window
from gradcheck_accum.wording import message

_GONE = "they have just been cleared or used by a step"


def find_clip(account: Account) -> Iterator[Diagnosis]:
    """GA401, GA402, GA501: a clip before the last entry, with nothing to clip, or with the scale still inside."""
    for window in (*account.known(), *account.of_unknown_length()):
        if window.step is None:
            continue
        for position, clip in enumerate(window.events):
            if isinstance(clip, Clip):
                before, after = window.events[:position], window.events[position + 1 :]
                yield from _judge_clip(
                    window, clip, before, after, habit=not window.unknown and _clips_every_batch(account, window, clip)
                )
    yield from _judge_end(account)


def _judge_end(account: Account) -> Iterator[Diagnosis]:
    """GA402 after the last step, which is in no window: the clip of a flush, or of the only step."""
    if not account.windows or account.windows[-1].unknown or account.windows[-1].with_fate(Fate.STALE):
        return
    last = account.windows[-1]
    after = _events_after(account, last)
    if any(isinstance(event, Opaque) for event in after):
        return
    for position, clip in enumerate(after):
        if isinstance(clip, Clip) and not any(isinstance(event, Backward) for event in after[:position]):
            yield _nothing_to_clip(clip, _GONE, last)


def _events_after(account: Account, window: Window) -> tuple[Event, ...]:
    """What touched the account's store after the step of its last window."""
    events = account.ledger.trace.events
    begins = next((i for i, event in enumerate(events, 1) if event is window.step), len(events))
    return tuple(event for event in events[begins:] if account.store in getattr(event, "stores", ()))


def _clips_every_batch(account: Account, window: Window, clip: Clip) -> bool:
    """Whether the place of a clip clips at every micro-batch of a full window, whatever is cleared in between.

    Then the clip itself is too early, and does not belong to something else that was discarded.
    """
    if not 1 < account.steps <= window.micro_batches or window.index in interrupted(account):
        return False
    clipped, last = set(), None
    for event in window.events:
        if isinstance(event, Backward):
            last = event.micro_batch
        elif isinstance(event, Clip) and event.where == clip.where:
            clipped.add(last)
    return len(clipped - {None}) == window.micro_batches


def _judge_clip(
    window: Window, clip: Clip, before: tuple[Event, ...], after: tuple[Event, ...], *, habit: bool
) -> Iterator[Diagnosis]:
    filled, waiting = _held(before)
    stale = bool(window.with_fate(Fate.STALE))
    wiped_later = any(isinstance(e, ZeroGrad) for e in after)
    missing = len({e.micro_batch for e in after if isinstance(e, Backward)} - {e.micro_batch for e in filled})
    if not filled and not stale:
        if window.unknown:
            return
        gone = "they are not in .grad yet, but waiting to be averaged over the ranks" if waiting else _GONE
        yield _nothing_to_clip(clip, gone, window)
        return
    if missing and (habit or not wiped_later) and window.step is not None:
        others = "other micro-batches" if window.unknown else plural(missing)
        yield diagnosis(
            "GA401",
            clip.where,
            message(
                f"gradients are clipped before the window is complete: {others} "
                f"{'is' if missing == 1 and not window.unknown else 'are'} still to come before the step at ",
                window.step.where,
                ", so the limit is not applied to the large-batch gradient",
            ),
            "clip once per window, right before the step",
            window,
        )
    scaled = any(e.grad_scaled for e in filled)
    if scaled and not any(isinstance(e, Unscale) for e in before):
        yield diagnosis(
            "GA501",
            clip.where,
            "gradients are clipped before unscale_(), so the limit (max_norm) applies to scaled gradients",
            "call scaler.unscale_(optimizer) right before clipping",
            window,
            states_steps=False,
        )


def _nothing_to_clip(clip: Clip, gone: str, window: Window) -> Diagnosis:
    return diagnosis(
        "GA402",
        clip.where,
        f"there are no gradients to clip here: {gone}, so clipping has no effect",
        "clip after the window's last backward and before the step",
        window,
        states_steps=False,
    )


def _held(events: tuple[Event, ...]) -> tuple[list[Backward], list[Backward]]:
    """The backwards whose gradients are in ``.grad`` after ``events``, and those kept outside it."""
    held: list[Backward] = []
    waiting: list[Backward] = []
    for event in events:
        match event:
            case Backward() if event.waits:
                waiting.append(event)
            case Backward():
                held, waiting = [*held, *waiting, event], []
            case ZeroGrad():
                held = []
    return held, waiting

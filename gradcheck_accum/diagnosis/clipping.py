"""Patterns of clipping: GA401, GA402, GA501."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis, plural
from gradcheck_accum.events import Backward, Clip, Event, Opaque, Unscale, ZeroGrad
from gradcheck_accum.ledger import Fate, Window
from gradcheck_accum.wording import message


def find_clip(account: Account) -> Iterator[Diagnosis]:
    """GA401, GA402, GA501: a clip before the last entry, with nothing to clip, or with the scale still inside."""
    for window in account.known():
        if window.step is None:
            continue
        for position, clip in enumerate(window.events):
            if isinstance(clip, Clip):
                yield from _judge_clip(window, clip, window.events[:position], window.events[position + 1 :])
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
            yield _nothing_to_clip(clip, "they have just been cleared or used", last)


def _events_after(account: Account, window: Window) -> tuple[Event, ...]:
    """What touched the account's store after the step of its last window."""
    events = account.ledger.trace.events
    begins = next((i for i, event in enumerate(events, 1) if event is window.step), len(events))
    return tuple(event for event in events[begins:] if account.store in getattr(event, "stores", ()))


def _judge_clip(window: Window, clip: Clip, before: tuple[Event, ...], after: tuple[Event, ...]) -> Iterator[Diagnosis]:
    filled, waiting = _held(before)
    stale = bool(window.with_fate(Fate.STALE))
    wiped_later = any(isinstance(e, ZeroGrad) for e in after)
    missing = len({e.micro_batch for e in after if isinstance(e, Backward)} - {e.micro_batch for e in filled})
    if not filled and not stale:
        gone = "they wait beside .grad to be averaged" if waiting else "they have just been cleared or used"
        yield _nothing_to_clip(clip, gone, window)
        return
    if missing and not wiped_later and window.step is not None:
        yield diagnosis(
            "GA401",
            clip.where,
            message(
                f"gradients are clipped before the window is complete: {plural(missing)} "
                f"{'is' if missing == 1 else 'are'} still to come before the step at ",
                window.step.where,
                ", so what is clipped is not the large batch's gradient",
            ),
            "clip once per window, right before the step",
            window,
        )
    scaled = any(e.grad_scaled for e in filled)
    if scaled and not any(isinstance(e, Unscale) for e in before):
        yield diagnosis(
            "GA501",
            clip.where,
            "gradients are clipped while the grad scaler's scale is still in them, so the limit means nothing",
            "call scaler.unscale_(optimizer) right before the clip",
            window,
            states_steps=False,
        )


def _nothing_to_clip(clip: Clip, gone: str, window: Window) -> Diagnosis:
    return diagnosis(
        "GA402",
        clip.where,
        f"gradients are clipped where there are none: {gone}, so nothing is limited",
        "clip after the window's last backward and before the step",
        window,
        states_steps=False,
    )


def _held(events: tuple[Event, ...]) -> tuple[list[Backward], list[Backward]]:
    """The backwards of which ``.grad`` holds something after ``events``, and those that wait beside it."""
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

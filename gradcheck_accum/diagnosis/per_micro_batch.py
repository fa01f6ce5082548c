"""Calls at the wrong rate, which no gradient shows: once per micro-batch instead of once per step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradcheck_accum.diagnosis.account import Diagnosis, diagnosis
from gradcheck_accum.ledger.events import AverageUpdate, Backward, Event, SchedulerStep, Step
from gradcheck_accum.ledger.passes import Passes
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.wording import Said, message

_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True, slots=True)
class Pace(Generic[_E]):
    """A scheduler or an average: its events, the last of them at the usual place, and all events of its lifetime."""

    event: _E
    own: list[_E]
    life: tuple[Event, ...]

    @property
    def made(self) -> int:
        """How often it happened."""
        return len(self.own)


def every_micro_batch(ledger: Ledger, kind: type[_E]) -> Iterator[Pace[_E]]:
    """The things of a kind that happen once per micro-batch in most of the windows that hold several."""
    for pace in _paces(ledger, kind):
        if _keeps_pace(pace, ledger.passes):
            yield pace


def _paces(ledger: Ledger, kind: type[_E]) -> Iterator[Pace[_E]]:
    """The things of a kind, each with its time; nothing where no window could be followed."""
    events = ledger.trace.events
    things: dict[tuple[tuple[str, int] | None, str], list[_E]] = {}
    for event in events:
        if isinstance(event, kind):
            # A scheduler that moves after the flush of a remainder too is still the one.
            is_known = isinstance(event, SchedulerStep) and event.scheduler
            things.setdefault((None if is_known else event.where.place, _name(event)), []).append(event)
    if all(window.unknown for window in ledger.windows):
        return
    for own in things.values():
        # A function that is called again creates its objects again: each is judged by its own lifetime.
        place = own[0].where.place
        made = sorted({_since(others[0]) for others in things.values() if others[0].where.place == place})
        ends = next((batch for batch in made if batch > _since(own[0])), None)
        ((usual, _),) = Counter(event.where.place for event in own).most_common(1)
        last = next(event for event in reversed(own) if event.where.place == usual)
        life = _between(events, _since(own[0]), ends)
        yield Pace(last, own, tuple(event for event in life if _concerns(event, last)))


def _concerns(event: Event, thing: Event) -> bool:
    """Whether an event is one of the steps that a thing keeps pace with: those of its own optimizer, on its weights.

    So are the backwards, that what is left of them is its own windows.
    """
    own = thing.stores if isinstance(thing, (SchedulerStep, AverageUpdate)) else frozenset()
    return not own or not isinstance(event, (Step, Backward)) or bool(own & event.stores)


def _between(events: Sequence[Event], first: int, end: int | None) -> Iterator[Event]:
    """The events from one micro-batch on, up to another."""
    now = 0
    for event in events:
        now = event.micro_batch if isinstance(event, Backward) else now
        if now >= first and (end is None or now < end):
            yield event


def _since(event: Event) -> int:
    return event.since if isinstance(event, (SchedulerStep, AverageUpdate)) else 0


def _name(event: Event) -> str:
    """The key by which an event is attributed to its scheduler or average."""
    return getattr(event, "scheduler", "") or getattr(event, "average", "")


def _keeps_pace(pace: Pace[_E], passes: Passes) -> bool:
    """Whether most windows of several micro-batches hold as many of the events as micro-batches."""
    counted: set[Event] = set(pace.own)
    full = busy = count = 0
    batches: set[int] = set()
    for event in pace.life:
        if event in counted:
            count += 1
        elif isinstance(event, Backward):
            batches.add(event.micro_batch)
        elif isinstance(event, Step) and batches:
            if len(batches) > 1:
                full += 1
                # What follows the window's last micro-batch comes after its step: it is counted with the next.
                busy += count >= len(batches) - (full == 1)
            batches, count = set(), 0
    # More than one for each window and one for each pass over the data.
    return busy * 2 > full and pace.made > _closed(pace.life) + passes.count(pace.life)


def _closed(events: Sequence[Event]) -> int:
    """How many windows were closed: several optimizers may step on one."""
    steps, filled = 0, False
    for event in events:
        if isinstance(event, Step):
            steps, filled = steps + filled, False
        filled = filled or isinstance(event, Backward)
    return steps


def _steps(events: Sequence[Event]) -> Counter[str]:
    """How many steps each optimizer made."""
    return Counter(event.optimizer for event in events if isinstance(event, Step))


def _usual_steps(ledger: Ledger, pace: Pace[_E]) -> int | None:
    """K of the steps that a thing keeps pace with: another optimizer may have another."""
    own: set[Event] = {event for event in pace.life if isinstance(event, Step)}
    return usual_steps((window for window in ledger.windows if window.step in own), ledger.same)


def _at_last_step(events: Sequence[Event]) -> Said:
    """Where the loop steps."""
    return next((message(" (at ", e.where, ")") for e in reversed(events) if isinstance(e, Step)), "")


def find_schedule(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA601: a schedule that advances K times as fast as the steps that it was made for."""
    for pace in every_micro_batch(ledger, SchedulerStep):
        horizon = pace.event.horizon
        counts = [count for _, count in _steps(pace.life).most_common()]
        if horizon is not None:
            # Made for as many moves as there are micro-batches it is right; for anything but the steps, something else.
            counts = [count for count in counts if abs(horizon - count) <= ledger.passes.count(pace.life)]
        if not counts or (horizon is not None and horizon >= pace.made):
            continue
        often = f"{_usual_steps(ledger, pace)} times"
        if pace.event.by_hand:
            yield diagnosis(
                "GA601",
                pace.event.where,
                message(
                    f"the learning rate is changed at every micro-batch, {often} per optimizer step",
                    _at_last_step(pace.life),
                    ": it advances while the weights do not, and runs ahead of training unless it was planned in "
                    "micro-batches",
                ),
                "change the learning rate once per window, together with the step",
            )
            continue
        yield diagnosis(
            "GA601",
            pace.event.where,
            message(
                f"the learning rate scheduler steps at every micro-batch, {often} per optimizer step",
                _at_last_step(pace.life),
                ", so the schedule runs ahead of the training it was planned for",
            ),
            "step the scheduler once per window, after the optimizer, or set its length in micro-batches",
        )


def find_cut_short(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA603: a schedule that was made for as many moves as there are micro-batches, and makes one for each step."""
    if not ledger.trace.complete:
        return
    for pace in _paces(ledger, SchedulerStep):
        horizon, slack = pace.event.horizon, ledger.passes.count(pace.life)
        batches = len({event.micro_batch for event in pace.life if isinstance(event, Backward)})
        with_steps = any(abs(pace.made - count) <= slack for count in _steps(pace.life).values())
        # Once per epoch differs from once per step, and where the two are the same nothing can be decided.
        steps = _usual_steps(ledger, pace) or 1
        several = pace.made < batches and steps > 1
        # The step for a remainder is one more than half of the micro-batches may be.
        if several and with_steps and slack < pace.made <= batches // 2 + slack and horizon == batches:
            yield diagnosis(
                "GA603",
                pace.event.where,
                message(
                    "the learning rate schedule is as long as the number of micro-batches, but advances once per "
                    "optimizer step",
                    _at_last_step(pace.life),
                    f": training ends after only 1/{steps} of it",
                ),
                "set the schedule's length in optimizer steps: divide it by the accumulation steps",
            )


def find_average(ledger: Ledger) -> Iterator[Diagnosis]:
    """GA602: a moving average that takes in the same weights several times."""
    for pace in every_micro_batch(ledger, AverageUpdate):
        yield diagnosis(
            "GA602",
            pace.event.where,
            message(
                "the moving average is updated at every micro-batch, although the weights change once per window",
                _at_last_step(pace.life),
                ": the same weights are averaged in again, so the effective decay is not the one that was set",
            ),
            "update the average once per window, after the step",
            states_steps=False,
        )

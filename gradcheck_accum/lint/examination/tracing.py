"""From the record of a loop to its events, once all of it is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradcheck_accum.ledger.events import (
    AverageUpdate,
    Backward,
    Clip,
    Count,
    Event,
    Factor,
    GraphsHeld,
    LossShown,
    Opaque,
    Purpose,
    Reason,
    Reduction,
    ScaleGrads,
    ScalerUpdate,
    SchedulerStep,
    ShownLoss,
    Step,
    Trace,
    Unscale,
    ZeroGrad,
    product_of,
)
from gradcheck_accum.lint.examination.stores import Stores, doubt, is_a_part, stained
from gradcheck_accum.lint.state.recorder import GAVE_A_LOSS, Recorded, Recorder
from gradcheck_accum.lint.state.values import UNITS, Figure, Num, Optimizer, Part


def trace_of(record: Recorder) -> Trace:
    """The events of a loop."""
    stores = Stores.of(record.raw)
    everything = stores.everything
    done = _with_doubts(record.raw)
    events = _with_those_of_windows([event for one in done for event in _events(record, one, stores, everything)])
    reason, left = doubt(events, stores), stained(events)
    if left:
        events.insert(0, Opaque(where=record.raw[0].where, stores=left, reason=Reason("what another loss left there")))
    if reason:
        events.insert(0, Opaque(where=record.raw[0].where, stores=everything, reason=reason))
    return Trace(
        tuple(events),
        assumed_length=record.assumed_length,
        assumed_turns=record.assumed_turns,
        assumed_units=float(record.assumed_units),
        counts=tuple(Count(where, value) for where, value in record.counts.items()),
    )


def _with_doubts(raw: list[Recorded]) -> list[Recorded]:
    """What was done; where nothing in sight clears gradients, whatever gave the losses may have cleared them."""
    if any(one.kind == "zero" for one in raw):
        return raw
    return [replace(one, kind="opaque") if one.kind == GAVE_A_LOSS else one for one in raw]


def _with_those_of_windows(events: list[Event]) -> list[Event]:
    """Events in which a loss of weights alone, of no data, belongs to a micro-batch of its own window.

    It is the last one that ran before it, or the first one after it if it begins the window.
    """
    placed = list(events)
    for place, event in enumerate(events):
        if isinstance(event, Backward) and _is_of_no_data(event):
            others = _next_of_data(event, reversed(events[:place])) or _next_of_data(event, events[place + 1 :])
            if others is not None:
                number, epoch, given = others.micro_batch, others.epoch, others.given
                placed[place] = replace(event, micro_batch=number, epoch=epoch, given=given)
    return placed


def _is_of_no_data(backward: Backward) -> bool:
    return all(term.reduction is Reduction.NONE for term in backward.terms)


def _next_of_data(backward: Backward, events: Iterable[Event]) -> Backward | None:
    """The first of several events that is a backward of data to the same stores, unless one uses or clears these."""
    for event in events:
        if backward.stores.isdisjoint(getattr(event, "stores", ())):
            continue
        if isinstance(event, (Step, ZeroGrad)):
            return None
        if isinstance(event, Backward) and not _is_of_no_data(event):
            return event
    return None


def _events(record: Recorder, one: Recorded, stores: Stores, everything: frozenset[str]) -> Sequence[Event]:
    """What one thing that the loop did comes to."""
    reached = stores.reached_by(one, everything)
    if one.kind == "scale" and is_a_part(one, everything, stores.owned):
        # What the others are multiplied by, and so the whole, is not known: only that they are all still there.
        return [ScaleGrads(where=one.where, stores=everything, factor=Factor(None))]
    if one.kind == "zero" and is_a_part(one, everything, stores.owned):
        return [Opaque(where=one.where, stores=everything, reason=Reason("which gradients of a model change"))]
    if one.kind == "move":
        return _move(record, one, reached)
    if one.kind == "show":
        return _shown(record, one)
    if one.kind == "backward" and not reached:
        # No optimizer's model is among those that the loss came from: the flow was lost on the way.
        return [Opaque(where=one.where, stores=everything, reason=Reason("which models a loss reaches"))]
    if one.kind == "backward":
        cut_off = stores.named(one.details["cut_off"]) - reached
        return [Backward(where=one.where, stores=reached, **one.details | {"cut_off": cut_off})]
    event = _event(one, reached)
    return [] if event is None else [event]


def _move(record: Recorder, one: Recorded, stores: frozenset[str]) -> list[SchedulerStep]:
    """A scheduler's move, if what it was made for is counted by the loop too.

    A length is known if it is that of the data that the loop runs over, a number that stands for a name if the loop
    counts by it: another divisor may be a batch size, or the number of ranks.
    """
    horizon: Num | str = one.details["horizon"]
    if isinstance(horizon, str):
        if not _ends_after_micro_batches(record, horizon):
            return []
        details = one.details | {"horizon": record.micro_batch + 1 - one.details["since"]}
        return [SchedulerStep(where=one.where, stores=stores, **details)]
    length_is_known = not record.assumed_length or bool(horizon.tags & record.counted - horizon.names)
    if not length_is_known or UNITS in horizon.tags or not horizon.names <= record.counted:
        return []
    details = one.details | {"horizon": math.ceil(horizon.value)}
    return [SchedulerStep(where=one.where, stores=stores, **details)]


def _ends_after_micro_batches(record: Recorder, end: str) -> bool:
    """Whether a setting, which a count of the loop is compared with to end training, counts its micro-batches.

    It does if that count has grown with each of them, and by one.
    """
    counts = record.ends.get(end, {})
    each = len(counts) > 1 and len(counts) == max(counts) - min(counts) + 1
    return each and len({count - micro_batch for micro_batch, count in counts.items()}) == 1


def _shown(record: Recorder, one: Recorded) -> list[LossShown]:
    """What a number that was shown is made of, if that is known by now."""
    figure: Figure = one.details["figure"]
    losses: dict[int, ShownLoss] = {}
    for part in figure.parts:
        sent = record.graphs.get(part.origin) or record.without_graphs.get(part.origin)
        loss = _loss_in(part, sent) if sent is not None and part.micro_batch == sent.micro_batch else None
        if loss is None or losses.setdefault(part.micro_batch, loss) != loss:
            return []
    return [
        LossShown(
            where=one.where,
            shown_at=one.details["shown_at"],
            backward=record.backwards[figure.parts[-1].origin],
            losses=tuple(losses.values()),
            as_read=one.details["as_read"],
        )
    ]


def _loss_in(part: Part, sent: Part) -> ShownLoss | None:
    """The displayed part of the loss that backward was called on; None if a factor is unknown."""
    if part.reduction is not sent.reduction:
        return None
    pairs = zip(part.factors, sent.factors, strict=False)
    common = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1] and pair[0].where == pair[1].where, pairs)
    )
    read, left_out = part.factors[common:], sent.factors[common:]
    share = product_of(read)
    if share is None or product_of(left_out) in (None, 0.0):
        return None
    times_steps = any(factor.purpose is Purpose.ACCUMULATION for factor in read)
    return ShownLoss(share, left_out, part.micro_batch, times_steps)


def _event(one: Recorded, stores: frozenset[str]) -> Event | None:
    where, details = one.where, one.details
    match one.kind:
        case "zero":
            return ZeroGrad(where=where, stores=stores)
        case "clip":
            return Clip(where=where, stores=stores)
        case "scale":
            return ScaleGrads(where=where, stores=stores, factor=details["factor"])
        case "unscale":
            return Unscale(where=where, stores=stores)
        case "step" if isinstance(one.owner, Optimizer):
            return Step(
                where=where,
                optimizer=one.owner.name,
                stores=stores,
                accumulation_steps=details["steps"],
                counted_by=details["counted_by"],
                through_scaler=details["through_scaler"],
            )
        case "scaler update":
            return ScalerUpdate(where=where)
        case "rate":
            return SchedulerStep(where=where, stores=stores, **details)
        case "average":
            return AverageUpdate(where=where, stores=stores, **details)
        case "held":
            return GraphsHeld(where=where, read=True, **details)
        case "opaque":
            return Opaque(where=where, stores=stores, reason=details["reason"])
    return None

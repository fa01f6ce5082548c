"""Traces of training loops, written by hand: their events, their codes and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradcheck_accum.diagnosis import diagnose
from gradcheck_accum.ledger.events import (
    Backward,
    Clip,
    Event,
    Factor,
    Operation,
    Reduction,
    Step,
    Term,
    Trace,
    ZeroGrad,
)
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import read_weights

MODEL = frozenset({"model"})


def at(line: int) -> Location:
    return Location("train.py", line)


def backward(
    batch: int,
    *divisors: float,
    units: float | None = 7,
    epoch: int | None = None,
    line: int = 10,
    reduction: Reduction = Reduction.MEAN,
    stores: frozenset[str] = MODEL,
    scaled: bool = False,
    synced: bool | None = None,
    multiply: Iterable[float] = (),
    name: str = "loss",
) -> Backward:
    factors = [Factor(1 / d, Operation.DIVIDE) for d in divisors] + [Factor(m) for m in multiply]
    term = Term(name, reduction, units, tuple(factors), rows=units)
    return Backward(
        where=at(line),
        micro_batch=batch,
        stores=stores,
        terms=(term,),
        epoch=epoch,
        grad_scaled=scaled,
        synced=synced,
    )


def step(line: int = 20, optimizer: str = "opt", stores: frozenset[str] = MODEL, **kwargs: object) -> Step:
    return Step(where=at(line), optimizer=optimizer, stores=stores, **kwargs)  # type: ignore[arg-type]


def zero(line: int = 21, stores: frozenset[str] = MODEL) -> ZeroGrad:
    return ZeroGrad(where=at(line), stores=stores)


def clip(line: int = 19) -> Clip:
    return Clip(where=at(line), stores=MODEL)


def loop(
    lengths: Iterable[int],
    *divisors: float,
    before: tuple[Event, ...] = (),
    after: tuple[Event, ...] = (),
    closing: tuple[Event, ...] | None = None,
    **kwargs: object,
) -> Iterator[Event]:
    """Windows of the given lengths, with extra events around every backward."""
    batch = 0
    for length in lengths:
        for _ in range(length):
            yield from before
            yield backward(batch, *divisors, **kwargs)  # type: ignore[arg-type]
            yield from after
            batch += 1
        yield from (step(), zero()) if closing is None else closing


def codes(events: Iterable[Event], **trace: object) -> list[str]:
    ledger = fold(Trace(tuple(events), **trace))  # type: ignore[arg-type]
    return sorted({d.mistake.code for d in diagnose(ledger)})


def weights(events: Iterable[Event], **trace: object) -> list[list[float | None]]:
    ledger = fold(Trace(tuple(events), **trace))  # type: ignore[arg-type]
    readings = read_weights(ledger)
    return [[w and round(w, 6) for w in readings.relative_weights(window)] for window in ledger.windows]

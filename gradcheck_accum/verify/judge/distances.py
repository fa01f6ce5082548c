"""How far a step's gradient is from what it is compared with, and how far it may be: numbers, and no verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradcheck_accum.engine.tolerance import (
    Addends,
    Bounds,
    SumTolerance,
    replay_tolerance,
    sketched_cosine,
    sum_tolerance,
)
from gradcheck_accum.ledger.events import Cause
from gradcheck_accum.ledger.weights import Readings
from gradcheck_accum.ledger.windows import Ledger, Window
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.measure.corrections import entry_corrections, in_vectors, replay_correction
from gradcheck_accum.verify.vectors.inner_products import InnerProducts

Terms = list[tuple[int, float]]
"""A combination of a window's vectors: (vector, factor)."""


@dataclass(slots=True)
class MeasuredWindow:
    """A measured step with what the ledger knows of it: a window for each of its stores."""

    measured: Measured
    ledger: Ledger
    readings: Readings
    parts: tuple[Window, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = self.ledger.closed_by(self.measured.step)

    def unknown(self, cause: Cause) -> str:
        """Why a part is unknown, in words, where that is for ``cause``; else nothing."""
        return next((w.unknown.words for w in self.parts if w.unknown and w.unknown.cause is cause), "")


@dataclass(slots=True)
class Reference:
    """The ledger reference of a window: its micro-batches' own gradients, weighed as the large batch weighs them.

    ``terms`` are the vectors that make it up, ``addends`` the micro-batches' parts.
    """

    corrections: Sequence[float]
    terms: Terms
    addends: Addends


@dataclass(frozen=True, slots=True)
class ReplayDistance:
    """How far two references are apart, between what that lies, and how far they may be."""

    distance: float
    within: Bounds
    allowed: float

    def is_rounding(self, options: Options) -> bool:
        """Whether they are as near to each other as rounding, or the caller, allows."""
        return self.within.high <= max(self.allowed, options.rtol or 0.0)

    def is_open(self, options: Options) -> bool:
        """Whether it is not known if they are."""
        return self.within.low <= max(self.allowed, options.rtol or 0.0) < self.within.high


def reference_of(window: MeasuredWindow, products: InnerProducts) -> Reference | None:
    """The ledger reference; None where a weight is not known."""
    measured = window.measured
    corrections = entry_corrections(measured, window.ledger, window.readings)
    terms = None if corrections is None else in_vectors(measured, corrections)
    if corrections is None or terms is None:
        return None
    contributions = [abs(w) * norm for w, norm in zip(corrections, measured.own_norms, strict=True) if w]
    return Reference(corrections, terms, Addends(contributions, products.combined_norm(terms)))


def difference(reference: Terms, multiple: float = 1.0) -> Terms:
    """The gradient before any clip, ``multiple`` times, less the reference."""
    return [(0, multiple), *((vector, -weight) for vector, weight in reference)]


def is_as_presumed(measured: Measured, reference: Reference, readings: Readings) -> bool:
    """Whether a step's reference is still what it was taken for when the step was made."""
    then, now = dict(measured.presumed), dict(reference.terms)
    return then.keys() == now.keys() and all(readings.same(factor, now[vector]) for vector, factor in then.items())


@dataclass(frozen=True, slots=True)
class Compared:
    """The gradient before any clip beside the ledger reference: relative error, ratio of norms, what is allowed.

    The error lies ``within`` bounds, and the ratio within ``ratio_room`` of what it is.
    """

    error: float
    ratio: float
    allowed: SumTolerance
    within: Bounds
    ratio_room: float = 0.0


def compare(measured: Measured, reference: Terms, addends: Addends, options: Options) -> Compared | None:
    """How far the gradient before any clip is from the ledger reference.

    ``addends`` are the micro-batches' gradients as the reference weighs them. None where the reference is zero and the
    gradient is not.
    """
    products = measured.products
    if products is None:
        return None
    if addends.total == 0:
        nothing = Compared(0.0, 1.0, SumTolerance(0.0, 0.0, 0.0), Bounds(0.0, 0.0))
        return nothing if products.norm(0) == 0 else None
    apart = products.combined_norm(difference(reference))
    within = quotient(products, apart, addends.total)
    allowed = sum_tolerance(addends, measured.dtype)
    if options.rtol is not None:
        given = options.rtol + (options.atol or 0.0) / addends.total
        allowed = SumTolerance(given, given, given)
    # The norm of a sum is off by what is along the sum: sketches know the angle, too, within bounds.
    room = sketched_cosine() * within.high if products.sampled else 0.0
    return Compared(apart / addends.total, products.norm(0) / addends.total, allowed, within, room)


def quotient(products: InnerProducts, norm: float, other: float) -> Bounds:
    """Between what ``norm`` / ``other`` lies, both of vectors that ``products`` are of."""
    above, below = products.bounds(norm), products.bounds(other)
    return Bounds(above.low / below.high, above.high / below.low)


def replay_distance(window: MeasuredWindow, reference: Reference) -> ReplayDistance | None:
    """How far the replayed large batch is from the ledger reference, and how far it may be."""
    measured, addends = window.measured, reference.addends
    products = measured.products
    covered = {index for replay in measured.replays for index in replay.records}
    if products is None or any(weight and index not in covered for index, weight in enumerate(reference.corrections)):
        return None
    replayed: list[tuple[int, float]] = []
    for replay in measured.replays:
        weights = replay_correction(measured, replay, window.ledger, window.readings)
        if weights is None:
            return None
        replayed += zip(replay.vectors, weights, strict=True)
    if addends.total == 0:
        return None
    distance = products.combined_norm([*replayed, *((i, -w) for i, w in reference.terms)])
    allowed = replay_tolerance(addends, measured.dtype, measured.compute_dtype)
    return ReplayDistance(distance / addends.total, quotient(products, distance, addends.total), allowed)


def is_coupled(measured: Measured, reference: Terms, allowed: float) -> bool:
    """Whether a large batch of unknown units can be told to be more than its micro-batches together.

    Where no factor makes it what they are, all of one shape, the units that a factor stands for are not the reason.
    """
    if measured.coupled_modules:
        return True
    vectors = [vector for replay in measured.replays for vector in replay.vectors]
    shapes = {tuple(leaf.shape for leaf in r.program.leaves) for r in measured.records if r.program is not None}
    several = len(vectors) > 1 or any(len(record.event.terms) > 1 for record in measured.records)
    norm = measured.products.norm(vectors[0]) if measured.products is not None else 0.0
    if several or len(shapes) > 1 or measured.products is None or not norm:
        return False
    ratio = measured.products.combined_norm(reference) / norm
    opposite = [(i, -w) for i, w in reference]
    ways = (measured.products.combined_norm([(vectors[0], way), *opposite]) for way in (ratio, -ratio))
    return min(ways) > allowed

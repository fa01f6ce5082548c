"""The distance of a step's gradient from its reference, and the tolerance for it: numbers, not verdicts."""

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
from gradcheck_accum.verify.measure.corrections import (
    entry_corrections,
    in_vectors,
    replay_correction,
    term_corrections,
)
from gradcheck_accum.verify.vectors.inner_products import InnerProducts

Terms = list[tuple[int, float]]
"""A combination of a window's vectors: (vector, factor)."""


@dataclass(slots=True)
class MeasuredWindow:
    """A measured step with its windows in the ledger, one for each of its stores."""

    measured: Measured
    ledger: Ledger
    readings: Readings
    parts: tuple[Window, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = self.ledger.closed_by(self.measured.step)

    def unknown(self, cause: Cause) -> str:
        """Why a part is unknown because of ``cause``, in words; empty if none is."""
        return next((w.unknown.words for w in self.parts if w.unknown and w.unknown.cause is cause), "")


@dataclass(slots=True)
class Reference:
    """The ledger reference of a window: its micro-batches' own gradients with their weights in the large batch.

    ``terms`` are the vectors that make it up, ``addends`` the micro-batches' parts, or those of the terms of their
    losses: then there are no ``corrections`` for micro-batches as a whole.
    """

    corrections: Sequence[float]
    terms: Terms
    addends: Addends


@dataclass(frozen=True, slots=True)
class ReplayDistance:
    """The distance of the two references, its bounds, and the tolerance for it."""

    distance: float
    within: Bounds
    allowed: float

    def is_rounding(self, options: Options) -> bool:
        """Whether the distance is within what rounding, or the caller, allows."""
        return self.within.high <= max(self.allowed, options.rtol or 0.0)

    def is_open(self, options: Options) -> bool:
        """Whether the bounds leave this open."""
        return self.within.low <= max(self.allowed, options.rtol or 0.0) < self.within.high


def reference_of(window: MeasuredWindow, products: InnerProducts) -> Reference | None:
    """The ledger reference; None where a weight is not known."""
    measured = window.measured
    corrections = entry_corrections(measured, window.ledger, window.readings)
    terms = None if corrections is None else in_vectors(measured, corrections)
    if corrections is None or terms is None:
        return _of_terms(window, products)
    contributions = [abs(w) * norm for w, norm in zip(corrections, measured.own_norms, strict=True) if w]
    return Reference(corrections, terms, Addends(contributions, products.combined_norm(terms)))


def _of_terms(window: MeasuredWindow, products: InnerProducts) -> Reference | None:
    """The reference made of the terms' own gradients, where those of one loss have different weights."""
    measured = window.measured
    corrections = term_corrections(measured, window.ledger, window.readings) if measured.terms else None
    if corrections is None:
        return None
    terms = [(own.vector, factor) for own, factor in zip(measured.terms, corrections, strict=True)]
    contributions = [abs(factor) * products.norm(vector) for vector, factor in terms]
    return Reference((), terms, Addends(contributions, products.combined_norm(terms)))


def difference(reference: Terms, multiple: float = 1.0) -> Terms:
    """The gradient before any clip, ``multiple`` times, minus the reference."""
    return [(0, multiple), *((vector, -weight) for vector, weight in reference)]


def is_as_presumed(measured: Measured, reference: Reference, readings: Readings) -> bool:
    """Whether a step's reference is still the one that was presumed when the step was made."""
    then, now = dict(measured.presumed), dict(reference.terms)
    return then.keys() == now.keys() and all(readings.same(factor, now[vector]) for vector, factor in then.items())


@dataclass(frozen=True, slots=True)
class Compared:
    """The gradient before any clip compared with the ledger reference: relative error, ratio of norms, tolerance.

    The error is ``within`` bounds, and the true ratio within ``ratio_room`` of ``ratio``.
    """

    error: float
    ratio: float
    allowed: SumTolerance
    within: Bounds
    ratio_room: float = 0.0


def compare(measured: Measured, reference: Terms, addends: Addends, options: Options) -> Compared | None:
    """Compare the gradient before any clip with the ledger reference.

    ``addends`` are the micro-batches' gradients with their weights in the reference. None where nothing was measured,
    or where the reference is zero and the gradient is not.
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
    # Only the part of the error along the sum changes its norm, and sketches give the angle, too, within bounds.
    room = sketched_cosine() * within.high if products.sampled else 0.0
    return Compared(apart / addends.total, products.norm(0) / addends.total, allowed, within, room)


def quotient(products: InnerProducts, norm: float, other: float) -> Bounds:
    """The bounds of ``norm`` / ``other``, both norms of vectors in ``products``."""
    above, below = products.bounds(norm), products.bounds(other)
    return Bounds(above.low / below.high, above.high / below.low)


def replay_distance(window: MeasuredWindow, reference: Reference) -> ReplayDistance | None:
    """The distance of the replayed large batch from the ledger reference, and the tolerance for it."""
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
        # Nothing is relative to zero, but the large batch's gradient may be zero too (of hinges that no sample meets).
        is_zero = not any(addends.contributions) and products.combined_norm(replayed) == 0
        return ReplayDistance(0.0, Bounds(0.0, 0.0), 0.0) if is_zero else None
    distance = products.combined_norm([*replayed, *((i, -w) for i, w in reference.terms)])
    allowed = replay_tolerance(addends, measured.dtype, measured.compute_dtype)
    return ReplayDistance(distance / addends.total, quotient(products, distance, addends.total), allowed)


def is_coupled(measured: Measured, reference: Terms, allowed: float) -> bool:
    """Whether a large batch of unknown units is known to differ from the sum of its micro-batches.

    If the micro-batches have one shape, unknown units can only cause a factor; so it does if no factor makes them
    equal.
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

"""What a backward was called on: its losses' terms and factors, and how to compute them again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from gradcheck_accum.engine.graph_nodes import SCALED_AT, SCALED_BY, shape_of
from gradcheck_accum.engine.late_counts import LateCounts, Presumed
from gradcheck_accum.engine.loss_graph import CACHED, LossReading, read_losses
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.ledger.events import Factor, Reduction, Term
from gradcheck_accum.ledger.weights import TERMS_OR_MICRO_BATCHES
from gradcheck_accum.verify.book.marks import Mark
from gradcheck_accum.verify.provenance.operands import parts_of_operand
from gradcheck_accum.verify.stack.frames import location_of, scaling_frame
from gradcheck_accum.verify.watching.carried_on import CarriedOn
from gradcheck_accum.verify.watching.dispatch_modes import without_modes
from gradcheck_accum.verify.watching.given_gradients import Given, GivenGradients
from gradcheck_accum.verify.watching.several_batches import (
    are_of_samples_one_by_one,
    has_a_term_per_batch,
    is_of_one_batch,
    with_losses_of_samples,
)

CACHED_UNSEEN = (
    f"its loss contains {CACHED}: neither its reduction nor its units are visible, so its intended weight is unknown; "
    "to compare, train with the original loss"
)
SEVERAL_CARRIED = (
    "it carries on one of several losses of the window, whose backwards reached no weights: whether these add up to "
    "that of the large batch is not known; to compare, compute one loss for all outputs of the window"
)
_KEPT_ASTRAY = 64
"""Backwards that reach no weight before one that does: a cached loss has one for each of its chunks."""


@dataclass(frozen=True, slots=True)
class BackwardLosses:
    """The losses of one backward; ``unknown`` is why their intended weights are unknown, empty if they are known.

    ``presumed`` is what their only count of targets is presumed to be, ``before`` how many other losses of their batch
    had a backward at the same line before them. ``of_one_batch`` means that they are known to be those of one batch.
    """

    reading: LossReading
    program: Program | None = None
    unknown: str = ""
    presumed: Presumed | None = None
    before: int = 0
    of_one_batch: bool = False

    @property
    def adds_up_none(self) -> bool:
        """Whether no terms of a kind are added up that may be micro-batches: their mean is made, or there is one."""
        return not self.unknown and not any(term.may_be_batches for term in self.reading.terms)

    def numbered(self, before: int) -> BackwardLosses:
        """The same, of the loss that comes after ``before`` others of its batch: its terms have names of their own."""
        terms = tuple(
            replace(term, name=term.name.replace(term.kind, f"{term.kind} of loss {before + 1}", 1))
            for term in self.reading.terms
        )
        return replace(self, reading=replace(self.reading, terms=terms), before=before)


class LossReader:
    """Reads losses right before their backward; ``precision`` is the largest unit roundoff of a loss so far.

    ``records`` says whether what computed them is on the tape.
    """

    def __init__(self, *, records: bool) -> None:
        self.tape = Tape(on_scalar=_note_scaling)
        self.precision = 0.0
        self.records = records
        self.carried = CarriedOn()
        self._given = GivenGradients(self.tape, self.carried)
        self.counts = LateCounts()
        self._scales: dict[Any, float] = {}
        self._scale_read: weakref.WeakKeyDictionary[Any, tuple[Mark, float]]
        self._scale_read = weakref.WeakKeyDictionary()
        self._unscaled: dict[int, tuple[Any, Any]] = {}
        self._astray: list[LossReading] = []

    def scaled(self, scaler: Any, before: Any, after: Any) -> None:
        """A grad scaler multiplied ``before``, a loss or something else, by its scale, and gave ``after``."""
        if not isinstance(after, torch.Tensor) or after.grad_fn is None or before is after:
            return
        self._scales[after.grad_fn] = self.scale_of(scaler)
        self._unscaled[id(after)] = (after, before)

    def scale_of(self, scaler: Any) -> float:
        """A grad scaler's scale, read from its device only where it may have changed."""
        held = getattr(scaler, "_scale", None)
        if not isinstance(held, torch.Tensor):
            return float(scaler.get_scale())
        known = self._scale_read.get(scaler)
        if known is None or not known[0].is_of(held):
            known = self._scale_read[scaler] = Mark.of(held), float(scaler.get_scale())
        return known[1]

    def read(
        self,
        losses: Sequence[torch.Tensor],
        weights: Any,
        drawn: int,
        *,
        presumes: bool = False,
        samples: int | None = None,
    ) -> BackwardLosses:
        """Read ``losses``; ``weights`` is backward's gradient argument, ``drawn`` counts the batches drawn for it.

        ``presumes`` means that the number of targets of a loss may be presumed, where to ask for it takes long,
        ``samples`` that the losses are those of so many samples, which ``vmap`` goes through at once.
        """
        if samples is not None:
            return self._of_samples(losses, samples)
        with without_modes():
            # A mode of the script's own (one that counts operations) would see plain numbers for tensors.
            given = self._given.read(list(losses), weights)
            if given is None:
                term = Term("a loss with a gradient argument", Reduction.MEAN, None, (Factor(None),))
                return BackwardLosses(LossReading((term,)))
            factors = [own.factors for own in given]
            summed = [self._summed(loss, own) for loss, own in zip(losses, given, strict=True)]
            reading, presumed = self._counted(summed, factors) if presumes else (None, None)
            if reading is None:
                reading = read_losses(summed, self._scales, factors, self.tape.preparations.shares_of)
        reading = _as_reduced_by(reading, summed, losses)
        scaled = [
            self._scales[v.grad_fn]
            for v, t in zip(losses, summed, strict=True)
            if id(v) in self._unscaled and t is not v
        ]
        if scaled:
            reading = replace(reading, scale=scaled[0])
        numbers = [own.number for own in given]
        self._note_precision(losses)

        @cache
        def recorded() -> Program | None:
            originals = [self._unscaled.get(id(loss), (None, loss))[1] for loss in summed]
            with self.tape.paused():
                program = self.tape.program(originals)
            # The gradient argument of backward multiplies the loss, also when it is computed again.
            return program if program is None or numbers[0] == 1.0 else program.times(numbers[0])

        program = recorded() if self.records and len(set(numbers)) == 1 else None
        if any(term.kind == CACHED for term in reading.terms):
            terms, unknown = self._cached(reading.terms)
            program = program if program is not None and program.is_cached else None
            return BackwardLosses(replace(reading, terms=terms), program, unknown, presumed)
        if self.carried.losses > 1 and self._carries_on(weights, recorded):
            return BackwardLosses(
                replace(reading, terms=_of_unknown_weight(reading.terms)), program, SEVERAL_CARRIED, presumed
            )
        of_samples = with_losses_of_samples(reading, recorded)
        if has_a_term_per_batch(reading, drawn, recorded):
            one_by_one = are_of_samples_one_by_one(drawn, recorded())
            if one_by_one or all(term.samples or term.reduction is Reduction.NONE for term in of_samples.terms):
                # What divides them may show what they are, when the window is known.
                terms = tuple(
                    replace(term, may_be_batches=term.reduction is not Reduction.NONE) for term in of_samples.terms
                )
                reading = replace(reading, terms=terms)
                return BackwardLosses(reading, program, presumed=presumed, of_one_batch=one_by_one)
            return BackwardLosses(
                replace(reading, terms=_of_unknown_weight(reading.terms)), program, TERMS_OR_MICRO_BATCHES, presumed
            )
        one_batch = is_of_one_batch(reading, recorded)
        return BackwardLosses(of_samples, program, presumed=presumed, of_one_batch=one_batch)

    def _carries_on(self, weights: Any, program: Callable[[], Program | None]) -> bool:
        """Whether a loss is a model's output times the gradient that another loss's backward has given it."""
        if isinstance(weights, torch.Tensor):
            return self.carried.is_of(weights)
        known = program()
        return known is not None and any(map(self.carried.is_of, known.leaves))

    def _note_precision(self, losses: Sequence[torch.Tensor]) -> None:
        roundoffs = [unit_roundoff(loss.dtype) for loss in losses if loss.is_floating_point()]
        self.precision = max([self.precision, *roundoffs])

    def _of_samples(self, losses: Sequence[torch.Tensor], samples: int) -> BackwardLosses:
        """Read the losses of samples, of which ``losses`` shows one: the gradients of all are summed."""
        self._note_precision(losses)
        try:
            with without_modes():
                reading = read_losses(losses, {})
        except RuntimeError:
            # A number of one sample alone has no value that could be asked for.
            reading = LossReading((Term("a loss of a sample", Reduction.MEAN, None, (Factor(None),)),))
        count = float(samples)
        terms = tuple(replace(t, reduction=Reduction.SUM, units=count, rows=count) for t in reading.terms)
        with self.tape.paused():
            program = self.tape.program(losses) if self.records else None
        return BackwardLosses(LossReading(terms), program)

    def _summed(self, loss: torch.Tensor, given: Given) -> torch.Tensor:
        """A vector of losses as the scalar whose backward does the same: the sum of its products with its weights."""
        if not given.is_of_vector or _is_reduced(loss):
            return loss
        call = self.tape.run if self.records else _call
        # A grad scaler's scale belongs to no loss.
        loss = self._unscaled.get(id(loss), (None, loss))[1]
        products = loss if given.weights is None else call(torch.mul, loss, given.weights)
        total: torch.Tensor = call(torch.sum, products)
        return total

    def _counted(
        self, losses: Sequence[torch.Tensor], factors: Sequence[tuple[Factor, ...]]
    ) -> tuple[LossReading | None, Presumed | None]:
        """A reading in which one count of targets may be presumed; None where several would be."""
        reading = read_losses(losses, self._scales, factors, self.tape.preparations.shares_of, self.counts.of)
        presumed = self.counts.presumed()
        if not presumed:
            return reading, None
        own = [term for term in reading.terms if term.units == presumed[0].most]
        # It has to be found again when its count is known.
        return (reading, replace(presumed[0], name=own[0].name)) if len(presumed) == len(own) == 1 else (None, None)

    def _cached(self, terms: Iterable[Term]) -> tuple[tuple[Term, ...], str]:
        """The terms of a loss of which some are cached, and why their weights are unknown, empty if they are known.

        The losses that the cached gradients come from had their backward before; if all of them were means, or sums, so
        are the cached terms.
        """
        kinds = {term.reduction for reading in self._astray for term in reading.terms}
        if len(kinds) != 1:
            return _of_unknown_weight(terms), CACHED_UNSEEN
        (kind,) = kinds
        return tuple(replace(term, reduction=kind) if term.kind == CACHED else term for term in terms), ""

    def went_astray(self, reading: LossReading) -> None:
        """A backward has reached no weight: it may have computed the gradients of a cached loss."""
        self.carried.reached_data(reading.reductions)
        self._astray.append(reading)
        del self._astray[:-_KEPT_ASTRAY]

    def next_micro_batch(self) -> None:
        """A backward has filled gradients: the earlier ones that reached no weight are not needed any more."""
        self.carried.goes_on()
        self._astray.clear()

    def next_segment(self) -> None:
        """A backward has run: what was noted for it is not needed any more."""
        self._scales.clear()
        self._unscaled.clear()
        if self.records:
            self.tape.next_segment()

    def forget(self) -> None:
        """What comes next is not watched: nothing of what was noted is needed any more."""
        self.next_segment()
        self.next_micro_batch()
        self.tape.forget()


def _note_scaling(loss: torch.Tensor) -> None:
    """Note where a loss was multiplied or divided; a module's own note on its result is kept."""
    node = loss.grad_fn
    if node is None or SCALED_AT in node.metadata:  # type: ignore[operator]
        return
    if node.name().startswith(("MulBackward", "DivBackward")):
        frame = scaling_frame()
        node.metadata[SCALED_AT] = location_of(frame)  # type: ignore[index]
        node.metadata[SCALED_BY] = parts_of_operand(frame)  # type: ignore[index]


def _of_unknown_weight(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(replace(term, factors=(*term.factors, Factor(None))) for term in terms)


def _is_reduced(loss: torch.Tensor) -> bool:
    """Whether a loss of one element that has dimensions is a reduced loss, and not the only one in a vector."""
    nodes = read_losses([loss], {}).reductions if loss.numel() == 1 else []
    return bool(nodes) and not any(shape_of(node, 0) for node in nodes)


def _call(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return function(*given)


def _as_reduced_by(reading: LossReading, summed: Sequence[torch.Tensor], losses: Sequence[torch.Tensor]) -> LossReading:
    """The reading with the loop's own nodes in place of those that the sums of its vectors have."""
    own = {total.grad_fn: loss.grad_fn for total, loss in zip(summed, losses, strict=True) if total is not loss}
    if not own:
        return reading
    return replace(reading, reduced_by=tuple((name, own.get(node, node)) for name, node in reading.reduced_by))

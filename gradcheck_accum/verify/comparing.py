"""Compares one step with its references before it is made, and its update once it has been."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger import Ledger
from gradcheck_accum.verify.by_parameter import Dissector
from gradcheck_accum.verify.clipping import clipped, multiplied
from gradcheck_accum.verify.gradients import GradientBook, Held
from gradcheck_accum.verify.measure import are_equal, combination
from gradcheck_accum.verify.measuring import Measurer
from gradcheck_accum.verify.moved import MovedWeights
from gradcheck_accum.verify.records import Measured, Update
from gradcheck_accum.verify.shadow import ShadowStep, is_too_large
from gradcheck_accum.verify.trajectory import Trajectory
from gradcheck_accum.verify.weighing import common_multiple, entry_corrections, in_vectors
from gradcheck_accum.weights import read_weights

_Gradients = dict[int, Held | None]


@dataclass(slots=True)
class Comparer:
    """Measures steps on the gradients of ``book``, and trains the reference run along where there is one."""

    book: GradientBook
    measurer: Measurer
    moved: MovedWeights
    trajectory: Trajectory | None = None
    loss_coefficient: float | None = None
    """What the loss is meant to be multiplied by, where the caller states it."""
    _dissector: Dissector = field(default_factory=Dissector)

    def compare(
        self,
        optimizer: Optimizer,
        measured: Measured,
        parameters: list[torch.Tensor],
        before_clip: _Gradients,
        used: _Gradients,
        ledger: Ledger,
    ) -> ShadowStep | None:
        """Measure a step on ``parameters``, whose gradients are given as they were before any clip and as they are.

        ``ledger`` is that of the last windows. Returns the step that the reference gradient would make, None where
        there is none or it is the loop's own.
        """
        readings = read_weights(ledger, coefficient=self.loss_coefficient)
        members = {e.backward for w in ledger.windows if w.step is measured.step for e in w.entries}
        with self.moved.as_they_were():
            vectors = self.measurer.measure(
                measured, members, parameters, before_clip, used, self.book.parameters, ledger, readings
            )
        if self.trajectory is not None:
            self.trajectory.step(optimizer, self.book.optimizers, measured, ledger, readings, members)
        if measured.products is None:
            return None
        keys = [id(p) for p in parameters]
        if measured.shards or any(r.event.ranks != 1 for r in measured.records):
            # The other ranks' part of the reference is not known here, unless it is a multiple of the gradient.
            multiple = common_multiple(measured, ledger, readings)
            presumed = None if multiple is None else multiplied(vectors[0], keys, multiple, measured.clips)
            return None if presumed is None else ShadowStep.prepare(optimizer, parameters, presumed, multiple)
        corrections = entry_corrections(measured, ledger, readings)
        weighted = None if corrections is None else in_vectors(measured, corrections)
        if weighted is None:
            return None
        measured.presumed = tuple(weighted)
        sum_of_parts = combination([(weight, vectors[index]) for index, weight in weighted])
        reference = clipped(sum_of_parts, keys, measured.clips)
        is_right = reference is not None and are_equal(reference, vectors[1], parameters)
        if measured.clips or not is_right:
            # What a clip leaves may be right where the gradient before it was not.
            measured.by_parameter = self._dissector.dissect(measured, weighted, vectors, parameters, optimizer)
        if reference is None:
            return None
        if is_right:
            # The same gradient makes the same update: nothing is learned from making it twice.
            measured.update = Update(0.0, 0.0)
            return None
        measured.too_large = is_too_large(optimizer)
        return ShadowStep.prepare(optimizer, parameters, reference)

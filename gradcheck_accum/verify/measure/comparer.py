"""Compares one step with its references before it is made, and prepares the comparison of its update."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.verify.book.clips import clipped, multiplied
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.held import Held, vector_of
from gradcheck_accum.verify.book.records import Measured, Update
from gradcheck_accum.verify.measure.corrections import in_vectors
from gradcheck_accum.verify.measure.expected_weights import ExpectedWeights
from gradcheck_accum.verify.measure.measurer import Measurer
from gradcheck_accum.verify.measure.saved_weights import MovedWeights
from gradcheck_accum.verify.measure.shadow_step import ShadowStep, is_too_large
from gradcheck_accum.verify.measure.trajectory import Trajectory
from gradcheck_accum.verify.measure.worst_parameters import Dissector
from gradcheck_accum.verify.vectors.inner_products import Vector, are_equal, combination, dense
from gradcheck_accum.verify.vectors.sharded import own_part

_Gradients = dict[int, Held | None]


@dataclass(slots=True)
class Comparer:
    """Measures steps on the gradients of ``book``, and advances the reference run where there is one."""

    book: GradientBook
    measurer: Measurer
    moved: MovedWeights
    trajectory: Trajectory | None = None
    loss_coefficient: float | None = None
    """The intended coefficient of the loss, where the caller states it."""
    _dissector: Dissector = field(default_factory=Dissector)

    def compare(
        self,
        optimizer: Optimizer,
        measured: Measured,
        parameters: list[torch.Tensor],
        before_clip: _Gradients,
        used: _Gradients,
        expected: ExpectedWeights,
    ) -> ShadowStep | None:
        """Measure a step on ``parameters``, whose gradients are given as they were before any clip and as they are.

        ``expected`` are the weights read from the last windows. Returns the step that the reference gradient would
        make, None where there is none or it is the loop's own.
        """
        own = [record for record in measured.records if record.event in expected.members]
        same = self.moved.were_same_for(own)
        with self.moved.as_they_were(own):
            vectors = self.measurer.measure(
                measured, parameters, before_clip, used, self.book.parameters, expected, same_weights=same
            )
        if self.trajectory is not None:
            self.trajectory.step(optimizer, self.book.optimizers, measured, expected)
        if measured.products is None:
            return None
        keys = [id(p) for p in parameters]
        if measured.shards or measured.sketched or any(r.event.ranks != 1 for r in measured.records):
            # Other ranks' part of the reference is not known here, and neither are the elements of what was sketched;
            # unless the reference is a multiple of the gradient.
            multiple = expected.multiple
            gradient = _as_held(measured, parameters, before_clip, used)
            if multiple is None or gradient is None:
                return None
            presumed = multiplied(gradient, keys, multiple, measured.clips)
            return None if presumed is None else ShadowStep.prepare(optimizer, parameters, presumed, multiple)
        weighted = None if expected.corrections is None else in_vectors(measured, expected.corrections)
        if weighted is None:
            return None
        measured.presumed = tuple(weighted)
        sum_of_parts = combination([(weight, vectors[index]) for index, weight in weighted])
        reference = clipped(sum_of_parts, keys, measured.clips)
        is_right = reference is not None and are_equal(reference, vectors[1], parameters)
        if measured.clips or not is_right:
            # The clipped gradient may be right although the gradient before the clip was not.
            measured.by_parameter = self._dissector.dissect(measured, weighted, vectors, parameters, optimizer)
        if reference is None:
            return None
        if is_right:
            # The same gradient makes the same update, so it need not be computed twice.
            measured.update = Update(0.0, 0.0)
            return None
        measured.too_large = is_too_large(optimizer)
        return ShadowStep.prepare(optimizer, parameters, reference)


def _as_held(
    measured: Measured, parameters: list[torch.Tensor], before_clip: _Gradients, used: _Gradients
) -> Vector | None:
    """The gradient of a step before any clip, None where only its sketch is left."""
    keys = [id(p) for p in parameters]
    if not any(held.sketched for held in map(before_clip.get, keys) if held is not None):
        return vector_of(before_clip, keys)
    if measured.clips:
        return None
    now = {}
    for key, parameter in zip(keys, parameters, strict=True):
        held, gradient = used.get(key), own_part(parameter.grad)
        now[key] = None if held is None or gradient is None else Held(dense(gradient).detach(), held.changes)
    return vector_of(now, keys)

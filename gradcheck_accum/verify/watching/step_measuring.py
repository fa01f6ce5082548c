"""Measures a step right before it is made, and its update afterwards."""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.determinism import thawed
from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.ledger.events import Step
from gradcheck_accum.verify.book.clips import BY_HAND
from gradcheck_accum.verify.book.held import Held, tensors_of
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Measured, Record
from gradcheck_accum.verify.measure.comparer import Comparer
from gradcheck_accum.verify.measure.expected_weights import WeightReader
from gradcheck_accum.verify.measure.shadow_step import ShadowStep
from gradcheck_accum.verify.vectors.sharded import NORM_UNKNOWN, Shards
from gradcheck_accum.verify.watching.autograd_grad import NOT_FOLLOWED
from gradcheck_accum.verify.watching.companion import AtStep, Companion
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand
from gradcheck_accum.verify.watching.run import Run

_Gradients = dict[int, Held | None]

INSIDE_BACKWARD = "the step runs inside backward(), where gradients cannot be compared: step after it to compare"
CHANGED_AFTER_CLIP = "the gradients were modified manually after clipping: modify them before clipping"
SKIPPED = "skipped by the grad scaler (inf or nan)"
NOT_READ = "watched only for the next window, which is compared"
NO_GRADIENT = (
    "no gradient was computed for this step: none of its parameters has one, so check which parameters backward() "
    "reaches"
)
PUT_IN = (
    "neither backward() nor torch.autograd.grad() computed the gradients of this step for its own parameters, or for a "
    "copy that equals the weights when it runs, and computes the same: the micro-batches that they come from are "
    "unknown, so compute them for these parameters, or fill the copy from them, with buffers and settings, after each "
    "step"
)

OWN_UPDATES = "the loop itself updates weights"


class StepMeasuring:
    """Compares the gradient that a step uses, and the update that it makes, with their references."""

    def __init__(self, run: Run, by_hand: GradientsByHand, shards: Shards, companion: Companion | None = None) -> None:
        self._attention, self._journal, self._losses = run.attention, run.journal, run.losses
        self._book, self._clips, self._awaited = run.book, run.clips, run.awaited
        self._by_hand, self._shards, self._companion = by_hand, shards, companion
        self._weight_reader = WeightReader()
        self.comparer = Comparer(run.book, run.measurer, run.awaited.moved)

    def before(
        self, optimizer: Optimizer, step: Step, records: list[Record], *, inside_backward: bool, closure_calls: int
    ) -> tuple[Measured, ShadowStep | None]:
        """Measure a step that uses what the backwards of ``records`` gave, the weights still those of its start.

        With it comes the step that the reference gradient would make, None where that is not to be made.
        ``closure_calls`` is how often the step has called its closure.
        """
        measured, shadow, parameters = self._begun(optimizer, step, records, inside_backward=inside_backward)
        if self._companion is not None and not inside_backward and closure_calls < 2:
            with self._attention.own_work():
                self._companion.before_step(self._at_step(optimizer, measured, has_closure=closure_calls > 0))
        self._awaited.save_weights(parameters)
        return measured, shadow

    def made_by_hand(
        self, optimizer: Optimizer, step: Step, records: list[Record], gradients: _Gradients | None = None
    ) -> None:
        """Measure a step that the loop itself has made, on the parameters of ``optimizer``, which has no part in it.

        ``gradients`` are what it uses, where it uses others than those in ``.grad``.
        The update that it made of the gradient is its own, and no reference run is known to make the same.
        """
        if self.comparer.trajectory is not None:
            self.comparer.trajectory.lost = self.comparer.trajectory.lost or OWN_UPDATES
        measured, _, _ = self._begun(optimizer, step, records, inside_backward=False, gradients=gradients)
        measured.update = None
        self._awaited.let_go(measured.records)
        self._journal.enter(measured, self._awaited.events())

    def _begun(
        self,
        optimizer: Optimizer,
        step: Step,
        records: list[Record],
        *,
        inside_backward: bool,
        gradients: _Gradients | None = None,
    ) -> tuple[Measured, ShadowStep | None, list[torch.Tensor]]:
        """A step that is measured, what its reference would do, and the parameters whose gradients it uses."""
        self._awaited.moved.settle()
        measured, shadow = Measured(step, records), None
        # What is frozen by now may have got its gradient before (two networks that are frozen in turn).
        parameters = [
            p
            for p in parameters_of(optimizer)
            if p.requires_grad or any(id(p) in record.squares for record in measured.records)
        ]
        if parameters:
            measured.dtype, measured.device = parameters[0].dtype, parameters[0].device.type
        if step.skipped:
            measured.unmeasured = SKIPPED
        elif step.unread:
            measured.unmeasured = NOT_READ
        else:
            measured.unmeasured = INSIDE_BACKWARD if inside_backward else self._why_not(optimizer, measured, parameters)
        if not measured.unmeasured:
            with self._attention.own_work(), thawed(parameters):
                shadow = self._measure(optimizer, measured, parameters, gradients)
        return measured, shadow, parameters

    def after(self, optimizer: Optimizer, measured: Measured, shadow: ShadowStep | None, *, ends_step: bool) -> None:
        """The step has been made: compare what it did to the weights, and enter what was measured of it.

        ``ends_step`` is False inside a backward, and where the step goes on: its closure is called once more.
        """
        if shadow is not None:
            with self._attention.own_work():
                measured.update = shadow.finish()
        if self.comparer.trajectory is not None:
            measured.drift = self.comparer.trajectory.drift(optimizer)
        self._awaited.let_go(measured.records)
        self._journal.enter(measured, self._awaited.events())
        if self._companion is not None and ends_step:
            with self._attention.own_work():
                self._companion.after_step(optimizer)

    def _why_not(self, optimizer: Optimizer, measured: Measured, parameters: list[torch.Tensor]) -> str:
        """Why a step cannot be measured, empty if it can."""
        unfollowed = self._shards.why_not(parameters) if any(map(is_sharded, parameters)) else ""
        if unfollowed:
            return unfollowed
        if not measured.records or not parameters:
            return self._why_no_gradient(parameters)
        changed = next((record.changed for record in measured.records if record.changed), None)
        if changed is not None:
            return changed.words
        clips = self._clips.of(optimizer)
        if clips is not None and clips.changed_since:
            return CHANGED_AFTER_CLIP
        if clips is not None and any(is_sharded(p) for p in parameters):
            return NORM_UNKNOWN if any(call.kind == "norm" and call.norm is None for call in clips.calls) else ""
        return ""

    def _why_no_gradient(self, parameters: list[torch.Tensor]) -> str:
        """Why a step has no micro-batches."""
        if self._by_hand.waiting & {id(p) for p in parameters}:
            return NOT_FOLLOWED
        return PUT_IN if any(p.grad is not None for p in parameters) else NO_GRADIENT

    def _measure(
        self,
        optimizer: Optimizer,
        measured: Measured,
        parameters: list[torch.Tensor],
        gradients: _Gradients | None,
    ) -> ShadowStep | None:
        if gradients is None:
            before, used = self._gradients(optimizer, through_scaler=measured.step.through_scaler)
        else:
            before = used = gradients
        clips = self._clips.of(optimizer)
        if clips is not None:
            measured.clips = clips.calls
        expected = self._weight_reader.of(
            measured,
            *self._journal.last_events(),
            precision=self._losses.precision,
            coefficient=self.comparer.loss_coefficient,
        )
        return self.comparer.compare(optimizer, measured, parameters, before, used, expected)

    def _gradients(self, optimizer: Optimizer, *, through_scaler: bool) -> tuple[_Gradients, _Gradients]:
        """An optimizer's gradients as they were before any clip, and as they are."""
        used = self._book.held(optimizer)
        clips = self._clips.of(optimizer)
        before = used if clips is None else clips.before
        if through_scaler:
            return before, used
        # The scale is never divided out any more: it is part of what the optimizer gets.
        scales = {key: self._book.scale_inside.get(key, 1.0) for key in used}
        return _multiplied(before, scales), _multiplied(used, scales)

    def _at_step(self, optimizer: Optimizer, measured: Measured, *, has_closure: bool) -> AtStep:
        before, used = self._gradients(optimizer, through_scaler=measured.step.through_scaler)
        clips, where = self._clips.of(optimizer), measured.step.where
        kinds = [] if clips is None else [call.kind for call in clips.calls]
        # A comparison of two runs is one of what their steps use: what a loop does by hand is a part of that.
        is_clipped = any(kind != BY_HAND for kind in kinds)
        known = clips is None or not (clips.changed_since or BY_HAND in kinds)
        now = tensors_of(used)
        return AtStep(
            optimizer,
            measured.step.optimizer,
            measured.records,
            now,
            now if not is_clipped else tensors_of(before) if known else None,
            where.path,
            where.line,
            parameters_of(optimizer),
            window=self._journal.steps,
            clips_elements=any(kind not in ("norm", BY_HAND) for kind in kinds),
            has_closure=has_closure,
        )


def _multiplied(gradients: _Gradients, factors: dict[int, float]) -> _Gradients:
    return {key: None if own is None else own.times(factors.get(key, 1.0)) for key, own in gradients.items()}

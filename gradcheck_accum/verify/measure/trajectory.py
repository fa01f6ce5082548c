"""The reference run: trained in parallel on true large batches, from the same start, with the same optimizer.

Every window is also run with the reference's own weights. A copy of each optimizer takes the steps, with the learning
rates that the loop's own had at that step, so that schedules need no copy. The relative distance of the two runs is the
drift |w - w_ref| / |w_ref - w_0|.
"""

from __future__ import annotations

import copy

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.determinism import holding
from gradcheck_accum.engine.reference import SHARDED, ReferenceEngine
from gradcheck_accum.verify.book.clips import BY_HAND, clipped
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Measured
from gradcheck_accum.verify.book.steps_in_steps import make_step
from gradcheck_accum.verify.measure.expected_weights import ExpectedWeights
from gradcheck_accum.verify.measure.measurer import Measurer
from gradcheck_accum.verify.vectors.inner_products import Vector, combination, norm_of


class Trajectory:
    """The reference run; ``lost`` is why it could not be continued, empty if it could."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.lost = ""
        self._measurer = Measurer(engine, replays=True)
        self._optimizers: dict[int, Optimizer] = {}
        self._twins: dict[int, torch.Tensor] = {}
        self._start: dict[int, torch.Tensor] = {}

    def step(
        self,
        optimizer: Optimizer,
        optimizers: list[Optimizer],
        measured: Measured,
        expected: ExpectedWeights,
    ) -> None:
        """Make the reference run's step for a window, before the loop makes its own."""
        if measured.shards:
            self.lost = SHARDED
            return
        if not self._optimizers:
            self._begin(optimizers)
        twin = self._optimizers.get(id(optimizer))
        if self.lost or twin is None:
            self.lost = self.lost or "an optimizer was created after the first step"
            return
        own = [p for p in parameters_of(optimizer) if id(p) in self._twins and p.requires_grad]
        everything = {key: p for o in optimizers for p in parameters_of(o) if (key := id(p)) in self._twins}
        scratch, vectors = Measured(measured.step, measured.records), list[Vector]()
        # The loop's own modules, with the reference's weights.
        with holding([(p, self._twins[key].data) for key, p in everything.items()]):
            self._measurer.replay(scratch, expected.members, own, everything, vectors)
        self._measurer.forget(set())
        gradients = self._combined(scratch, vectors, expected)
        limited = None if gradients is None else clipped(gradients, [id(p) for p in own], measured.clips)
        if gradients is not None and any(call.kind == BY_HAND for call in measured.clips):
            self.lost = "its gradients would have to be modified as the loop modifies its own"
            return
        if limited is None:
            self.lost = scratch.replay_problem or "a window's large batch could not be assembled"
            return
        for parameter, gradient in zip(own, limited, strict=True):
            self._twins[id(parameter)].grad = _like(gradient, parameter)
        for group, real in zip(twin.param_groups, optimizer.param_groups, strict=False):
            group.update({key: value for key, value in real.items() if key != "params"})
        try:
            make_step(twin)
        except Exception as error:
            # A step that needs more than gradients must not end the loop's own run.
            self.lost = f"the copy of the optimizer cannot step independently ({type(error).__name__})"

    def drift(self, optimizer: Optimizer) -> float | None:
        """|w - w_ref| / |w_ref - w_0| over an optimizer's parameters; None where the reference has not moved."""
        own = [p for p in parameters_of(optimizer) if id(p) in self._twins]
        if self.lost or not own:
            return None
        twins = [self._twins[id(p)].detach() for p in own]
        moved = norm_of(torch._foreach_sub(twins, [self._start[id(p)] for p in own]))
        return norm_of(torch._foreach_sub([p.detach() for p in own], twins)) / moved if moved else None

    def _begin(self, optimizers: list[Optimizer]) -> None:
        try:
            copies = copy.deepcopy(optimizers)
        except Exception as error:
            # Not every optimizer can be copied.
            self.lost = f"an optimizer cannot be copied ({type(error).__name__})"
            return
        for real, twin in zip(optimizers, copies, strict=True):
            self._optimizers[id(real)] = twin
            for parameter, other in zip(parameters_of(real), parameters_of(twin), strict=True):
                self._twins[id(parameter)] = other
                self._start[id(parameter)] = parameter.detach().clone()

    @staticmethod
    def _combined(scratch: Measured, vectors: list[Vector], expected: ExpectedWeights) -> Vector | None:
        weighted: list[tuple[float, Vector]] = []
        for replay in scratch.replays:
            weights = expected.of_replay(replay)
            if weights is None:
                return None
            weighted += zip(weights, (vectors[index] for index in replay.vectors), strict=True)
        return combination(weighted) if weighted and not scratch.replay_problem else None


def _like(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor | None:
    """A gradient in the layout of the loop's own: some optimizers require sparse ones."""
    if gradient is None:
        return None
    gradient = gradient.to(parameter.dtype)
    own = parameter.grad
    return gradient.to_sparse(own.sparse_dim()) if own is not None and own.is_sparse else gradient

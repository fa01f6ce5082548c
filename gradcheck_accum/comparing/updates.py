"""Compares what a step does to the weights with what the reference's step does to the same ones.

Two gradients that are equal up to rounding may cause different updates: Adam divides by the magnitude of past
gradients, and changes a weight even where these are only rounding errors. So where two updates differ by more than
their gradients, copies of the run's own optimizer, as it was before the step, are stepped with each of the two
gradients. The difference of these updates is due to the optimizer alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.comparing.messages import Moved
from gradcheck_accum.comparing.state import Gradient, State
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.steps_in_steps import make_step
from gradcheck_accum.verify.measure.shadow_step import Chosen, copies_of, moves_by_element
from gradcheck_accum.verify.vectors.inner_products import norm_of
from gradcheck_accum.verify.watching.companion import AtStep

_SAMPLES = 1 << 14
"""Elements of the weights whose updates are made again: of a model with more, so many that are drawn at random."""

_ROUNDINGS_OF_WEIGHTS = 4
"""Roundings of the weights that two equal updates may differ by: each is stored once, or (stochastically) up to two."""

_ROUNDINGS_OF_STEP = 64
"""Roundings of the update itself where two implementations make it (for each weight, or for all at once)."""

_OF_IMPLEMENTATION = frozenset({"lr", "foreach", "fused", "capturable", "differentiable"})
"""Settings that no weight depends on, and the learning rate, which is compared by itself."""

Settings = tuple[tuple[str, tuple[Any, ...]], ...]


def settings_of(optimizer: Optimizer) -> Settings:
    """The settings of an optimizer except its learning rate: the values of each, group by group."""
    names = [name for name in optimizer.defaults if name not in _OF_IMPLEMENTATION]
    found = ((name, tuple(_plain(group.get(name)) for group in optimizer.param_groups)) for name in names)
    return tuple((name, values) for name, values in found if _UNKNOWN not in values)


_UNKNOWN = "?"


def _plain(value: Any) -> Any:
    """A setting as a value that can be sent and compared."""
    if isinstance(value, (tuple, list)):
        parts = tuple(map(_plain, value))
        return _UNKNOWN if _UNKNOWN in parts else parts
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else _UNKNOWN
    return value if isinstance(value, (bool, int, float, str, type(None))) else _UNKNOWN


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A copy of some elements of an optimizer's weights, and of what it keeps for them, as they were before a step."""

    copied: Optimizer
    chosen: Chosen
    parameters: Sequence[torch.Tensor]

    @classmethod
    def of(cls, optimizer: Optimizer) -> Rehearsal | None:
        """That of an optimizer; None where it cannot be copied, or where each weight may depend on all the others."""
        parameters = parameters_of(optimizer)
        chosen = Chosen.among(parameters, _SAMPLES)
        if chosen.positions and not moves_by_element(optimizer):
            return None
        try:
            return cls(copy.deepcopy(optimizer, copies_of(optimizer, chosen)), chosen, parameters)
        except Exception:
            return None  # not every optimizer can be copied

    def after(self, gradient: Gradient) -> list[torch.Tensor] | None:
        """The chosen elements of the weights after a step on a gradient; None where it needs more than gradients."""
        try:
            copied = copy.deepcopy(self.copied)
            for target, parameter, own in zip(parameters_of(copied), self.parameters, gradient, strict=True):
                target.grad = None if own is None else self.chosen.of(parameter, own).to(target.dtype)
            make_step(copied)
        except Exception:
            return None
        return [parameter.detach() for parameter in parameters_of(copied)]

    def elements(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chosen elements of weights."""
        return [self.chosen.of(own, weight) for own, weight in zip(self.parameters, weights, strict=True)]


@dataclass(frozen=True, slots=True)
class Steps:
    """Two steps from the weights ``before``: what each has made of them, and the gradients that each had."""

    before: Sequence[torch.Tensor]
    mine: Sequence[torch.Tensor]
    theirs: Sequence[torch.Tensor]
    my_gradient: Gradient
    their_gradient: Gradient

    def compared(self, allowed: float, rehearsal: Rehearsal | None) -> Moved:
        """How far the update is from the reference's, whose gradients are as far apart as is ``allowed`` at most."""
        moved = _distance(self.theirs, self.before)
        wrong = _distance(self.mine, self.theirs)
        if not moved:
            return Moved(None if wrong else 0.0, None, None if wrong else True)
        error = wrong / moved
        if error <= allowed + _rounding(self.theirs, moved):
            return Moved(error, None, True)
        ratio = _distance(self.mine, self.before) / moved
        return Moved(error, ratio, None if rehearsal is None else self._is_same(rehearsal))

    def _is_same(self, rehearsal: Rehearsal) -> bool | None:
        """Whether both steps are what the run's optimizer makes of their gradients; None where neither is."""
        with_theirs, with_mine = (rehearsal.after(each) for each in (self.their_gradient, self.my_gradient))
        if with_theirs is None or with_mine is None:
            return None
        before, mine, theirs = map(rehearsal.elements, (self.before, self.mine, self.theirs))
        moved = _distance(theirs, before)
        allowed = _rounding(theirs, moved) * moved
        as_theirs = _distance(with_theirs, theirs) <= allowed
        as_mine = _distance(with_mine, mine) <= allowed
        return True if as_theirs and as_mine else False if as_theirs or as_mine else None


def _distance(weights: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    return norm_of(torch._foreach_sub(list(weights), list(others)))


def _rounding(weights: Sequence[torch.Tensor], moved: float) -> float:
    """What rounding may change of an update of the weights by so much, relative to it."""
    roundoff = max((unit_roundoff(w.dtype) for w in weights if w.is_floating_point()), default=0.0)
    stored = _ROUNDINGS_OF_WEIGHTS * norm_of(list(weights)) / moved if moved else 0.0
    return roundoff * (stored + _ROUNDINGS_OF_STEP)


class Updates:
    """What one run knows of its steps' updates: the weights before each, and a copy of the optimizer where it helps."""

    def __init__(self) -> None:
        self._before: dict[int, torch.Tensor] = {}
        self._rehearsal: Rehearsal | None = None
        self._apart: dict[str, bool] = {}
        """Of each optimizer, whether its last update was further from the reference's than its gradient."""
        self._is_compared = True

    def first(self, parameters: Sequence[torch.Tensor]) -> None:
        """An optimizer is about to make its first step, on these weights."""
        if self._is_compared:
            self._before |= {id(p): p.detach().clone() for p in parameters if id(p) not in self._before}

    def before_step(self, optimizer: Optimizer, name: str) -> None:
        """A step is about to be made: its optimizer is copied if its last update could not be judged without a copy."""
        is_wanted = self._is_compared and self._apart.get(name, True)
        self._rehearsal = Rehearsal.of(optimizer) if is_wanted else None

    def let_go(self) -> None:
        """The run's updates are no longer compared: it is the reference, or its weights are its own from now on."""
        self._is_compared, self._rehearsal = False, None
        self._before.clear()

    def settled(self, parameters: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
        """The weights are now the reference's."""
        self._before |= {id(p): weight for p, weight in zip(parameters, weights, strict=True)}

    def compared(self, step: AtStep, mine: Gradient, theirs: State, *, name: str, allowed: float) -> Moved | None:
        """The update of a step, compared with the reference's; None where the weights before it are not known.

        ``mine`` is the run's gradient, ``allowed`` the tolerance for its distance from the reference's.
        """
        parameters = parameters_of(step.optimizer)
        before = [self._before.get(id(p)) for p in parameters]
        known = [weight for weight in before if weight is not None]
        if len(known) < len(before) or not known:
            return None
        weights = [p.detach() for p in parameters]
        steps = Steps(known, weights, theirs.weights, mine, theirs.used)
        moved = steps.compared(allowed, self._rehearsal)
        self._apart[name] = moved.ratio is not None
        return moved

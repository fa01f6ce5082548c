"""The loop's own clips: recorded, and applied to the reference gradient, to know the result that they should have.

What the loop does to a whole gradient by hand is recorded as well; its result is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.held import Change, Held, vector_of
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.vectors.inner_products import Made, Vector, combination, dense

BY_HAND = "by hand"
"""The kind of a change that the loop made itself, whose result is not known."""


@dataclass(frozen=True, slots=True)
class ClipCall:
    """One clip of the loop: by ``norm`` of order ``norm_type``, by ``value``, ``adaptive`` to weights, or `BY_HAND`.

    ``keys`` are the identities of the parameters that it was given. ``norm`` is the norm that it found over the shards
    of all ranks, None where the parameters are not sharded; ``returned`` is the norm that it returned.
    """

    keys: frozenset[int]
    kind: str
    limit: float
    norm_type: float
    norm: torch.Tensor | None = None
    returned: torch.Tensor | None = None


@dataclass(slots=True)
class Clips:
    """The clips of one optimizer's gradients since the last backward, and the gradients before the first of them.

    ``changed_since`` means that the gradients were changed by other means after that.
    """

    before: dict[int, Held | None]
    calls: list[ClipCall] = field(default_factory=list)
    changed_since: bool = False


class ClipBook:
    """Which optimizers' gradients were clipped since the last backward."""

    def __init__(self, gradients: GradientBook) -> None:
        self._gradients = gradients
        self._of: dict[int, Clips] = {}

    def of(self, optimizer: Optimizer) -> Clips | None:
        """The clips of the gradients of ``optimizer``, None where there were none."""
        return self._of.get(id(optimizer))

    def begin(
        self,
        keys: Collection[int],
        *,
        before_last_change: bool = False,
        as_they_were: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """A clip of the parameters ``keys`` begins: their gradients are still as they were before it.

        ``before_last_change`` means that it has been made: it is the last known change of those that it changed.
        ``as_they_were`` are the gradients before it of those that it changed, where that is known otherwise.
        """
        made = keys if before_last_change else ()
        for optimizer in self._owners(keys):
            if id(optimizer) not in self._of:
                before = self._gradients.held(
                    optimizer, beyond_change=True, before_last_of=made, as_they_were=as_they_were
                )
                self._of[id(optimizer)] = Clips(before)

    def end(self, call: ClipCall) -> None:
        """A clip has been made."""
        for optimizer in self._owners(call.keys):
            self._of[id(optimizer)].calls.append(call)

    def changed(self, keys: Iterable[int]) -> None:
        """The gradients of the parameters ``keys`` were changed by other means."""
        # Usually nothing was clipped, and the owners need not be searched for.
        for optimizer in self._owners(keys) if self._of else ():
            if id(optimizer) in self._of:
                self._of[id(optimizer)].changed_since = True

    def forget(self, optimizer: Optimizer | None = None) -> None:
        """Forget the clips of ``optimizer``, or all of them."""
        if optimizer is None:
            self._of.clear()
        else:
            self._of.pop(id(optimizer), None)

    def _owners(self, keys: Iterable[int]) -> list[Optimizer]:
        known = set(keys)
        return [o for o in self._gradients.optimizers if any(id(p) in known for p in parameters_of(o))]


def clipped(gradients: Vector, keys: Sequence[int], calls: Sequence[ClipCall]) -> Vector | None:
    """``gradients`` of the parameters ``keys`` after ``calls``, in order; None where these do not determine it.

    They do not where a norm includes other parameters, or a clip adapts to the weights.

    The factor is that of ``torch.nn.utils.clip_grad_norm_``: min(1, limit / (norm + 1e-6)).
    """
    result = gradients
    for call in calls:
        change = _change(call, result, keys)
        if change is None:
            return None
        result = _changed(result, keys, call.keys, change)
    return result


def clipped_sketch(held: dict[int, Held | None], keys: Sequence[int], calls: Sequence[ClipCall]) -> Vector | None:
    """The sketches ``held`` of the parameters ``keys`` after ``calls``; None where these may do more than scale.

    A sketch gives a norm only within bounds, so the norm that each call returned is used.
    """
    measured = []
    for call in calls:
        own = next((each for key in call.keys if (each := held.get(key)) is not None), None)
        if call.kind != "norm" or call.returned is None or own is None:
            return None
        measured.append(replace(call, norm=own.done_to(call.returned)))
    return clipped(vector_of(held, keys), keys, measured)


def change_by(call: ClipCall, norm: object) -> Change | None:
    """What a clip did to each element, given the ``norm`` that it returned; None where that does not determine it."""
    if call.kind == "value":
        return partial(torch.clamp, min=-call.limit, max=call.limit)
    return _scaling(call, norm) if call.kind == "norm" and type(norm) is torch.Tensor else None


def _change(call: ClipCall, gradients: Vector, keys: Sequence[int]) -> Change | None:
    """What a clip does to each element of ``gradients``, of the parameters ``keys``; None where that is not known."""
    if call.kind == "value":
        return partial(torch.clamp, min=-call.limit, max=call.limit)
    if call.kind in ("adaptive", BY_HAND) or not call.keys <= set(keys):
        return None
    norm = call.norm
    if norm is None:
        own = (gradients[position] for position, key in enumerate(keys) if key in call.keys)
        norms = [torch.linalg.vector_norm(dense(g), call.norm_type) for g in own if g is not None]
        if not norms:
            return lambda gradient: gradient
        norm = torch.linalg.vector_norm(torch.stack([own.to(norms[0].device) for own in norms]), call.norm_type)
    return _scaling(call, norm)


def _scaling(call: ClipCall, norm: torch.Tensor) -> Change:
    factor = torch.clamp(call.limit / (norm + 1e-6), max=1.0)
    return lambda gradient: gradient * factor.to(gradient)


def _changed(gradients: Vector, keys: Sequence[int], chosen: frozenset[int], change: Change) -> Vector:
    inside = [key in chosen for key in keys]

    def make(position: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return change(parts[0]) if inside[position] else parts[0]

    return Made([gradients], make)


def multiplied(gradients: Vector, keys: Sequence[int], factor: float, calls: Sequence[ClipCall]) -> Vector | None:
    """``factor`` times ``gradients``, of the parameters ``keys``, after ``calls``; None where that is not known.

    A norm over the shards of all ranks, which the clip found of the gradients themselves, is multiplied by the factor
    too; that is not possible after another clip.
    """
    if len(calls) > 1 and any(call.norm is not None for call in calls):
        return None
    scaled = [replace(call, norm=None if call.norm is None else call.norm * factor) for call in calls]
    return clipped(combination([(factor, gradients)]), keys, scaled)

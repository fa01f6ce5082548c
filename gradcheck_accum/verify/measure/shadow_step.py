"""Compares what the optimizer did with what it would have done with the reference gradient."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, optim
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Update
from gradcheck_accum.verify.book.steps_in_steps import make_step
from gradcheck_accum.verify.vectors.inner_products import Vector, dense, numbers
from gradcheck_accum.verify.vectors.sharded import own_part

_ELEMENTWISE = {
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
}
"""Elementwise optimizers: the update of a shard is the same whether the weight is sharded or whole.

None of them communicates with other ranks.
"""


SAMPLES = 1 << 18
"""Elements of the weights whose updates are compared; in a model with more, that many are drawn at random."""


def is_too_large(optimizer: Optimizer) -> bool:
    """Whether only some elements could be compared, and the optimizer may not be elementwise."""
    held = (part for part in map(own_part, parameters_of(optimizer)) if part is not None)
    return not moves_by_element(optimizer) and sum(part.numel() for part in held) > SAMPLES


def moves_by_element(optimizer: Optimizer) -> bool:
    """Whether the optimizer is known to be elementwise."""
    return type(optimizer) in _ELEMENTWISE


class ShadowStep:
    """A step of a copy of the optimizer with the reference gradient, to be compared with the real one.

    The copy holds no more than SAMPLES elements of the weights and of the optimizer's state. For a larger model they
    are drawn, if the optimizer is elementwise; of weights that are sharded over the ranks the copy holds only elements
    of this rank's shards.
    """

    def __init__(
        self, parameters: list[torch.Tensor], copied: Optimizer, chosen: Chosen, multiple: float | None
    ) -> None:
        self._parameters = parameters
        self._chosen = chosen
        self._before = chosen.of_all(parameters)
        self._copied = copied
        self._multiple = multiple

    @classmethod
    def prepare(
        cls, optimizer: Optimizer, parameters: list[torch.Tensor], reference: Vector, multiple: float | None = None
    ) -> ShadowStep | None:
        """Copy the optimizer before its step and give the copy the reference gradient; None where that is not possible.

        ``multiple`` means that the reference was presumed to be that multiple of the gradient, and that other ranks
        take part; then the result is also None if the optimizer may communicate with them in its step.
        """
        if multiple is not None and not moves_by_element(optimizer):
            return None
        if is_too_large(optimizer):
            return None
        chosen = Chosen.among(parameters_of(optimizer))
        try:
            copied = copy.deepcopy(optimizer, copies_of(optimizer, chosen))
        except Exception:
            # Not every optimizer can be copied; the weights after the step are then not compared.
            return None
        targets = [p for p in parameters_of(copied) if p.requires_grad]
        if len(targets) != len(parameters):
            return None
        for position, (target, parameter) in enumerate(zip(targets, parameters, strict=True)):
            gradient = reference[position]
            target.grad = None if gradient is None else chosen.of(parameter, dense(gradient)).to(target.dtype)
        return cls(parameters, copied, chosen, multiple)

    def finish(self) -> Update | None:
        """Step the copy, after the real step; None where it cannot."""
        try:
            make_step(self._copied)
        except Exception:
            # A step that needs more than gradients (a closure, a wrapper's state) is not compared.
            return None
        wanted = [p.detach() for p in parameters_of(self._copied) if p.requires_grad]
        now = self._chosen.of_all(self._parameters)
        shares = [self._chosen.share(p) for p in self._parameters if own_part(p) is not None]
        moved = _whole_norm(torch._foreach_sub(wanted, self._before), shares)
        # Both started from the same weights: the difference of the updates is that of the weights.
        wrong = _whole_norm(torch._foreach_sub(now, wanted), shares)
        return Update(wrong, moved, self._multiple, self._chosen.count)


@dataclass(slots=True)
class Chosen:
    """The elements of each parameter that are compared: all where it has no ``positions``."""

    positions: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def among(cls, parameters: list[torch.Tensor], wanted: int = SAMPLES) -> Chosen:
        """All elements of a small model; otherwise about ``wanted`` random ones, in proportion to parameter sizes."""
        parts = {id(p): part for p in parameters if (part := own_part(p)) is not None}
        total = sum(part.numel() for part in parts.values())
        if total <= wanted:
            return cls()
        # A separate generator, so that the loop's random numbers do not change.
        generator = torch.Generator().manual_seed(0)

        def draw(part: torch.Tensor) -> torch.Tensor:
            share = max(1, wanted * part.numel() // total)
            return torch.randint(part.numel(), (share,), generator=generator).to(part.device)

        return cls({key: draw(part) for key, part in parts.items() if part.numel()})

    @property
    def count(self) -> int:
        """The number of drawn elements, 0 where all are compared."""
        return sum(each.numel() for each in self.positions.values())

    def of(self, parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the chosen elements of ``tensor``, which has the shape of this rank's part of the parameter."""
        positions = self.positions.get(id(parameter))
        return tensor.detach().clone() if positions is None else torch.take(tensor.detach(), positions)

    def of_all(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """The chosen elements of all of these weights, as far as they are on this rank."""
        return [self.of(p, part) for p in parameters if (part := own_part(p)) is not None]

    def share(self, parameter: torch.Tensor) -> float:
        """How many elements of a parameter each chosen element stands for."""
        positions, part = self.positions.get(id(parameter)), own_part(parameter)
        return 1.0 if positions is None or part is None else part.numel() / positions.numel()


def _whole_norm(tensors: Sequence[torch.Tensor], shares: Sequence[float]) -> float:
    """The norm over all elements, estimated from the chosen ones, each of which stands for its share."""
    norms = numbers(torch._foreach_norm(list(tensors)))
    return math.hypot(*(norm * math.sqrt(share) for norm, share in zip(norms, shares, strict=True)))


def copies_of(optimizer: Optimizer, chosen: Chosen) -> dict[int, object]:
    """Copies of the tensors of an optimizer's state, by identity: the memo for `copy.deepcopy`.

    It would copy each with its whole storage and attributes, which takes many times as long as cloning a tensor without
    these. Of a sharded weight, and of its state, the shard is copied; of a weight of which some elements are compared,
    these.
    """
    if chosen.positions:
        return _samples(optimizer, chosen)
    weights = [p for p in parameters_of(optimizer) if is_sharded(p)]
    shards: dict[int, object] = {id(p): nn.Parameter(_shard(p), p.requires_grad) for p in weights}
    shards |= {id(v): _shard(v) for own in optimizer.state.values() for v in own.values() if hasattr(v, "placements")}
    state = [value for own in optimizer.state.values() for value in own.values() if type(value) is torch.Tensor]
    storages = Counter(tensor.untyped_storage().data_ptr() for tensor in state if tensor.layout is torch.strided)
    return shards | {
        id(tensor): tensor.clone()
        for tensor in state
        if tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.__dict__
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and storages[tensor.untyped_storage().data_ptr()] == 1
    }


def _samples(optimizer: Optimizer, chosen: Chosen) -> dict[int, object]:
    """The chosen elements of the weights, and of an optimizer's elementwise state."""
    copies: dict[int, object] = {}
    for parameter in parameters_of(optimizer):
        whole = own_part(parameter)
        if whole is None:
            continue
        copies[id(parameter)] = nn.Parameter(chosen.of(parameter, whole), parameter.requires_grad)
        for value in optimizer.state.get(parameter, {}).values():
            own = own_part(value) if isinstance(value, torch.Tensor) else None
            if own is not None:
                copies[id(value)] = chosen.of(parameter, own) if own.shape == whole.shape else own.detach().clone()
    return copies


def _shard(tensor: Any) -> torch.Tensor:
    """A copy of this rank's shard of a DTensor."""
    own: torch.Tensor = tensor.detach().to_local()
    return own.clone()

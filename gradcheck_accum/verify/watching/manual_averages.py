"""Moving averages of the weights, and learning rates, that a script updates without a library's object.

An average is recognized by its update: it is scaled down and a share of a weight is added, in place (``lerp_``,
``mul_`` before ``add_``, or ``copy_`` of a value between the two). One weight of each optimizer stands for all of them.
A plain copy is no average: copying the same weights twice changes nothing.

A change of a learning rate shows at the next comparison. A rate that is multiplied by the same number every time has no
horizon, and decays with every update. Any other follows a schedule (a warm-up, a cosine), and whether that counts
micro-batches or steps is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.verify.book.parameters import parameters_of

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class OwnAverages:
    """The averages of the weights that a script blends itself."""

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._optimizers = optimizers
        self._shrunk: set[int] = set()

    def seen(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
        """An operation in place has been called by this name; the averages that took in a weight by it, and which."""
        targets = _listed(args[0] if args else None)
        if name.endswith("mul_"):
            self._shrunk.update(_places(targets))
            return []
        taken = args[1] if len(args) > 1 else kwargs.get("end", kwargs.get("other", kwargs.get("src")))
        if name.endswith("copy_"):
            pairs = zip(targets, _listed(taken), strict=False)
            blends = ((t, next((w for w in self._weights() if _is_blend(t, new, w)), None)) for t, new in pairs)
            return [(f"{t.data_ptr():x}", weight) for t, weight in blends if weight is not None]
        weights = {place: weight for weight in self._weights() for place in _places([weight])}
        found = []
        for target, operand in zip(targets, _listed(taken), strict=False):
            if not (_is_plain(target) and _is_plain(operand)):
                continue
            place, weight = target.data_ptr(), weights.get(operand.data_ptr())
            # Decay by hand adds weights to their own gradients.
            if weight is None or place in weights or place in _places([weight.grad]):
                continue
            if name.endswith("lerp_") or place in self._shrunk:
                found.append((f"{place:x}", weight))
        self._shrunk.difference_update(_places(targets))
        return found

    def _weights(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers():
            own = parameters_of(optimizer)
            if own and _is_plain(own[0]):
                yield own[0]


def _is_blend(old: Any, new: Any, weight: torch.Tensor) -> bool:
    """Whether what is copied into a tensor lies between that and a weight: d * old + (1 - d) * weight, 0 < d < 1."""
    if not (_is_plain(old) and _is_plain(new) and old.shape == new.shape == weight.shape) or old is weight:
        return False
    if not old.is_floating_point() or old.device != weight.device or new.device != weight.device:
        return False
    whole, taken = (weight.detach() - old.detach()).double(), (new.detach() - old.detach()).double()
    length = float(whole.norm())
    share = float((whole * taken).sum()) / length**2 if length else 0.0
    rounding = torch.finfo(old.dtype).eps * float(weight.detach().double().norm())
    return 0.0 < share < 1.0 and float((taken - share * whole).norm()) <= 8 * rounding < length


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _places(tensors: Iterable[Any]) -> Iterator[int]:
    return (tensor.data_ptr() for tensor in tensors if _is_plain(tensor))


def _is_plain(value: Any) -> bool:
    """Whether a tensor has one memory of its own: no sparse one has, nor one that is spread over ranks."""
    return type(value) in _PLAIN and value.layout is torch.strided


class Rates:
    """The learning rates of a run's optimizers, as they were when they were looked at last."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, ...]] = {}
        self._shares: dict[int, float | None] = {}
        """What the first rate of each optimizer was multiplied by last."""
        self._is_scheduled = False

    def scheduled(self) -> None:
        """A scheduler has moved: what changes until the next look is its doing."""
        self._is_scheduled = True

    def look(self, optimizers: Iterable[Optimizer]) -> Iterator[Optimizer]:
        """The optimizers whose rates were shrunk by hand since the last look, by the number that did it before."""
        scheduled, self._is_scheduled = self._is_scheduled, False
        for optimizer in optimizers:
            rates = tuple(_number(group.get("lr")) for group in optimizer.param_groups)
            before = self._known.setdefault(id(optimizer), rates)
            if before != rates:
                self._known[id(optimizer)] = rates
                share, last = _share(before, rates), self._shares.get(id(optimizer))
                self._shares[id(optimizer)] = share
                if not scheduled and share is not None and last is not None and math.isclose(share, last, rel_tol=1e-6):
                    yield optimizer

    def stepped(self, optimizers: Iterable[Optimizer]) -> None:
        """An optimizer has stepped: what it has made of its own rate is not done by hand."""
        for _ in self.look(optimizers):
            pass


def _share(before: Sequence[object], after: Sequence[object]) -> float | None:
    """What the first rate was multiplied by, None where that is not known."""
    old, new = before[:1], after[:1]
    match old, new:
        case (float() | int() as was,), (float() | int() as now,) if was and now:
            return now / was
    return None


def _number(rate: Any) -> object:
    """A rate as a number, as far as it can be read without waiting for a device."""
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else None
    return rate

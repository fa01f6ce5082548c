"""Weights of a loss that are derived from the model's own by inner steps on a task's data (meta-learning).

A module that is called with such weights (``torch.func.functional_call``) depends on them as on its arguments, so a
tape records them as one of these. If they are computed from weights and a gradient of weights, the micro-batch is a
task: the window's mean is over tasks, and samples of one task influence each other by design. The gradient may have a
graph or not (`gradcheck_accum.engine.inner_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_WEIGHT, _GRADIENT = "weight", "gradient"

Made = tuple[Callable[..., Any], Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""A call: its function, its arguments, the tensors among these, and its results."""


class Lent(nn.Module):
    """A module that runs with the weights passed as its first argument."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @property
    def name(self) -> object:
        """What it is called by: the module itself."""
        return self.module

    def forward(self, weights: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """The module's result with these weights."""
        return torch.func.functional_call(self.module, weights, args, kwargs)


def lent_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that a module currently uses but does not own, by name."""
    if all(type(p) is nn.Parameter or p is None for own in stores_of(module) for p in own.values()):
        return {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not isinstance(parameter, nn.Parameter)}


_known: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


def stores_of(module: nn.Module) -> list[dict[str, Any]]:
    """The parameter dictionaries of a module and its submodules, cached: walking a model at every call is slow."""
    if module not in _known:
        _known[module] = [own._parameters for own in module.modules()]
    return _known[module]


def has_weights(value: object) -> bool:
    """Whether something is a module that has weights, trained or not; a criterion has none."""
    return isinstance(value, nn.Module) and next(value.parameters(), None) is not None


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter of modules. Where optimizers are known, what they update are weights too."""
    return isinstance(tensor, nn.Parameter)


def applied_after_steps(
    calls: Iterable[Made], is_weight: Callable[[torch.Tensor], bool], is_gradient: Callable[[torch.Tensor], bool]
) -> dict[int, list[torch.Tensor]]:
    """What each of these calls, in order, applies weights to that an inner step has updated, if it does.

    ``is_gradient`` is asked for gradients that have no graph. A gradient that is only a penalty updates no weights: the
    units are then samples.
    """
    origins: dict[int, frozenset[str]] = {}
    applied: dict[int, list[torch.Tensor]] = {}

    def origin(tensor: torch.Tensor) -> frozenset[str]:
        """What a tensor is made of, if it depends only on weights and their gradients; otherwise empty."""
        return frozenset({_WEIGHT}) if is_weight(tensor) else origins.get(id(tensor), frozenset())

    for position, (function, args, given, made) in enumerate(calls):
        if getattr(function, "__name__", "") == "grad" and len(args) > 1:
            inputs = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            found = frozenset({_GRADIENT}) if all(origin(tensor) for tensor in inputs) else frozenset[str]()
        else:
            known = [tensor for tensor in given if origin(tensor)]
            rest = [tensor for tensor in given if not origin(tensor)]
            found = frozenset[str]().union(*map(origin, known))
            data = [tensor for tensor in rest if not _is_neutral(tensor, known)]
            if data:
                if any(tensor.dim() and len(origin(tensor)) > 1 for tensor in known):
                    applied[position] = data
                continue
            if found and any(map(is_gradient, rest)):
                found |= {_GRADIENT}
        origins.update((id(tensor), found) for tensor in made if found)
    return applied


def _is_neutral(tensor: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor combined with weights may be a learning rate or a momentum buffer."""
    return not tensor.requires_grad and (not tensor.dim() or any(tensor.shape == w.shape for w in weights))

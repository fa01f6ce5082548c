"""Weights that a loss is computed with and that are not the model's own: made of them by steps on a task's own data.

A module that is lent such weights (``torch.func.functional_call``) depends on them as it does on its arguments, so that
a tape records them as one. Where they are made of weights and of a gradient of weights, the micro-batch is a task: what
a mean over the window is of are tasks, and the samples inside of one influence each other by design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_WEIGHT, _GRADIENT = "weight", "gradient"

Made = tuple[Callable[..., Any], Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""A call: its function, its arguments, the tensors among them, and those that it made."""


class Lent(nn.Module):
    """A module that runs with the weights that it is given first."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, weights: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """What the module gives with these weights."""
        return torch.func.functional_call(self.module, weights, args, kwargs)


def lent_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a module that are not its own now, by name."""
    if all(type(p) is nn.Parameter or p is None for own in _stores(module) for p in own.values()):
        return {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not isinstance(parameter, nn.Parameter)}


_known: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


def _stores(module: nn.Module) -> list[dict[str, Any]]:
    """Where a module and those in it hold their parameters: to walk through a model with every call takes time."""
    if module not in _known:
        _known[module] = [own._parameters for own in module.modules()]
    return _known[module]


def steps_weights(calls: Iterable[Made]) -> bool:
    """Whether one of these calls, in their order, computes something of data with weights that were stepped on.

    A gradient that is a penalty itself steps on nothing: its units are samples.
    """
    origins: dict[int, frozenset[str]] = {}

    def origin(tensor: torch.Tensor) -> frozenset[str]:
        """What a tensor is made of, if of weights and their gradients alone; else nothing."""
        return frozenset({_WEIGHT}) if isinstance(tensor, nn.Parameter) else origins.get(id(tensor), frozenset())

    for function, args, given, made in calls:
        if getattr(function, "__name__", "") == "grad" and len(args) > 1:
            inputs = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            found = frozenset({_GRADIENT}) if all(origin(tensor) for tensor in inputs) else frozenset[str]()
        else:
            known = [tensor for tensor in given if origin(tensor)]
            rest = [tensor for tensor in given if not origin(tensor)]
            found = frozenset[str]().union(*map(origin, known))
            if not all(_is_neutral(tensor, known) for tensor in rest):
                if any(tensor.dim() and len(origin(tensor)) > 1 for tensor in known):
                    return True
                continue
        origins.update((id(tensor), found) for tensor in made if found)
    return False


def _is_neutral(tensor: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor beside weights may be a rate of learning or a momentum of theirs."""
    return not tensor.requires_grad and (not tensor.dim() or any(tensor.shape == w.shape for w in weights))

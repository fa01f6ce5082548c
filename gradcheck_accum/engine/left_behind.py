"""What a module's call leaves behind without returning it: tensors that it stores, and those that its hooks are given.

A loss may be computed from them too: an auxiliary loss that a layer keeps in an attribute, an activation that a forward
hook puts elsewhere. Where a call is run again, it leaves the same ones behind, in the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.containers import tensors_in


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in an attribute of a submodule, alone or in a container there.

    ``from_end`` is its position among the attribute's tensors, counted from the last one as -1: a list may grow.
    """

    owner: str
    name: str
    from_end: int

    def of(self, module: nn.Module, heard: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor, after a call of the module."""
        return list(tensors_in(getattr(module.get_submodule(self.owner), self.name)))[self.from_end]


@dataclass(frozen=True, slots=True)
class Heard:
    """A tensor that a submodule with forward hooks returned, by its position among all of a call."""

    position: int

    def of(self, module: nn.Module, heard: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor, after a call in which these were ``heard``."""
        return heard[self.position]


LeftBehind = Stored | Heard


def stored_in(module: nn.Module) -> Iterator[tuple[Stored, torch.Tensor]]:
    """The tensors with a graph that a module and its submodules store; attributes hold those of the last call."""
    for owner, inner in module.named_modules():
        for name, value in vars(inner).items():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                tensors = list(tensors_in(value))
                for position, tensor in enumerate(tensors):
                    if tensor.grad_fn is not None:
                        yield Stored(owner, name, position - len(tensors)), tensor


def is_heard(module: nn.Module) -> bool:
    """Whether hooks are given what a module returns."""
    return bool(module._forward_hooks)


@contextmanager
def listening(function: Callable[..., Any], wanted: Sequence[LeftBehind]) -> Iterator[list[torch.Tensor]]:
    """Inside the block, what a module's submodules with forward hooks return is added to a list, in order.

    Only where some of it is ``wanted``.
    """
    heard: list[torch.Tensor] = []
    if not (isinstance(function, nn.Module) and any(isinstance(one, Heard) for one in wanted)):
        yield heard
        return

    def hear(_: nn.Module, __: Any, result: Any) -> None:
        heard.extend(tensors_in(result))

    inner = [one for one in function.modules() if one is not function and is_heard(one)]
    handles = [one.register_forward_hook(hear) for one in inner]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()

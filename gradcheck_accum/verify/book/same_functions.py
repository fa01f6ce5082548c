"""Whether two modules compute the same function, as far as their code reads what they hold.

Nothing is asked of how one was made from the other. What cannot be compared is not the same.
"""

from __future__ import annotations

import enum
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradcheck_accum.engine.memory import is_plain, version_of
from gradcheck_accum.verify.vectors.inner_products import same_bits

_OF_MODULES = frozenset(nn.Module().__dict__)
"""What every module has; what of it decides a function is looked at by itself."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice, enum.Enum)
_IN_PYTHON = type("", (), {}).__basicsize__
"""The size of an object whose dictionary shows all that it keeps: no slots, and nothing in C."""

_DEPTH = 8
"""How deeply attributes are compared; what is deeper is not the same."""

IsUpdated = Callable[[torch.Tensor], bool]
"""Whether a weight is one that an optimizer updates."""


class Data:
    """Compares tensors; those that were the same, and were not written into since, are not compared again."""

    def __init__(self) -> None:
        self._same: dict[tuple[int, int], tuple[_Version, _Version]] = {}

    def same(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Whether two tensors are the same bit for bit."""
        if left is right:
            return True
        known = self._same.get((id(left), id(right)))
        if known is not None and known[0].is_that_of(left) and known[1].is_that_of(right):
            return True
        if not _same_tensor(left, right):
            return False
        self._same[id(left), id(right)] = _Version.of(left), _Version.of(right)
        return True


@dataclass(frozen=True, slots=True)
class _Version:
    """A tensor as it was; its values may be written into through ``.data`` without another version."""

    tensor: weakref.ref[torch.Tensor]
    version: int | None
    address: int

    @staticmethod
    def of(tensor: torch.Tensor) -> _Version:
        return _Version(weakref.ref(tensor), version_of(tensor), tensor.data_ptr())

    def is_that_of(self, tensor: torch.Tensor) -> bool:
        version = version_of(tensor)
        return self.tensor() is tensor and version == self.version is not None and self.address == tensor.data_ptr()


def same_function(copied: nn.Module, module: nn.Module, is_updated: IsUpdated, data: Data) -> bool:
    """Whether a copy whose trained weights stand for those of ``module`` computes what that computes.

    Its weights that are not trained, its buffers, modes, hooks and attributes are compared. Which weights its trained
    ones stand for is not asked here.
    """
    mine, theirs = list(copied.modules()), list(module.modules())
    if len(mine) != len(theirs):
        return False
    pairs = list(zip(mine, theirs, strict=True))
    alike = _Comparison({(id(own), id(other)) for own, other in [*pairs, *_weights_of(pairs)]})
    return all(
        type(own) is type(other)
        and own.training is other.training
        and list(own._modules) == list(other._modules)
        and _same_weights(own, other, is_updated, data)
        and (_tracks_alone(own) or _same_buffers(own, other, data))
        and all(alike.same(list(getattr(own, name).values()), list(getattr(other, name).values())) for name in _HOOKS)
        and _same_attributes(own, other, alike)
        for own, other in pairs
    )


def _weights_of(pairs: list[tuple[nn.Module, nn.Module]]) -> Iterator[tuple[object, object]]:
    """The weights that two modules have by one name: these are compared as such."""
    for own, other in pairs:
        yield from ((weight, other._parameters.get(name)) for name, weight in own._parameters.items())


def _same_weights(own: nn.Module, other: nn.Module, is_updated: IsUpdated, data: Data) -> bool:
    if list(own._parameters) != list(other._parameters):
        return False
    for mine, theirs in zip(own._parameters.values(), other._parameters.values(), strict=True):
        if mine is None or theirs is None:
            if mine is not theirs:
                return False
        elif not mine.requires_grad and (is_updated(theirs) or not data.same(mine, theirs)):
            return False
    return True


def _same_buffers(own: nn.Module, other: nn.Module, data: Data) -> bool:
    if own._buffers.keys() != other._buffers.keys():
        return False
    for name, mine in own._buffers.items():
        theirs = other._buffers[name]
        if mine is not theirs and (mine is None or theirs is None or not data.same(mine, theirs)):
            return False
    return True


def _tracks_alone(module: nn.Module) -> bool:
    """Whether the buffers of a module are statistics that it writes, and does not read while it trains."""
    return isinstance(module, _NormBase) and module.training


def _same_tensor(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if not (is_plain(left) and is_plain(right)) or left.shape != right.shape or left.device != right.device:
        return False
    return same_bits(left.detach(), right.detach())


def _same_attributes(own: nn.Module, other: nn.Module, alike: _Comparison) -> bool:
    """Whether modules keep the same in attributes of their own, but for results that have a graph.

    What is computed of such a result shows in the graph of its own loss.
    """
    mine, theirs = vars(own), vars(other)
    names = (name for name in {**mine, **theirs} if name not in _OF_MODULES)
    compared = [n for n in names if not (_has_graph(mine.get(n)) or _has_graph(theirs.get(n)))]
    return all(n in mine and n in theirs and alike.same(mine[n], theirs[n]) for n in compared)


def _has_graph(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


class _Comparison:
    """Compares values; ``known`` are the identities of those that are taken for the same."""

    def __init__(self, known: set[tuple[int, int]]) -> None:
        self._known = known
        self._left: list[object] = []
        """What was compared: an object that is made on the way must not give its identity to another."""

    def same(self, left: object, right: object, depth: int = 0) -> bool:
        """Whether two values are the same to code that reads them."""
        if left is right or (id(left), id(right)) in self._known:
            return True
        if type(left) is not type(right) or depth > _DEPTH:
            return False
        if isinstance(left, float):
            return left == right or (left != left and right != right)
        if isinstance(left, _PLAIN):
            return left == right
        if isinstance(left, torch.Tensor):
            return _same_tensor(left, right)
        self._known.add((id(left), id(right)))
        self._left += [left, right]
        return self._same_parts(_parts(left), _parts(right), depth + 1)

    def _same_parts(self, left: Any, right: Any, depth: int) -> bool:
        if left is None or right is None:
            return False
        if isinstance(left, Mapping):
            return list(left) == list(right) and all(self.same(left[name], right[name], depth) for name in left)
        return len(left) == len(right) and all(self.same(a, b, depth) for a, b in zip(left, right, strict=True))


def _parts(value: Any) -> Any:
    """What a value consists of, a list or a mapping by plain keys; None if that is not known."""
    if isinstance(value, (list, tuple, deque)):
        return [*value, *vars(value).items()] if hasattr(value, "__dict__") else list(value)
    if isinstance(value, dict):
        return value if all(isinstance(name, _PLAIN) for name in value) else None
    if isinstance(value, (set, frozenset)):
        return [sorted(value, key=repr)] if all(isinstance(item, _PLAIN) for item in value) else None
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, partial):
        return [value.func, list(value.args), dict(value.keywords)]
    if isinstance(value, (type, ModuleType, BuiltinFunctionType)):
        return None
    if isinstance(value, weakref.ref):
        return [value()]
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return None if value.dtype.hasobject else [str(value.dtype), list(value.shape), value.tobytes()]
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or type(value).__basicsize__ > _IN_PYTHON:
        return None
    return vars(value)


def _parts_of_function(value: FunctionType) -> Any:
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        return None
    # Code is immutable, and equal where it was compiled once.
    code = value.__code__.co_filename, value.__code__.co_firstlineno, value.__code__.co_code
    return [list(code), cells, list(value.__defaults__ or ()), dict(value.__kwdefaults__ or {})]

"""State that a run of recorded calls must leave as it was: containers, and what the functions of hooks can reach.

A forward hook is called again when its module is. What it collects, counts or keeps is the loop's own: it lies in the
containers and objects that its function was defined around, is bound to, or names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as of_modules

_DEPTH = 3
"""How deeply containers are searched, and the functions that a hook names."""

_MOST = 1024
"""How many items of a container that a hook reaches are looked into: one of more holds data, not what is counted."""

_CONTAINERS = (dict, list, set, deque)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps what is called with it, and in its backward."""


class Kept:
    """The contents of a dictionary, list, set or deque, including nested ones."""

    def __init__(self, container: Any, depth: int = 0) -> None:
        self._container = container
        self._items = container.copy()
        self._inner: list[Kept] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        if depth > _DEPTH or isinstance(container, set):
            return
        for item in container.values() if isinstance(container, dict) else container:
            if type(item) in _CONTAINERS:
                self._inner.append(Kept(item, depth + 1))
            elif isinstance(item, torch.Tensor) and not isinstance(item, nn.Parameter) and _is_plain(item):
                self._tensors.append((item, item.detach().clone()))

    def restore(self) -> None:
        """Restore the contents."""
        for inner in self._inner:
            inner.restore()
        for tensor, saved in self._tensors:
            # A graph of the loop's may have saved the tensor; even copying equal values into it would bump its version.
            if not torch.equal(tensor, saved):
                tensor.detach().copy_(saved)
        if isinstance(self._container, list):
            self._container[:] = self._items
        elif isinstance(self._container, deque):
            self._container.clear()
            self._container.extend(self._items)
        elif isinstance(self._container, set) or not _is_same(self._container, self._items):
            self._container.clear()
            self._container.update(self._items)


class _KeptName:
    """What a name of a function is bound to: a global one, or one of a function around it."""

    def __init__(self, holder: dict[str, Any] | CellType, name: str, value: Any) -> None:
        self._holder = holder
        self._name = name
        self._value = value

    def restore(self) -> None:
        """Bind the name to it again."""
        if isinstance(self._holder, CellType):
            self._holder.cell_contents = self._value
        elif self._holder.get(self._name, self) is not self._value:
            self._holder[self._name] = self._value


def kept_for_hooks(modules: Iterable[nn.Module]) -> list[Kept | _KeptName]:
    """The state that the hooks of modules, and those of all modules, can reach, as it is now."""
    tables = [getattr(module, name) for module in modules for name in _HOOKS]
    tables += [getattr(of_modules, f"_global{name}", {}) for name in _HOOKS]
    reached: dict[int, Any] = {}
    own = [kept for table in tables for hook in table.values() for kept in _reached(hook, reached, 0)]
    # A hook may add others, or remove itself.
    return [*map(Kept, tables), *own]


def _reached(value: Any, reached: dict[int, Any], depth: int) -> Iterator[Kept | _KeptName]:
    """What can be reached of a value, without what has been ``reached`` before, which is kept alive there."""
    if depth > _DEPTH or id(value) in reached:
        return
    match value:
        case MethodType():
            yield from _reached(value.__self__, reached, depth)
            yield from _reached(value.__func__, reached, depth)
        case partial():
            for given in (value.func, *value.args, *value.keywords.values()):
                yield from _reached(given, reached, depth)
        case FunctionType() if not _is_of_pytorch(value):
            reached[id(value)] = value
            yield from _named(value, reached, depth)
            yield Kept(vars(value))
            for given in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                yield from _reached(given, reached, depth)
        case dict() | list() | set() | deque():
            reached[id(value)] = value
            yield Kept(value, 0 if len(value) <= _MOST else _DEPTH + 1)
        case _ if _is_of_the_loop(value):
            reached[id(value)] = value
            yield Kept(vars(value))
            for held in list(vars(value).values()):
                yield from _reached(held, reached, depth + 1)
            called = getattr_static(type(value), "__call__", None)
            if isinstance(called, FunctionType):
                yield from _reached(called, reached, depth)


def _named(function: Callable[..., Any], reached: dict[int, Any], depth: int) -> Iterator[Kept | _KeptName]:
    """What a function of the loop's names, or was defined around."""
    code: CodeType = function.__code__
    bound: list[tuple[Any, str, Any]] = []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():
            bound.append((cell, name, cell.cell_contents))
    names = {name for one in _codes(code) for name in one.co_names}
    own = function.__globals__
    bound += [(own, name, own[name]) for name in sorted(names & own.keys())]
    for holder, name, value in bound:
        if not isinstance(value, (ModuleType, type, nn.Module)):
            yield _KeptName(holder, name, value)
            yield from _reached(value, reached, depth + 1)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_of_the_loop(value: Any) -> bool:
    """Whether a value is an object that keeps its state in attributes, and none of PyTorch's, which sees to its own.

    Modules are kept with the others that a program calls, and tensors where they are held.
    """
    is_other = isinstance(value, (nn.Module, torch.Tensor, type, ModuleType, FunctionType))
    return hasattr(value, "__dict__") and not is_other and not _is_of_pytorch(type(value))


def _is_of_pytorch(value: Any) -> bool:
    """Whether a function or a class is PyTorch's; what was made by ``exec`` may have no module."""
    return str(value.__module__).startswith("torch.")


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _is_same(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    """Whether two dictionaries hold the same objects."""
    return left.keys() == right.keys() and all(left[key] is right[key] for key in left)

"""Values that can be read without running user code: no property, no ``__getattr__``, no ``__getitem__`` of theirs.

Before Python 3.13 the variables of a running function are read from a copy that stays with the frame, and would keep
alive what the loop has dropped; so the copy is emptied again.
"""

from __future__ import annotations

import ast
import dis
import inspect
import operator
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType, GetSetDescriptorType, MemberDescriptorType, ModuleType, SimpleNamespace

import torch

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_NONE = object()
_PLAIN = (object, ModuleType, SimpleNamespace)
"""Types with Python's own lookup of attributes."""

_HELD = (GetSetDescriptorType, MemberDescriptorType)
"""The types of descriptors by which Python itself provides an object's ``__dict__``."""

_OF_NUMBERS = frozenset({"len", "sum", "max", "min", "abs", "round", "int", "float"})
"""Functions of Python that compute a number, without a graph where what they are given has none."""

_SEES_ITS_COPY = frozenset({"locals", "vars", "dir", "eval", "exec"})
_HELD_BY_FRAME = 3
"""References to the copy: the frame's, ours, and that of the call which counts them."""


def steps_of(node: ast.expr, frame: FrameType) -> int | None:
    """The current value of an expression as a positive integer, None where it cannot be read."""
    value = value_of(node, frame)
    return value if type(value) is int and value > 0 else None


def value_of(node: ast.expr, frame: FrameType) -> object:
    """The current value of an expression in a frame, None where it cannot be read."""
    value = _value(node, frame)
    return None if value is _NONE else value


def length_of(node: ast.expr, frame: FrameType) -> int | None:
    """The current length of a tensor, or of a list, tuple or dictionary; None where it cannot be read."""
    held = value_of(node, frame)
    if type(held) is torch.Tensor:
        return held.shape[0] if held.dim() else None
    return len(held) if type(held) in (list, tuple, dict) else None  # type: ignore[arg-type]


def is_without_graph(node: ast.expr, frame: FrameType | None) -> bool:
    """Whether an expression is known to have no graph: it computes with numbers and data, and calls nothing of others.

    ``len(y) / total``, ``mask.sum() / shares[i // K]``.
    """
    match node:
        case ast.Constant(value=int() | float()):
            return True
        case ast.BinOp(left=left, right=right):
            return is_without_graph(left, frame) and is_without_graph(right, frame)
        case ast.Compare(left=left, comparators=others):
            return all(is_without_graph(one, frame) for one in (left, *others))
        case ast.UnaryOp(operand=inner):
            return is_without_graph(inner, frame)
        case ast.Call(func=ast.Name(id="len"), args=[_], keywords=[]):
            return True
        case ast.Call(func=ast.Name(id=function), args=given, keywords=[]) if function in _OF_NUMBERS:
            return bool(given) and all(is_without_graph(one, frame) for one in given)
        case ast.GeneratorExp(elt=each) | ast.ListComp(elt=each):
            return is_without_graph(each, frame)
        case ast.Call(func=ast.Attribute(value=owner), args=given, keywords=[]):
            return all(is_without_graph(one, frame) for one in (owner, *given))
        case ast.Subscript(value=ast.Attribute(value=owner, attr="shape")):
            return is_without_graph(owner, frame)
        case ast.Subscript(value=owner) if frame is not None and _items_have_no_graph(value_of(owner, frame)):
            return True
    return frame is not None and _has_no_graph(value_of(node, frame))


def _items_have_no_graph(held: object) -> bool:
    """Whether a list, a tuple or a dictionary holds numbers and data alone."""
    if type(held) is dict:
        held = [*held.values()]
    return (type(held) is list or type(held) is tuple) and bool(held) and all(map(_has_no_graph, held))


def _has_no_graph(value: object) -> bool:
    return type(value) in (int, float) or (type(value) is torch.Tensor and not value.requires_grad)


def size_of(node: ast.expr, dimension: ast.expr, frame: FrameType) -> int | None:
    """The current size of a tensor along a dimension; None where it cannot be read."""
    held, place = value_of(node, frame), value_of(dimension, frame)
    if type(held) is not torch.Tensor or type(place) is not int or not -held.dim() <= place < held.dim():
        return None
    return held.shape[place]


def _value(node: ast.expr, frame: FrameType) -> object:
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            return _variable(frame, name)
        case ast.Attribute(value=owner, attr=name):
            return _attribute(_value(owner, frame), name)
        case ast.Subscript(value=owner, slice=ast.Constant() | ast.Name() as place):
            key = _value(place, frame)
            return _item(_value(owner, frame), key, _NONE) if type(key) is str else _NONE
        case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *rest]):
            default = _value(rest[0], frame) if rest else _NONE
            return _item(_value(owner, frame), key, default)
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            value = _value(inner, frame)
            return value if type(value) is int else _NONE
        case ast.Call(func=ast.Name(id="max"), args=[left, right], keywords=[]):
            return _computed(max, _value(left, frame), _value(right, frame))
        case ast.BoolOp(op=ast.Or(), values=[left, right]):
            value = _value(left, frame)
            return _value(right, frame) if value is None or (type(value) is int and not value) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _computed(_ARITHMETIC[type(op)], _value(left, frame), _value(right, frame))
        case ast.NamedExpr(target=ast.Name(id=name)):
            return _variable(frame, name)
    return _NONE


def _computed(function: Callable[[int, int], int], left: object, right: object) -> object:
    if type(left) is not int or type(right) is not int:
        return _NONE
    try:
        return function(left, right)
    except ZeroDivisionError:
        return _NONE


def _variable(frame: FrameType, name: str) -> object:
    code = frame.f_code
    if name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars:
        return _local(frame, name)
    if not code.co_flags & inspect.CO_OPTIMIZED and name in frame.f_locals:
        return frame.f_locals[name]
    return frame.f_globals.get(name, _NONE)


def _local(frame: FrameType, name: str) -> object:
    """A variable of a running function."""
    if sys.version_info >= (3, 13):
        return frame.f_locals.get(name, _NONE)
    if _shows_its_copy(frame.f_code):
        return _NONE
    copy = frame.f_locals
    value = copy.get(name, _NONE)
    if sys.getrefcount(copy) <= _HELD_BY_FRAME:
        copy.clear()
    return value


def _shows_its_copy(code: CodeType) -> bool:
    """Whether the function itself may hold the copy of its variables, which our reading would update.

    ``model.eval()`` is a method of that name, not Python's own function.
    """
    return not _SEES_ITS_COPY.isdisjoint(code.co_names) and not _SEES_ITS_COPY.isdisjoint(_globals_of(code))


@lru_cache(maxsize=256)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The names that a function looks up outside of all functions."""
    return frozenset(step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")


def _attribute(owner: object, name: str) -> object:
    """An attribute that an object stores itself, as a module, a namespace or a dataclass does."""
    if owner is _NONE:
        return _NONE
    classes = type.__getattribute__(type(owner), "__mro__")
    spaces = [type.__getattribute__(cls, "__dict__") for cls in classes]
    if any("__getattribute__" in space and cls not in _PLAIN for cls, space in zip(classes, spaces, strict=True)):
        return _NONE
    stored = next((space[name] for space in spaces if name in space), _NONE)
    if hasattr(type(stored), "__set__"):
        return _NONE
    held = next((space["__dict__"] for space in spaces if "__dict__" in space), None)
    own = object.__getattribute__(owner, "__dict__") if isinstance(held, _HELD) else {}
    if type(own) is dict and name in own:
        return own[name]
    return stored if type(stored) is int else _NONE


def _item(owner: object, key: str, default: object) -> object:
    return owner.get(key, default) if type(owner) is dict else _NONE

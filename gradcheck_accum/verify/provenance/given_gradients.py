"""Finds the numbers, and the tensor, that a gradient argument is computed from on the running line.

``losses.backward(gradient=weights / total)``: a number that divides, with its origins, and the weights of the rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import torch

from gradcheck_accum.ledger.stated_names import DATA
from gradcheck_accum.verify.provenance.following import Place, place_of
from gradcheck_accum.verify.provenance.operands import Operand, Sides, computed_as, read_once, sides_of
from gradcheck_accum.verify.provenance.origins import Origins, size_asked
from gradcheck_accum.verify.provenance.readable import length_of, value_of
from gradcheck_accum.verify.provenance.syntax import syntax_of
from gradcheck_accum.verify.stack.frames import package_of

_POSITIONS = {"backward": ("gradient", 0), "grad": ("grad_outputs", 2)}
_OF_AUTOGRAD = ("grad_tensors", 1)
"""The names and positions of gradient arguments: those of methods and functions, and of ``torch.autograd.backward``."""
_FILLS = {"full": 1, "full_like": 1, "new_full": 1, "tensor": 0, "as_tensor": 0, "new_tensor": 0}
"""Functions that make a tensor of one number, each with the position of the number."""
_ONES = frozenset({"ones", "ones_like", "new_ones"})
_AS_IT_WAS = frozenset(
    {"expand", "expand_as", "view", "reshape", "to", "type_as", "float", "double", "detach", "clone"}
)
"""Methods that change no number."""
_DEEPEST = 8
"""How many names and calls an argument is followed through."""


@dataclass(frozen=True, slots=True)
class Side:
    """A number or a tensor, its origins, and whether the others are divided by it; ``value`` is None if unknown."""

    value: float | torch.Tensor | None
    origins: frozenset[str]
    inverted: bool


def sides_of_gradient(frame: FrameType) -> list[Side]:
    """The factors of the gradient argument of the call that ``frame`` is at; none if it is a tensor of ones."""
    sides = read_once(frame, _read_argument).sides
    return _now(sides, frame)


def sides_of_gradients(frame: FrameType, number: int) -> list[list[Side]]:
    """The same for each of a ``number`` of gradients that are given in a list; a side of None where it is not shown."""
    each = read_once(frame, _read_argument).each
    if len(each) != number:
        return [[Side(None, frozenset(), False)]] * number
    return [_now(own, frame) for own in each]


def _now(sides: Sides, frame: FrameType) -> list[Side]:
    return [Side(_value(node, frame), origins, inverted) for node, origins, inverted in sides]


def _read_argument(frame: FrameType) -> tuple[Operand, int]:
    syntax = syntax_of(frame)
    node = None if syntax is None else syntax.at(frame, lambda node: _argument(node) is not None)
    argument = _argument(node)
    if syntax is None or node is None or argument is None:
        # A side of which nothing is known.
        return Operand(sides=((ast.Constant(None), frozenset(), False),)), 0
    reader = Origins(names_alone=bool(package_of(frame.f_code.co_filename)))
    place = place_of(frame, node, syntax)
    made = computed_as(argument, place)
    listed = made.elts if isinstance(made, (ast.List, ast.Tuple)) else []

    def read(own: ast.expr) -> Sides:
        sides = []
        for side, inverted in _sides(own, place, frame, _DEEPEST):
            is_tensor = isinstance(value_of(side, frame), torch.Tensor)
            origins = frozenset({DATA}) if is_tensor else reader.of(side, place) or frozenset()
            sides.append((side, origins, inverted))
        return tuple(sides)

    each = tuple(read(own) for own in listed)
    return Operand(sides=read(argument), each=each), max(place.depth, reader.depth)


def _sides(
    node: ast.expr, place: Place, frame: FrameType, deepest: int, inverted: bool = False
) -> Iterator[tuple[ast.expr, bool]]:
    """The factors of a gradient argument; those of the number that it is filled with, if it is one of these."""
    value = _value(node, frame)
    made = node if isinstance(value, float) else computed_as(node, place)
    match made:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _ONES:
            return
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FILLS:
            named = [keyword.value for keyword in made.keywords if keyword.arg in ("fill_value", "data")]
            filled = (named or made.args[_FILLS[name] :] or [node])[0]
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _AS_IT_WAS:
            filled = owner
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            below = sides_of(made, inverted)
            if isinstance(made.op, ast.Div) and isinstance(made.left, ast.Constant) and made.left.value != 1:
                below = [(made.left, inverted), *sides_of(made.right, not inverted)]
            if below == [(made, inverted)] or not deepest:
                yield made, inverted
                return
            for side, own in below:
                yield from _sides(side, place, frame, deepest - 1, own)
            return
        case _:
            yield node, inverted
            return
    if not deepest or filled is node:
        yield node, inverted
    else:
        yield from _sides(filled, place, frame, deepest - 1, inverted)


def _argument(node: ast.AST | None) -> ast.expr | None:
    """The gradient argument of a call; None if there is none."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="backward")) if ast.unparse(owner).endswith("autograd"):
            name, position = _OF_AUTOGRAD
        case ast.Call(func=ast.Attribute(attr=("backward" | "grad") as function)):
            name, position = _POSITIONS[function]
        case _:
            return None
    named = [keyword.value for keyword in node.keywords if keyword.arg == name]
    match named or node.args[position : position + 1]:
        case [ast.List(elts=[found]) | ast.Tuple(elts=[found])] | [found]:
            return found
    return None


def _value(node: ast.expr, frame: FrameType) -> float | torch.Tensor | None:
    """What an expression is, if it can be read: a number (also that of a tensor without dimensions) or a tensor."""
    found = _read(node, frame)
    if type(found) is torch.Tensor and not found.requires_grad and not found.is_complex():
        return float(found) if not found.dim() else found
    return float(found) if type(found) in (int, float) else None  # type: ignore[arg-type]


def _read(node: ast.expr, frame: FrameType) -> object:
    match size_asked(node):
        case (owner, ast.Constant(value=int(dimension))):
            held = value_of(owner, frame)
            return held.shape[dimension] if type(held) is torch.Tensor and held.dim() > dimension else None
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[owner], keywords=[]):
            return length_of(owner, frame)
        case ast.Call(func=ast.Name(id="float"), args=[inner], keywords=[]):
            return _value(inner, frame)
        case ast.Call(func=ast.Attribute(value=owner, attr="numel"), args=[], keywords=[]):
            held = value_of(owner, frame)
            return held.numel() if type(held) is torch.Tensor else None
        case ast.Subscript(value=owner, slice=ast.Constant() | ast.Name() as item):
            held, key = value_of(owner, frame), value_of(item, frame)
            if type(key) is int and type(held) in (list, tuple, torch.Tensor) and 0 <= key < len(held):  # type: ignore[arg-type]
                return held[key]  # type: ignore[index]
    return value_of(node, frame)

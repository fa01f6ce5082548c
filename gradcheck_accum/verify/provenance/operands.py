"""Finds the origins of the number that something is multiplied or divided by, on the running line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

from gradcheck_accum.engine.graph_nodes import Part
from gradcheck_accum.engine.scalings import SCALINGS
from gradcheck_accum.ledger.stated_names import DATA, is_total
from gradcheck_accum.verify.provenance.following import Place, Sources, place_of, sources_of
from gradcheck_accum.verify.provenance.origins import Origins, size_asked
from gradcheck_accum.verify.provenance.readable import is_without_graph, length_of, size_of, steps_of, value_of
from gradcheck_accum.verify.provenance.returned import returned_by
from gradcheck_accum.verify.provenance.syntax import syntax_of
from gradcheck_accum.verify.stack.frames import package_of

_MOST_PLACES = 1024
"""The most places that are cached: more come only from code that is created again and again."""

_MOST_NAMES = 4
"""The number of names that a number is followed through to the product that it is."""

Sides = tuple[tuple[ast.expr, frozenset[str], bool], ...]
"""The sides of a product or a quotient, each with its origins, and whether the others are divided by it."""

Chain = tuple[tuple[int, int], ...]
"""A frame and its callers: for each its code and the instruction that it is at."""

_depths: dict[tuple[int, int], int] = {}
"""The most callers that were searched for each instruction's operand."""

_read: dict[Chain, tuple[list[CodeType], Operand]] = {}
"""Cache by instruction and callers; code objects are kept alive so that their identities stay unique."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A number's ``origins``, and the ``sides`` of a number that is a product, a quotient or an inverse itself.

    ``depth`` is how many callers up the sides are computed, where the number was passed as an argument. ``each`` are
    the sides of several numbers in a list.
    """

    origins: frozenset[str] = frozenset()
    sides: Sides = ()
    depth: int = 0
    each: tuple[Sides, ...] = ()


def origins_of_operand(frame: FrameType) -> frozenset[str]:
    """The origins of the number in the product or quotient that ``frame`` is at; empty where the source shows none.

    Read once for every place and its callers.
    """
    return read_once(frame, _read_operand).origins


def parts_of_operand(frame: FrameType) -> tuple[Part, ...]:
    """The numbers that ``frame`` multiplies or divides by, each with its origins; None is what the others leave.

    There is one, except where the source has a product, ``loss / (K * len(x))``, or ``w * loss`` with ``w = weight /
    K``: then there are the sides that can be evaluated now, and the rest, whose origins are known if it is one side.
    """
    operand = read_once(frame, _read_operand)
    home = _caller(frame, operand.depth) if operand.sides else frame
    read = [(_number_of(side, home), origins, inverted) for side, origins, inverted in operand.sides]
    known: list[Part] = [(float(value), own, inverted) for value, own, inverted in read if value is not None]
    rest: list[Part] = [(None, own, inverted) for value, own, inverted in read if value is None]
    if not known or len(rest) > 1:
        return ((None, operand.origins, bool(rest) and all(inverted for *_, inverted in rest)),)
    return (*known, *rest) if rest else (*known[:-1], (None, known[-1][1], known[-1][2]))


def _number_of(side: ast.expr, frame: FrameType) -> int | None:
    """The number that a side is now, None where it cannot be read without running code of others."""
    match side:
        case ast.Call(func=ast.Name(id="len"), args=[owner], keywords=[]):
            return length_of(owner, frame) or None
    asked = size_asked(side)
    return steps_of(side, frame) if asked is None else size_of(*asked, frame) or None


def read_once(frame: FrameType, read: Callable[[FrameType], tuple[Operand, int]]) -> Operand:
    """What ``read`` finds at the instruction of a frame, and how many callers it searched: once for each of them."""
    place = id(frame.f_code), frame.f_lasti
    depth = _depths.get(place)
    if depth is not None:
        known = _read.get(_chain(frame, depth))
        if known is not None:
            return known[1]
    if len(_read) >= _MOST_PLACES:
        _read.clear()
        _depths.clear()
    operand, asked = read(frame)
    _depths[place] = depth = max(asked, depth or 0)
    _read[_chain(frame, depth)] = _codes(frame, depth), operand
    return operand


def _chain(frame: FrameType | None, depth: int) -> Chain:
    if not depth and frame is not None:
        return ((id(frame.f_code), frame.f_lasti),)
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) <= depth:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _codes(frame: FrameType | None, depth: int) -> list[CodeType]:
    found: list[CodeType] = []
    while frame is not None and len(found) <= depth:
        found.append(frame.f_code)
        frame = frame.f_back
    return found


def _read_operand(frame: FrameType) -> tuple[Operand, int]:
    syntax = syntax_of(frame)
    # Nothing is known if there are several on the line and it is not certain which one runs.
    node = None if syntax is None else syntax.at(frame, _is_scaling)
    if syntax is None or node is None:
        return Operand(), 0
    reader = Origins(names_alone=bool(package_of(frame.f_code.co_filename)))
    place = place_of(frame, node, syntax)
    operands = [_number_returned(operand, place) for operand in _operands(node)]
    given = [(operand, _tensor_of(operand, place.frame)) for operand in operands]
    numbers = [(operand, tensor) for operand, tensor in given if not _is_scaled(operand, tensor)]
    # What was computed of numbers alone is the number, and what cannot be read next to it the loss.
    plain = [(operand, tensor) for operand, tensor in numbers if is_without_graph(operand, place.frame)]
    numbers = plain if len(plain) == 1 else numbers
    found = [
        _of_tensor(reader, number, place) if tensor is not None else reader.of(number, place) or frozenset()
        for number, tensor in numbers
    ]
    made, home = _made(numbers[0][0], place) if len(numbers) == 1 else (None, place)
    sides = [] if made is None else _sides_of_all(made, home)
    origins = frozenset[str]().union(*found)
    if len(sides) == 1:
        apart = [(side, origins, True) for side, inverted in sides if inverted]
    else:
        apart = [(side, reader.of(side, home) or frozenset(), inverted) for side, inverted in sides]
    return Operand(origins, tuple(apart), home.depth), max(place.depth, reader.depth, home.depth)


def _number_returned(node: ast.expr, place: Place) -> ast.expr:
    """The number that a function of the same file returns where it is called; the node itself if it is none."""
    returned = returned_by(node, place) if isinstance(node, ast.Call) else None
    return node if returned is None or not is_without_graph(returned, place.frame) else returned


def _caller(frame: FrameType, depth: int) -> FrameType:
    """The frame that is so many calls up the stack."""
    for _ in range(depth):
        frame = frame.f_back or frame
    return frame


def _made(node: ast.expr, place: Place) -> tuple[ast.expr, Place]:
    """What a variable was computed as, here or where a caller passed it; the node itself where that is no product."""
    made, home = node, place
    for _ in range(_MOST_NAMES):
        if not isinstance(made, ast.Name):
            break
        known = _only_value(made, home)
        if known is None:
            return node, place
        made, home = _number_returned(*known), known[1]
    is_computed = home is place or sides_of(made) != [(made, False)]
    return (made, home) if is_computed else (node, place)


def _of_tensor(reader: Origins, node: ast.expr, place: Place) -> frozenset[str]:
    """The origins of a number that is a tensor: data, whatever its names, and what it was summed over."""
    return frozenset({DATA, *filter(is_total, reader.of(node, place) or ())})


def computed_as(node: ast.expr, place: Place) -> ast.expr:
    """The only expression that a variable of the running function is assigned; the node itself if there is none."""
    known = _only_value(node, place) if isinstance(node, ast.Name) else None
    return node if known is None or known[1].frame is not place.frame else known[0]


def _only_value(node: ast.Name, place: Place) -> tuple[ast.expr, Place] | None:
    """The only expression that a variable has its value from, in a function that is running; None if there is none."""
    sources = sources_of(node, place) if place.frame is not None else Sources(known=False)
    if not sources.known or len(sources.values) != 1 or sources.imported:
        return None
    return sources.values[0] if sources.values[0][1].frame is not None else None


def sides_of(node: ast.expr, inverted: bool = False) -> list[tuple[ast.expr, bool]]:
    """The factors of a product or a quotient, each with whether it divides; the node itself where it is neither."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [*sides_of(left, inverted), *sides_of(right, inverted)]
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Div(), right=right):
            return sides_of(right, not inverted)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return [*sides_of(left, inverted), *sides_of(right, not inverted)]
    return [(node, inverted)]


def _sides_of_all(node: ast.expr, place: Place) -> list[tuple[ast.expr, bool]]:
    """The factors of a product or a quotient, with those of the numbers in it that functions return."""
    return [own for side, inverted in sides_of(node) for own in sides_of(_number_returned(side, place), inverted)]


def _is_scaled(operand: ast.expr, tensor: torch.Tensor | None) -> bool:
    """Whether one side of a product is the scaled loss or gradient, and not the number."""
    is_gradient = isinstance(operand, ast.Attribute) and operand.attr == "grad"
    return is_gradient or (tensor is not None and tensor.requires_grad)


def _tensor_of(operand: ast.expr, frame: FrameType | None) -> torch.Tensor | None:
    """The tensor that an operand is; None where it is none, or cannot be read."""
    value = None if frame is None else value_of(operand, frame)
    return value if type(value) is torch.Tensor else None


def _is_scaling(node: ast.AST) -> bool:
    return bool(_operands(node))


def _operands(node: ast.AST) -> list[ast.expr]:
    """The candidates for the number: the divisor of a quotient, both sides of a product."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method)) if method in SCALINGS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "other"]
            return named or (node.args if "mul" in method else node.args[-1:])
    return operands_of_operator(node)


def operands_of_operator(node: ast.AST) -> list[ast.expr]:
    """The same where it is written with an operator; empty otherwise."""
    match node:
        case ast.BinOp(op=ast.Div()):
            return [node.right]
        case ast.BinOp(op=ast.Mult()):
            return [node.left, node.right]
        case ast.AugAssign(op=ast.Div() | ast.Mult()):
            return [node.value]
    return []

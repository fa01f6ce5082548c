"""What the source has for the number that something is multiplied or divided by, at the line that is being run."""

from __future__ import annotations

import ast
from types import CodeType, FrameType

import torch

from gradcheck_accum.engine.tape import SCALINGS
from gradcheck_accum.verify.frames import package_of
from gradcheck_accum.verify.provenance.following import place_of
from gradcheck_accum.verify.provenance.origins import Origins
from gradcheck_accum.verify.provenance.readable import value_of
from gradcheck_accum.verify.provenance.syntax import syntax_of

_MOST_PLACES = 1024
"""Places beyond which what was read is forgotten: code that is made anew all the time is no loop's."""

Chain = tuple[tuple[int, int], ...]
"""A frame and its callers: for each its code and the instruction that it is at."""

_depths: dict[tuple[int, int], int] = {}
"""How many callers were asked at most for what each instruction's operand is."""

_read: dict[Chain, tuple[list[CodeType], frozenset[str]]] = {}
"""What each instruction, called from there, was read to say; code is held, so that no other can have its identity."""


def origins_of_operand(frame: FrameType) -> frozenset[str]:
    """The origins of the number in the product or quotient that ``frame`` is at; empty where the source shows none.

    Read once for every place and those that call it.
    """
    place = id(frame.f_code), frame.f_lasti
    depth = _depths.get(place)
    if depth is not None:
        known = _read.get(_chain(frame, depth))
        if known is not None:
            return known[1]
    if len(_read) >= _MOST_PLACES:
        _read.clear()
        _depths.clear()
    origins, asked = _read_origins(frame)
    _depths[place] = depth = max(asked, depth or 0)
    _read[_chain(frame, depth)] = _codes(frame, depth), origins
    return origins


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


def _read_origins(frame: FrameType) -> tuple[frozenset[str], int]:
    syntax = syntax_of(frame)
    # Of several on a line of which none is the one for certain, nothing is known.
    node = None if syntax is None else syntax.at(frame, _is_scaling)
    if syntax is None or node is None:
        return frozenset(), 0
    reader = Origins(names_alone=bool(package_of(frame.f_code.co_filename)))
    place = place_of(frame, node, syntax)
    numbers = [operand for operand in _operands(node) if not _is_scaled(operand, place.frame)]
    found = [reader.of(number, place) or frozenset() for number in numbers]
    return frozenset().union(*found), max(place.depth, reader.depth)


def _is_scaled(operand: ast.expr, frame: FrameType | None) -> bool:
    """Whether one side of a product is what is scaled: a loss, or a gradient."""
    if isinstance(operand, ast.Attribute) and operand.attr == "grad":
        return True
    value = None if frame is None else value_of(operand, frame)
    return type(value) is torch.Tensor and value.requires_grad


def _is_scaling(node: ast.AST) -> bool:
    return bool(_operands(node))


def _operands(node: ast.AST) -> list[ast.expr]:
    """What may be the number in a product or a quotient: both sides of a product."""
    match node:
        case ast.BinOp(op=ast.Div()):
            return [node.right]
        case ast.BinOp(op=ast.Mult()):
            return [node.left, node.right]
        case ast.AugAssign(op=ast.Div() | ast.Mult()):
            return [node.value]
        case ast.Call(func=ast.Attribute(attr=method)) if method in SCALINGS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "other"]
            return named or (node.args if "mul" in method else node.args[-1:])
    return []

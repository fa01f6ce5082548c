"""What the source calls the number that a loss is multiplied or divided by, at the line that is being run."""

from __future__ import annotations

import ast
import linecache
import sys
from types import CodeType, FrameType

_METHODS = ("div", "div_", "true_divide", "true_divide_", "divide", "divide_", "mul", "mul_", "multiply", "multiply_")
_MOST_PLACES = 1024
"""Places beyond which what was read is forgotten: code that is made anew all the time is no loop's."""

_read: dict[tuple[int, int], tuple[CodeType, frozenset[str]]] = {}
"""What each instruction was read to say; its code is held, so that no other can have its identity."""


def names_of_operand(frame: FrameType) -> frozenset[str]:
    """The name of the number in the product or quotient that ``frame`` is at; empty where the source shows none.

    Read once for every place. A number that is computed there (``K + 1``) has no name; 1 over a number has its name.
    """
    key = id(frame.f_code), frame.f_lasti
    known = _read.get(key)
    if known is None:
        if len(_read) >= _MOST_PLACES:
            _read.clear()
        known = _read[key] = frame.f_code, _read_names(frame)
    return known[1]


def _read_names(frame: FrameType) -> frozenset[str]:
    linecache.checkcache(frame.f_code.co_filename)
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return frozenset()
    here = [node for node in ast.walk(tree) if _operands(node) and _is_at(node, frame)]
    # Of several on a line of which none is the one for certain, nothing is known.
    return frozenset(filter(None, map(_name, _operands(here[0])))) if len(here) == 1 else frozenset()


def _operands(node: ast.AST) -> list[ast.expr]:
    """What may be the number in a product or a quotient: both sides of a product."""
    match node:
        case ast.BinOp(op=ast.Div()):
            return [node.right]
        case ast.BinOp(op=ast.Mult()):
            return [node.left, node.right]
        case ast.AugAssign(op=ast.Div() | ast.Mult()):
            return [node.value]
        case ast.Call(func=ast.Attribute(attr=method), args=[*_, last]) if method in _METHODS:
            return [last]
    return []


def _is_at(node: ast.AST, frame: FrameType) -> bool:
    """Whether a frame's instruction is ``node``'s; where Python does not keep columns, whether its line is."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if sys.version_info < (3, 11):
        return first <= frame.f_lineno <= last
    positions = list(frame.f_code.co_positions())
    own = positions[frame.f_lasti // 2] if frame.f_lasti // 2 < len(positions) else (None,) * 4
    return own == (first, last, getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0))


def _name(node: ast.expr) -> str:
    """The last part of a name, what a mapping has under a string; of 1 over a number, the number's."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Div(), right=right):
            return _name(right)
    return ""

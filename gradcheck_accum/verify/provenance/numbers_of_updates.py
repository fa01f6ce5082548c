"""What a number counts that an update by hand multiplies gradients by: micro-batches or rows, or nothing.

``total / K`` counts, a learning rate does not. Where the source does not show it, or a number is computed from both
(``lr / K``), that is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from types import FrameType

import torch

from gradcheck_accum.engine.scalings import DIVIDING, MULTIPLYING
from gradcheck_accum.ledger.stated_names import (
    LOSSES,
    NAMES_THAT_MAY_BE_STEPS,
    WHAT_REMAINS,
    is_extent,
    is_length,
    is_place,
    is_total,
    names_size,
    names_steps,
)
from gradcheck_accum.verify.provenance.following import Place, place_of, sources_of
from gradcheck_accum.verify.provenance.operands import operands_of_operator
from gradcheck_accum.verify.provenance.origins import Origins, size_asked
from gradcheck_accum.verify.provenance.readable import value_of
from gradcheck_accum.verify.provenance.syntax import syntax_of

_MOST_NAMES = 6
"""The number of names that a number is followed through, each computed from the one before."""


class Counts(Enum):
    """What a number counts."""

    UNITS = "micro-batches, rows or the like"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def counted_by_number(frame: FrameType) -> Counts:
    """What the number counts that the call, or the operator, at ``frame`` multiplies or divides a tensor by."""
    syntax = syntax_of(frame)
    node = None if syntax is None else syntax.at(frame, lambda node: bool(_candidates(node)))
    if syntax is None or node is None:
        return Counts.UNKNOWN
    place = place_of(frame, node, syntax)
    candidates = _candidates(node)
    if len(candidates) > 1:
        known = [value_of(own, frame) for own in candidates]
        plain = [own for own, value in zip(candidates, known, strict=True) if type(value) in (int, float)]
        others = [own for own, value in zip(candidates, known, strict=True) if not isinstance(value, torch.Tensor)]
        candidates = plain if len(plain) == 1 else others
    if len(candidates) != 1:
        return Counts.UNKNOWN
    found = [*_parts(candidates[0], place, _MOST_NAMES)]
    if _all_count(found):
        return Counts.UNITS
    return Counts.NOTHING if all(own is Counts.NOTHING for own in found) else Counts.UNKNOWN


def _candidates(node: ast.AST) -> list[ast.expr]:
    """What may be the number: the divisor of a quotient, both sides of a product, ``alpha``, a share."""
    match node:
        case ast.Call(keywords=keywords) if named := [own.value for own in keywords if own.arg == "alpha"]:
            return named
        case ast.Call(func=ast.Attribute(attr=method), args=[*_, number]) if method in MULTIPLYING | DIVIDING:
            return [number]
        case ast.Call(func=ast.Attribute(attr="lerp" | "lerp_"), args=args, keywords=keywords):
            return [own.value for own in keywords if own.arg == "weight"] or args[-1:]
    return operands_of_operator(node)


def _parts(node: ast.expr, place: Place, names: int) -> Iterator[Counts]:
    """What each of the numbers counts that a number is computed from."""
    match node:
        case ast.Constant(value=int() | float() as number):
            if number != 1:
                yield Counts.NOTHING
            return
        case ast.BinOp(left=left, op=ast.Div()) if _all_count([*_parts(left, place, names)]):
            # A share is one, whatever it is of.
            yield Counts.UNITS
            return
        case ast.BinOp(left=left, right=right):
            yield from _parts(left, place, names)
            yield from _parts(right, place, names)
            return
        case ast.UnaryOp(operand=inner) | ast.Call(func=ast.Name(id="float"), args=[inner], keywords=[]):
            yield from _parts(inner, place, names)
            return
    origins = Origins().of(node, place) or frozenset[str]()
    if any(map(_is_count, origins)):
        yield Counts.UNITS
        return
    is_size = size_asked(node) is not None or isinstance(node, ast.Call)
    sources = None if is_size or not names else sources_of(node, place)
    if sources is None or not sources.known or sources.imported or not sources.values:
        yield Counts.UNKNOWN
        return
    for value, at in sources.values:
        yield from _parts(value, at, names - 1)


def _all_count(parts: list[Counts]) -> bool:
    return bool(parts) and all(own is Counts.UNITS for own in parts)


def _is_count(origin: str) -> bool:
    """Whether an origin is that of a number of micro-batches, of rows, or of the length of something."""
    if is_place(origin):
        return False
    of_lists = is_length(origin) or is_total(origin) or is_extent(origin) or origin in (LOSSES, WHAT_REMAINS)
    return of_lists or names_steps({origin}) or names_size({origin}) or origin in NAMES_THAT_MAY_BE_STEPS

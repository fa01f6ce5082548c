"""What K is computed from, where the source computes it as a quotient: ``K = TARGET // MICRO``."""

from __future__ import annotations

import ast

from gradcheck_accum.ledger.events import Quotient
from gradcheck_accum.verify.provenance.following import Place, sources_of
from gradcheck_accum.verify.provenance.origins import Origins, passed_through

_MOST_NAMES = 4
"""The number of names that a quotient is followed through."""


def quotient_of(node: ast.expr, place: Place) -> Quotient | None:
    """The factors of the quotient that a number is, each with its origins; None where it is none, or one is unknown."""
    parts = _factors(node, place, inverted=False, names=_MOST_NAMES)
    if not any(inverted for *_, inverted in parts):
        return None
    reader = Origins()
    read = [(reader.of(part, at), inverted) for part, at, inverted in parts]
    known = [(origins, inverted) for origins, inverted in read if origins]
    if len(known) < len(read):
        return None
    return Quotient(
        tuple(origins for origins, inverted in known if not inverted),
        tuple(origins for origins, inverted in known if inverted),
    )


def _factors(node: ast.expr, place: Place, *, inverted: bool, names: int) -> list[tuple[ast.expr, Place, bool]]:
    """The factors of a product or a quotient, each with whether it divides; the node itself where it is neither."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [
                *_factors(left, place, inverted=inverted, names=names),
                *_factors(right, place, inverted=inverted, names=names),
            ]
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
            return [
                *_factors(left, place, inverted=inverted, names=names),
                *_factors(right, place, inverted=not inverted, names=names),
            ]
        case ast.Name() | ast.Attribute() if names:
            sources = sources_of(node, place)
            if sources.known and len(sources.values) == 1 and not sources.imported:
                value, at = sources.values[0]
                found = _factors(value, at, inverted=inverted, names=names - 1)
                # A name says more than the number that it is bound to.
                return found if len(found) > 1 else [(node, place, inverted)]
    inner = passed_through(node)
    return [(node, place, inverted)] if inner is None else _factors(inner, place, inverted=inverted, names=names)

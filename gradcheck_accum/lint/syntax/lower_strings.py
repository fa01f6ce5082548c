"""Strings of a LibCST tree in the syntax of our own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.lowering import Handler, Lowering
from gradcheck_accum.lint.syntax.node import Node

_PREFIX = re.compile("[A-Za-z]*")
_WITH_VALUES: tuple[type[cst.CSTNode], ...] = (
    cst.FormattedString,
    *filter(None, [getattr(cst, "TemplatedString", None)]),  # which came with LibCST 1.8
)


def _value(node: cst.SimpleString) -> str | bytes:
    """What a literal stands for."""
    text = node.value
    prefix = _PREFIX.match(text)
    if prefix is not None and not prefix.group() and "\\" not in text:
        quotes = 3 if text[:3] in ('"""', "'''") else 1
        return text[quotes:-quotes].replace("\r\n", "\n")
    return node.evaluated_value


def _simple(low: Lowering, node: cst.SimpleString) -> Node:
    return s.Constant(low.where(node), node, _value(node))


def _formatted(low: Lowering, node: Any) -> Node:
    start, end = low.places.span(node)
    where = low.places.where(start, end)
    return s.JoinedStr(where, node, _values(low, node.parts, where), low.places.text[start:end])


def _concatenated(low: Lowering, node: cst.ConcatenatedString) -> Node:
    start, end = low.places.span(node)
    where = low.places.where(start, end)
    pieces = list(_pieces(node))
    if not any(isinstance(piece, _WITH_VALUES) for piece in pieces):
        values = [_value(piece) for piece in pieces]
        return s.Constant(where, node, values[0][:0].join(values))  # type: ignore[arg-type]
    parts = [part for piece in pieces if isinstance(piece, _WITH_VALUES) for part in piece.parts]  # type: ignore[attr-defined]
    return s.JoinedStr(where, node, _values(low, parts, where), low.places.text[start:end])


def _pieces(node: Any) -> Iterator[Any]:
    while isinstance(node, cst.ConcatenatedString):
        yield node.left
        node = node.right
    yield node


def _values(low: Lowering, parts: Any, where: Location) -> tuple[s.FormattedValue, ...]:
    """The values in a string, which stand where all of it does."""
    found = [part for part in parts if hasattr(part, "expression")]
    return tuple(
        s.FormattedValue(where, p, low.one(p.expression), _values(low, p.format_spec or (), where)) for p in found
    )


STRINGS: dict[type[cst.CSTNode], Handler] = {
    cst.SimpleString: _simple,
    cst.ConcatenatedString: _concatenated,
    **dict.fromkeys(_WITH_VALUES, _formatted),
}

"""Patterns of a LibCST tree in the syntax of our own."""

from __future__ import annotations

import libcst as cst

from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.lowering import Handler, Lowering
from gradcheck_accum.lint.syntax.node import Node


def _value(low: Lowering, node: cst.MatchValue) -> Node:
    return s.MatchValue(low.where(node.value), node, low.one(node.value))


def _as(low: Lowering, node: cst.MatchAs) -> Node:
    name = node.name.value if node.name is not None else None
    return s.MatchAs(low.where(node), node, low.one(node.pattern), name)


def _constant(low: Lowering, node: cst.MatchSingleton) -> Node:
    return s.MatchStructure(low.where(node.value), node, (), ())


def _star(low: Lowering, node: cst.MatchStar) -> Node:
    start, end = low.places.span(node)  # with the comma
    name = low.places.span(node.name)[1] if node.name is not None else low.places.text.index("_", start, end) + 1
    return s.MatchStructure(low.places.where(start, name), node, (), ())


def _sequence(low: Lowering, node: cst.MatchSequence) -> Node:
    values = (p.value if isinstance(p, cst.MatchSequenceElement) else p for p in node.patterns)
    return s.MatchStructure(low.places.bracketed(node), node, (), low.all(values))


def _either(low: Lowering, node: cst.MatchOr) -> Node:
    return s.MatchStructure(low.where(node), node, (), low.all(p.pattern for p in node.patterns))


def _mapping(low: Lowering, node: cst.MatchMapping) -> Node:
    keys = [e.key.value if isinstance(e.key, (cst.MatchSingleton, cst.MatchValue)) else e.key for e in node.elements]
    return s.MatchStructure(low.where(node), node, low.all(keys), low.all(e.pattern for e in node.elements))


def _class(low: Lowering, node: cst.MatchClass) -> Node:
    patterns = (*(p.value for p in node.patterns), *(k.pattern for k in node.kwds))
    return s.MatchStructure(low.where(node), node, (low.one(node.cls),), low.all(patterns))


PATTERNS: dict[type[cst.CSTNode], Handler] = {
    cst.MatchValue: _value,
    cst.MatchAs: _as,
    cst.MatchSingleton: _constant,
    cst.MatchStar: _star,
    cst.MatchList: _sequence,
    cst.MatchTuple: _sequence,
    cst.MatchOr: _either,
    cst.MatchMapping: _mapping,
    cst.MatchClass: _class,
}

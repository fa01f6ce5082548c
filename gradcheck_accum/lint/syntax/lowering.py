"""The way down a LibCST tree to the syntax of our own: what the handlers of its kinds of nodes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.node import Node
from gradcheck_accum.lint.syntax.places import Places


class Lowering:
    """The way down from one tree; ``handlers`` lower a node of each kind."""

    def __init__(self, places: Places, handlers: Mapping[type[cst.CSTNode], Handler]) -> None:
        self.places = places
        self._handlers = handlers
        self.stored: set[cst.CSTNode] = set()
        """The attributes that are given values, as far as the way has come."""

    def one(self, node: cst.CSTNode | None) -> Any:
        """The syntax of a node; None for none."""
        return None if node is None else self._handlers[type(node)](self, node)

    def all(self, nodes: Iterable[cst.CSTNode]) -> tuple[Any, ...]:
        """The syntax of several nodes."""
        return tuple([self.one(node) for node in nodes])

    def where(self, node: cst.CSTNode) -> Location:
        """The place of a node, without its parentheses."""
        return self.places.where(*self.places.span(node))

    def until(self, node: cst.CSTNode, last: Node) -> Location:
        """The place of a node that ends with another one: a compound statement with its last statement."""
        place = self.where(node)
        end = last.where
        return Location(place.path, place.line, place.column, end.end_line, end.end_column)

    def target(self, node: cst.CSTNode) -> Any:
        """The syntax of what is given a value."""
        self._store(node)
        return self.one(node)

    def _store(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Attribute):
            self.stored.add(node)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._store(element.value)

    def body(self, block: cst.BaseSuite | cst.Module) -> tuple[s.Statement, ...]:
        """The statements of a block, those that share a line one by one."""
        found: list[s.Statement] = []
        for item in block.body:
            if isinstance(item, cst.SimpleStatementLine):
                found += [self.one(statement) for statement in item.body]
            else:
                found.append(self.one(item))
        return tuple(found)


Handler = Callable[[Lowering, Any], Node]
"""Lowers one node of a kind."""

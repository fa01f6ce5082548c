"""The nodes in a piece of syntax."""

from __future__ import annotations

from gradcheck_accum.lint.syntax.node import Node
from gradcheck_accum.lint.syntax.nodes import Module, Statement


def children(node: Node) -> list[Node]:
    """The nodes directly below one, in the order of their fields."""
    found: list[Node] = []
    for name in node.PARTS:
        value = getattr(node, name)
        if value.__class__ is tuple:
            found += [item for item in value if item is not None]
        elif value is not None:
            found.append(value)
    return found


def walk(node: Node) -> tuple[Node, ...]:
    """A node and all below it, the outer ones first; cached, because loops go over the same ones repeatedly."""
    try:
        return node._walked
    except AttributeError:
        nodes = [node]
        for one in nodes:
            if one.PARTS:
                nodes += children(one)
        walked = tuple(nodes)
        object.__setattr__(node, "_walked", walked)
        return walked


def statement_lines(module: Module) -> dict[int, tuple[int, int]]:
    """For every line of a simple statement, the statement's first and last line: a comment on any of them counts."""
    lines: dict[int, tuple[int, int]] = {}
    for node in walk(module):
        if isinstance(node, Statement) and "body" not in node.FIELDS:
            first, last = node.where.line, node.where.end_line
            lines.update(dict.fromkeys(range(first, last + 1), (first, last)))
    return lines

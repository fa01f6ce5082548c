"""Pieces of source: what is in them, and what they look like."""

from __future__ import annotations

import ast

_WITHOUT_CONTENT = (ast.expr_context, ast.operator)
_KEPT = "_gradcheck_text"


def text_of(node: ast.AST) -> str:
    """What a node looks like in source; kept with the node, because loops ask for the same ones again and again."""
    text: str | None = node.__dict__.get(_KEPT)
    if text is None:
        text = node.__dict__[_KEPT] = ast.unparse(node)
    return text


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, but for those that say nothing more than their type."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found.extend([item for item in value if isinstance(item, ast.AST)])
        elif isinstance(value, ast.AST) and not isinstance(value, _WITHOUT_CONTENT):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, the outer ones first: as `ast.walk`, in half its time."""
    nodes = [node]
    for one in nodes:
        nodes.extend(children(one))
    return nodes

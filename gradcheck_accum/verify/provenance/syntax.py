"""The syntax of the running code: parsed once per file, with the position of a frame in it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from types import CodeType, FrameType

from gradcheck_accum.verify.provenance.numbered import Numbered

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope = Function | ast.Module

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Code that is a part of the function around it, though it has a frame of its own."""

Span = tuple[int, int | None, int, int | None]
"""First line and column, last line and column; no columns where Python keeps none."""

_read: dict[str, tuple[list[str], Syntax | None]] = {}


class Syntax:
    """The tree of a file, with the parent of every node."""

    def __init__(self, filename: str, tree: ast.Module) -> None:
        self.filename = filename
        self.tree = tree

    @cached_property
    def _children(self) -> dict[ast.AST, list[ast.AST]]:
        """For every node those directly below it, in the order of ``ast.walk``."""
        found: dict[ast.AST, list[ast.AST]] = {}
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:
            below = found[node] = list(ast.iter_child_nodes(node))
            nodes += below
        return found

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node, below in self._children.items() for child in below}

    @cached_property
    def _scopes(self) -> dict[ast.AST, Scope]:
        return {}

    @cached_property
    def _numbered(self) -> Numbered:
        return Numbered(self.filename, self.tree)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that ``node`` is a part of."""
        return self._parents.get(node)

    def children(self, node: ast.AST) -> list[ast.AST]:
        """The nodes directly below one of this tree."""
        return self._children[node]

    def walk(self, node: ast.AST) -> list[ast.AST]:
        """What ``ast.walk`` gives for a node of this tree, in a tenth of the time."""
        children, nodes = self._children, [node]
        for one in nodes:
            nodes += children[one]
        return nodes

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that ``node`` is in, innermost first."""
        outer = self.parent(node)
        while outer is not None:
            yield outer
            outer = self.parent(outer)

    def scope_of(self, node: ast.AST) -> Scope:
        """The function that ``node`` is in, or the module."""
        known = self._scopes.get(node)
        if known is None:
            known = next((n for n in self.around(node) if isinstance(n, _FUNCTIONS)), self.tree)
            self._scopes[node] = known
        return known

    def class_of(self, scope: Scope) -> ast.ClassDef | None:
        """The class that a function is a method of."""
        outer = self.parent(scope)
        return outer if isinstance(outer, ast.ClassDef) else None

    def at(self, frame: FrameType, wanted: Callable[[ast.AST], bool]) -> ast.AST | None:
        """The one node of the wanted kind that a frame is executing. None where there are several."""
        span = _span(frame.f_code, frame.f_lasti, frame.f_lineno)
        node = self._numbered_node(frame) if span[1] is None else self._innermost(span)
        if node is not None:
            return node if wanted(node) else None
        found = [n for n in self.walk(self.tree) if wanted(n) and _holds(n, span)]
        return found[0] if len(found) == 1 else None

    def node_at(self, frame: FrameType) -> ast.AST:
        """The innermost node that a frame is at; its statement where Python keeps no columns and it is not known."""
        span = _span(frame.f_code, frame.f_lasti, frame.f_lineno)
        return (self._numbered_node(frame) if span[1] is None else None) or self._innermost(span)

    def _numbered_node(self, frame: FrameType) -> ast.AST | None:
        return self._numbered.node(frame.f_code, frame.f_lasti)

    def _innermost(self, span: Span) -> ast.AST:
        node: ast.AST = self.tree
        while True:
            inner = [n for n in self._with_places(node) if _holds(n, span)]
            if span[1] is None:
                inner = [n for n in inner if isinstance(n, (ast.stmt, ast.ExceptHandler))]
            if not inner:
                return node
            node = inner[-1]

    def _with_places(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nearest descendants of a node that have a position in the file: ``ast.arguments``, say, has none."""
        for child in self._children[node]:
            if hasattr(child, "lineno"):
                yield child
            else:
                yield from self._with_places(child)


def syntax_of(frame: FrameType) -> Syntax | None:
    """The syntax of the file that a frame runs, None where its source is not available."""
    filename = frame.f_code.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, frame.f_globals)
    known = _read.get(filename)
    if known is None or known[0] is not lines:
        known = _read[filename] = lines, _parsed(filename, lines)
    return known[1]


def what_may_run(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that is in it, as ``ast.walk`` gives them, except what a constant test excludes (``if False``)."""
    left = [node]
    while left:
        current = left.pop()
        yield current
        match current:
            case ast.If(test=ast.Constant(value=value), body=body, orelse=orelse):
                left += body if value else orelse
            case ast.While(test=ast.Constant(value=value), orelse=orelse) if not value:
                left += orelse
            case _:
                left += ast.iter_child_nodes(current)


def own_frame(frame: FrameType) -> FrameType | None:
    """The frame of the function that ``frame``, which may be a comprehension's, belongs to; None where it is gone."""
    while frame.f_code.co_name in COMPREHENSIONS:
        outer = frame_around(frame)
        if outer is None:
            return None
        frame = outer
    return frame


def frame_around(frame: FrameType) -> FrameType | None:
    """The frame of the function that defines the one that ``frame`` runs, if it is still running."""
    outer = frame.f_back
    while outer is not None and frame.f_code not in outer.f_code.co_consts:
        outer = outer.f_back
    return outer


def _parsed(filename: str, lines: list[str]) -> Syntax | None:
    try:
        return Syntax(filename, ast.parse("".join(lines))) if lines else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _span(code: CodeType, instruction: int, line: int) -> Span:
    positions = getattr(code, "co_positions", None)
    own = next(islice(positions(), instruction // 2, None), None) if positions is not None else None
    if own is None or None in own:
        return line, None, line, None
    first, last, start, end = own
    return first, start, last, end


def _holds(node: ast.AST, span: Span) -> bool:
    """Whether a span lies in a node."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
    if span[1] is None or span[3] is None:
        return first <= span[0] and span[2] <= last
    start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None) or 0
    return (first, start) <= (span[0], span[1]) and (span[2], span[3]) <= (last, end)

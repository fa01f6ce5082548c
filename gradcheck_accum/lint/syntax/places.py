"""The place of every node of a LibCST tree, and the comments of the tree: from one walk that writes nothing.

LibCST's own providers of positions do the same walk, the one that writes a tree's text, and take four times as long
for it. ``tests/test_syntax_places.py`` compares the two.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from types import TracebackType
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax.nodes import Comment

_LINE_BREAK = re.compile(r"\r\n|\n")
_NOTED = frozenset({cst.LeftParen, cst.RightParen, cst.ImportStar})
"""Kinds that LibCST writes without saying where, and that are asked for."""


class Places:
    """The places of the nodes of one module, whose ``text`` is what it was parsed from.

    Lines count from ``first``, and columns count characters; or all of it stands ``at`` one place.
    """

    def __init__(self, module: cst.Module, text: str, path: str, first: int, at: Location | None) -> None:
        self.text = text
        self._path = path
        self._first = first
        self._at = at
        walk = walked(module)
        self._spans = walk.spans
        self._comments = walk.comments
        self._starts = line_starts(text)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node begins and ends in the text, without its parentheses."""
        return self._spans[node]

    def whole(self, node: Any) -> tuple[int, int]:
        """The same with them."""
        if node.lpar:
            return self._spans[node.lpar[0]][0], self._spans[node.rpar[-1]][1]
        return self._spans[node]

    def bracketed(self, node: Any) -> Location:
        """The place of something that includes its innermost parentheses: a tuple, say."""
        if not node.lpar:
            return self.where(*self._spans[node])
        return self.where(self._spans[node.lpar[-1]][0], self._spans[node.rpar[0]][1])

    def where(self, start: int, end: int) -> Location:
        """The place of what begins and ends there in the text."""
        if self._at is not None:
            return self._at
        line, end_line = bisect_right(self._starts, start), bisect_right(self._starts, end)
        column, end_column = start - self._starts[line - 1], end - self._starts[end_line - 1]
        before = self._first - 1
        return Location(self._path, line + before, column + 1, end_line + before, end_column + 1)

    def comments(self) -> tuple[Comment, ...]:
        """The comments of the module, in order."""
        spans = ((start, start + len(node.value), node) for start, node in self._comments)
        return tuple(Comment(self.where(start, end), node, node.value) for start, end, node in spans)


def line_starts(text: str) -> list[int]:
    """Where each line of a text begins."""
    return [0, *(match.end() for match in _LINE_BREAK.finditer(text))]


def walked(module: cst.Module) -> Walk:
    """A walk over the whole of a module."""
    walk = Walk(default_indent=module.default_indent, default_newline=module.default_newline)
    module._codegen(walk)
    return walk


class Walk(CodegenState):
    """Takes the text of a tree in pieces, and keeps no more of them than how long they are."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent=default_indent, default_newline=default_newline)
        self.at = 0
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self.comments: list[tuple[int, cst.Comment]] = []
        self.ends: list[tuple[int, cst.TrailingWhitespace]] = []
        """Where lines end that may end with a comment."""

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.at += len(token)

    def add_token(self, value: str) -> None:
        self.at += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        kind = node.__class__
        if kind in _NOTED:
            self.spans[node] = self.at, self.at + 1
        elif kind is cst.Comment:
            self.comments.append((self.at, node))  # type: ignore[arg-type]
        elif kind is cst.TrailingWhitespace:
            self.ends.append((self.at, node))  # type: ignore[arg-type]

    def after_codegen(self, node: cst.CSTNode) -> None:
        if node.__class__ is cst.RightParen:
            self.spans[node] = self.at - 1, self.at

    def record_syntactic_position(self, node: cst.CSTNode, **_: cst.CSTNode | None) -> _Span:  # type: ignore[override]
        return _Span(self, node)


class _Span:
    """Keeps where the walk is when a node begins, and when it ends."""

    __slots__ = ("_node", "_start", "_walk")

    def __init__(self, walk: Walk, node: cst.CSTNode) -> None:
        self._walk = walk
        self._node = node

    def __enter__(self) -> None:
        self._start = self._walk.at

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._walk.spans[self._node] = self._start, self._walk.at

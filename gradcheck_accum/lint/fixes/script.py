"""A script as text and as libcst's tree: where its pieces stand, and the text after one of them has changed.

The tree says what and where; every change is made in the text, so that whatever is not changed stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from gradcheck_accum.location import Location

_NEWLINE = re.compile(r"\r\n|\r|\n")
_Node = TypeVar("_Node", bound=cst.CSTNode)


class CannotEdit(Exception):
    """A change that this module does not know how to make without touching more than it should."""


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the characters from ``start`` up to ``end`` by ``content``."""

    start: int
    end: int
    content: str


def changed(text: str, changes: list[Change]) -> str:
    """``text`` after ``changes``; several at one place are made in the order given."""
    ordered = sorted(dict.fromkeys(changes), key=lambda change: (change.start, change.end))
    if any(later.start < earlier.end for earlier, later in pairwise(ordered)):
        raise CannotEdit("overlapping changes")
    pieces: list[str] = []
    at = 0
    for change in ordered:
        pieces += [text[at : change.start], change.content]
        at = change.end
    return "".join([*pieces, text[at:]])


def nodes_in(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all that stands in it."""
    pending = [node]
    while pending:
        found = pending.pop()
        yield found
        pending += found.children


class Script:
    """One script. Raises CannotEdit where libcst cannot parse what Python can."""

    def __init__(self, text: str) -> None:
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
            positions = wrapper.resolve(PositionProvider)
        except (cst.ParserSyntaxError, RecursionError):
            raise CannotEdit("libcst cannot parse it") from None
        self.text = text
        self.module = wrapper.module
        starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        self._starts = [*starts, len(text)]
        self._parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self._at: dict[tuple[int, int], list[cst.CSTNode]] = {}
        pending: list[cst.CSTNode] = [self.module]
        while pending:
            node = pending.pop()
            for child in node.children:
                self._parents[child] = node
                pending.append(child)
            place = positions.get(node)
            # The end of a block whose last line has no end is told to be on the line after.
            if place is not None and place.end.line <= len(starts):
                start = starts[place.start.line - 1] + place.start.column
                end = starts[place.end.line - 1] + place.end.column
                self._spans[node] = (start, end)
                self._at.setdefault((start, end), []).append(node)

    # Finding

    def expression(self, where: Location) -> cst.BaseExpression | None:
        """The expression that spans exactly ``where``."""
        return self.find(where, cst.BaseExpression)  # type: ignore[type-abstract]

    def find(self, where: Location, kind: type[_Node]) -> _Node | None:
        """The node of one kind that spans exactly ``where``, as the syntax tree of the standard library counts."""
        if not 1 <= where.line <= where.end_line < len(self._starts):
            return None
        span = self._offset(where.line, where.column), self._offset(where.end_line, where.end_column)
        return next((node for node in self._at.get(span, []) if isinstance(node, kind)), None)

    def _offset(self, line: int, column: int) -> int:
        """Where a 1-based line and byte column stand in the text."""
        start, end = self._starts[line - 1], self._starts[line]
        before = self.text[start:end].encode()[: column - 1]
        return start + len(before.decode(errors="ignore"))

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What a node stands in, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """What a node stands in directly."""
        return self._parents.get(node)

    def enclosing(self, node: cst.CSTNode, kind: type[_Node]) -> _Node | None:
        """The innermost node of a kind that ``node`` stands in."""
        return next((parent for parent in self.parents(node) if isinstance(parent, kind)), None)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that ``node`` stands in; None for the module itself."""
        return self.enclosing(node, cst.FunctionDef)

    def loops_of(self, node: cst.CSTNode) -> list[cst.For]:
        """The for loops of its own function that ``node`` stands in, innermost first."""
        loops: list[cst.For] = []
        for parent in self.parents(node):
            if isinstance(parent, cst.FunctionDef):
                break
            if isinstance(parent, cst.For):
                loops.append(parent)
        return loops

    def statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement:
        """The simple statement that ``node`` is part of."""
        found = self.small_statement(node)
        if found is None:
            raise CannotEdit("not in a simple statement")
        return found

    def small_statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """The simple statement that ``node`` is part of; None in the head of a compound one."""
        for parent in (node, *self.parents(node)):
            if isinstance(parent, cst.BaseSmallStatement):
                return parent
            if isinstance(parent, cst.BaseCompoundStatement):
                return None
        return None

    def block(self, statement: cst.CSTNode) -> cst.CSTNode:
        """The body that a simple statement's line stands in."""
        return self._parents[self._parents[statement]]

    def calls_own_function(self, inside: cst.CSTNode) -> bool:
        """Whether a piece of the script calls a function of this file, as far as its name tells."""
        own = {node.name.value for node in nodes_in(self.module) if isinstance(node, cst.FunctionDef)}
        calls = (node.func for node in nodes_in(inside) if isinstance(node, cst.Call))
        called = (func.attr if isinstance(func, cst.Attribute) else func for func in calls)
        return any(isinstance(name, cst.Name) and name.value in own for name in called)

    def next_to(self, statement: cst.CSTNode, offset: int) -> cst.BaseSmallStatement | None:
        """The simple statement on the line after (1) or before (-1) a statement's own, in the same block."""
        line = self._parents[statement]
        lines = list(getattr(self._parents[line], "body", ()))
        place = next((i for i, other in enumerate(lines) if other is line), None)
        if place is None or not 0 <= place + offset < len(lines):
            return None
        other = lines[place + offset]
        return other.body[0] if isinstance(other, cst.SimpleStatementLine) else None

    def names(self, name: str, inside: cst.CSTNode | None) -> list[cst.Name]:
        """Every mention of ``name`` in a function, or in the module."""
        return [n for n in nodes_in(inside or self.module) if isinstance(n, cst.Name) and n.value == name]

    # Text

    def code(self, node: cst.CSTNode) -> str:
        """The source of a node, with its own parentheses."""
        start, end = self.span(node)
        return self.text[start:end]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node starts and ends, its own parentheses included."""
        start, end = self._spans[node]
        before = "".join(self.module.code_for_node(paren) for paren in getattr(node, "lpar", ()))
        after = "".join(self.module.code_for_node(paren) for paren in getattr(node, "rpar", ()))
        return start - len(before), end + len(after)

    def start(self, node: cst.CSTNode) -> int:
        """Where a node starts."""
        return self._spans[node][0]

    # Changing

    def replace(self, node: cst.CSTNode, content: str) -> Change:
        """Put other source in a node's place."""
        return Change(*self.span(node), content)

    def after(self, statement: cst.BaseSmallStatement, lines: list[str]) -> Change:
        """Add statements after a simple one."""
        line = self._parents[statement]
        if not isinstance(line, cst.SimpleStatementLine) or line.body[-1] is not statement:
            end = self._spans[statement][1]
            return Change(end, end, "".join(f"; {added}" for added in lines))
        indentation = self._indentation(line)
        end = self._end_of_line(self._spans[statement][1])
        newline = self._newline()
        content = "".join(f"{indentation}{added}{newline}" for added in lines)
        if not self.text[:end].endswith(("\n", "\r")):
            content = newline + content.removesuffix(newline)
        return Change(end, end, content)

    def before(self, statement: cst.CSTNode, lines: list[str]) -> Change:
        """Add statements before a simple one, or before a compound one (an ``if``, a loop)."""
        start = self._spans[statement][0]
        if isinstance(statement, cst.BaseSmallStatement):
            line = self._parents[statement]
            if not isinstance(line, cst.SimpleStatementLine) or line.body[0] is not statement:
                return Change(start, start, "".join(f"{added}; " for added in lines))
        else:
            line = statement
        indentation = self._indentation(line)
        start -= len(indentation)
        return Change(start, start, "".join(f"{indentation}{added}{self._newline()}" for added in lines))

    def at_top(self, loop: cst.For, lines: list[str]) -> Change:
        """Add statements where a loop's body begins."""
        if not isinstance(loop.body, cst.IndentedBlock) or not loop.body.body:
            raise CannotEdit("a loop on one line")
        first = loop.body.body[0]
        return self.before(first.body[0] if isinstance(first, cst.SimpleStatementLine) else first, lines)

    def remove(self, statement: cst.BaseSmallStatement) -> Change:
        """Take a simple statement out, its whole line where it is alone on it, a comment behind it included."""
        line = self._parents[statement]
        if not isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            raise CannotEdit("not a statement of its own")
        start, end = self._spans[statement]
        if len(line.body) > 1:
            place = list(line.body).index(statement)
            if place + 1 < len(line.body):
                return Change(start, self._spans[line.body[place + 1]][0], "")
            return Change(self._spans[line.body[place - 1]][1], end, "")
        if not isinstance(line, cst.SimpleStatementLine):
            raise CannotEdit("the only statement of its block")
        body = getattr(self._parents[line], "body", ())
        if len(body) < 2:
            raise CannotEdit("the only statement of its block")
        return Change(start - len(self._indentation(line)), self._end_of_line(end), "")

    def remove_block(self, statement: cst.If) -> Change:
        """Take a compound statement out, with its lines."""
        around = self._parents[statement]
        if not isinstance(around, (cst.IndentedBlock, cst.Module)) or len(around.body) < 2:
            raise CannotEdit("an elif, or the only statement of its block")
        start, end = self._spans[statement]
        return Change(start - len(self._indentation(statement)), self._end_of_line(end), "")

    def comment_behind(self, statement: cst.BaseSmallStatement) -> str:
        """The comment at the end of a simple statement's line, with the space before it."""
        line = self._parents[statement]
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1 or line.trailing_whitespace is None:
            return ""
        trailing = line.trailing_whitespace
        return trailing.whitespace.value + trailing.comment.value if trailing.comment else ""

    def lines_of(self, statement: cst.CSTNode) -> list[str]:
        """The lines of a statement without its indentation; raises CannotEdit where that would change a string."""
        start, end = self._spans[statement]
        indentation = self._indentation(statement)
        if re.search(r'"""|\'\'\'', self.text[start:end]):
            raise CannotEdit("a string of several lines")
        lines = _NEWLINE.split(self.text[start:end].rstrip())
        return [lines[0], *(line.removeprefix(indentation) for line in lines[1:])]

    def _indentation(self, line: cst.CSTNode) -> str:
        """The white space before a statement that begins its line."""
        start = self._spans[line][0]
        first = max((s for s in self._starts if s <= start), default=0)
        indentation = self.text[first:start]
        if indentation.strip():
            raise CannotEdit("a statement that does not begin its line")
        return indentation

    def _end_of_line(self, offset: int) -> int:
        match = _NEWLINE.search(self.text, offset)
        return match.end() if match else len(self.text)

    def _newline(self) -> str:
        match = _NEWLINE.search(self.text)
        return match.group() if match else "\n"

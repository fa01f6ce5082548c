"""A script as text and as a syntax tree: where its pieces stand, and the text after one of them has changed.

The tree says what and where; every change is made in the text, so that whatever is not changed stays byte for byte.
What the tree leaves out (parentheses, semicolons, comments) is read off the tokens.
"""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from gradcheck_accum.lint.source import children, walk
from gradcheck_accum.location import Location

_NEWLINE = re.compile(r"\r\n|\r|\n")
_NO_CODE = frozenset({tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT})
_Node = TypeVar("_Node", bound=ast.AST)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor)


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


class Script:
    """One script. Raises CannotEdit where it cannot be read."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise CannotEdit("cannot be read") from None
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(text)), len(text)]
        self._parents: dict[ast.AST, ast.AST] = {}
        self._blocks: dict[ast.AST, list[ast.stmt]] = {}
        self._at: dict[Location, list[ast.AST]] = {}
        for node in walk(self.module):
            self._parents.update(dict.fromkeys(children(node), node))
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    self._blocks.update(dict.fromkeys(value, value))
            if isinstance(node, (ast.expr, ast.stmt)):
                self._at.setdefault(_place(node), []).append(node)

    # Finding

    def expression(self, where: Location) -> ast.expr | None:
        """The expression that spans exactly ``where``."""
        return self.find(where, ast.expr)

    def find(self, where: Location, kind: type[_Node]) -> _Node | None:
        """The node of one kind that spans exactly ``where``."""
        place = Location("", where.line, where.column, where.end_line, where.end_column)
        return next((node for node in self._at.get(place, []) if isinstance(node, kind)), None)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a node stands in directly."""
        return self._parents.get(node)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class that ``node`` stands in."""
        return next((parent for parent in self.parents(node) if isinstance(parent, ast.ClassDef)), None)

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """The function that ``node`` stands in; None for the module itself."""
        return next((parent for parent in self.parents(node) if isinstance(parent, FUNCTIONS)), None)

    def loops_of(self, node: ast.AST) -> list[ast.For | ast.AsyncFor]:
        """The for loops of its own function that ``node`` stands in, innermost first."""
        loops: list[ast.For | ast.AsyncFor] = []
        for parent in self.parents(node):
            if isinstance(parent, FUNCTIONS):
                break
            if isinstance(parent, LOOPS):
                loops.append(parent)
        return loops

    def statement(self, node: ast.AST) -> ast.stmt:
        """The simple statement that ``node`` is part of."""
        found = self.small_statement(node)
        if found is None:
            raise CannotEdit("not in a simple statement")
        return found

    def small_statement(self, node: ast.AST) -> ast.stmt | None:
        """The simple statement that ``node`` is part of; None in the head of a compound one."""
        found = next((parent for parent in (node, *self.parents(node)) if isinstance(parent, ast.stmt)), None)
        return found if found is not None and is_simple(found) else None

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements that one stands among; the same list for each of them."""
        return self._blocks[statement]

    def calls_own_function(self, inside: Iterable[ast.AST]) -> bool:
        """Whether pieces of the script call a function of this file, as far as its name tells."""
        own = {node.name for node in walk(self.module) if isinstance(node, FUNCTIONS)}
        calls = (node.func for piece in inside for node in walk(piece) if isinstance(node, ast.Call))
        return any(getattr(func, "attr", getattr(func, "id", None)) in own for func in calls)

    def next_to(self, statement: ast.stmt, offset: int) -> ast.stmt | None:
        """The simple statement right after (1) or before (-1) another in the same block."""
        block = self.block(statement)
        place = _index(block, statement) + offset
        return block[place] if 0 <= place < len(block) and is_simple(block[place]) else None

    def names(self, name: str, inside: ast.AST | None) -> list[ast.Name]:
        """Every mention of a variable ``name`` in a function, or in the module."""
        return [n for n in walk(inside or self.module) if isinstance(n, ast.Name) and n.id == name]

    @cached_property
    def identifiers(self) -> set[str]:
        """Every name that stands in the script, whatever it names."""
        kinds = ("id", "arg", "attr", "name", "asname")
        found = {getattr(node, kind, None) for node in walk(self.module) for kind in kinds}
        return {name for name in found if isinstance(name, str)}

    # Text

    def code(self, node: ast.AST) -> str:
        """The source of a node, with its own parentheses."""
        start, end = self.span(node)
        return self.text[start:end]

    def arguments(self, call: ast.Call) -> str:
        """The source between a call's parentheses."""
        return self.text[self._opening(call) : self._bare_span(call)[1] - 1].strip()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node starts and ends, its own parentheses included."""
        start, end = self._bare_span(node)
        if not isinstance(node, ast.expr):
            return start, end
        first, last = self._room(node)
        while True:
            opening, closing = self._tokens.before(start), self._tokens.after(end)
            if opening is None or closing is None or (opening.text, closing.text) != ("(", ")"):
                return start, end
            if opening.start < first or closing.end > last:
                return start, end
            start, end = opening.start, closing.end

    def is_parenthesised(self, node: ast.expr) -> bool:
        """Whether a node has parentheses of its own."""
        return self.span(node) != self._bare_span(node)

    def start(self, node: ast.AST) -> int:
        """Where a node starts."""
        return self._bare_span(node)[0]

    def _bare_span(self, node: ast.AST) -> tuple[int, int]:
        place = _place(node)
        return self._offset(place.line, place.column), self._offset(place.end_line, place.end_column)

    def _offset(self, line: int, column: int) -> int:
        """Where a 1-based line and byte column stand in the text."""
        start, end = self._starts[line - 1], self._starts[line]
        before = self.text[start:end].encode()[: column - 1]
        return start + len(before.decode(errors="ignore"))

    def _room(self, node: ast.expr) -> tuple[int, int]:
        """Between where a node's own parentheses can stand: within what it is part of, and within a call's own."""
        parent = self._parents[node]
        if isinstance(parent, ast.Call) and node is not parent.func:
            return self._opening(parent), self._bare_span(parent)[1] - 1
        around = next(p for p in self.parents(node) if isinstance(p, (ast.expr, ast.stmt)))
        return self._bare_span(around)

    def _opening(self, call: ast.Call) -> int:
        """Where the arguments of a call begin."""
        opening = self._tokens.after(self.span(call.func)[1])
        if opening is None:
            raise CannotEdit("a call without parentheses")
        return opening.end

    @cached_property
    def _tokens(self) -> _Tokens:
        return _Tokens(self.text, self._starts)

    # Changing

    def replace(self, node: ast.AST, content: str) -> Change:
        """Put other source in a node's place."""
        return Change(*self.span(node), content)

    def after(self, statement: ast.stmt, lines: list[str]) -> Change:
        """Add statements after a simple one."""
        line = self._line(statement)
        end = self._bare_span(statement)[1]
        if not self._begins_line(line[0]) or line[-1] is not statement:
            return Change(end, end, "".join(f"; {added}" for added in lines))
        end = self._end_of_line(end)
        newline = self._newline()
        content = "".join(f"{self._indentation(line[0])}{added}{newline}" for added in lines)
        if not self.text[:end].endswith(("\n", "\r")):
            content = newline + content.removesuffix(newline)
        return Change(end, end, content)

    def before(self, statement: ast.stmt, lines: list[str]) -> Change:
        """Add statements before a simple one, or before a compound one (an ``if``, a loop)."""
        start = self._bare_span(statement)[0]
        if is_simple(statement):
            line = self._line(statement)
            if not self._begins_line(line[0]) or line[0] is not statement:
                return Change(start, start, "".join(f"{added}; " for added in lines))
        elif getattr(statement, "decorator_list", None) or self._is_elif(statement):
            raise CannotEdit("nothing can stand right before it")
        indentation = self._indentation(statement)
        start -= len(indentation)
        return Change(start, start, "".join(f"{indentation}{added}{self._newline()}" for added in lines))

    def at_top(self, loop: ast.For | ast.AsyncFor, lines: list[str]) -> Change:
        """Add statements where a loop's body begins."""
        if not self._begins_line(loop.body[0]):
            raise CannotEdit("a loop on one line")
        return self.before(loop.body[0], lines)

    def remove(self, statement: ast.stmt) -> Change:
        """Take a simple statement out, its whole line where it is alone on it, a comment behind it included."""
        if not is_simple(statement):
            raise CannotEdit("not a statement of its own")
        start, end = self._bare_span(statement)
        line = self._line(statement)
        if len(line) > 1:
            place = _index(line, statement)
            if place + 1 < len(line):
                return Change(start, self._bare_span(line[place + 1])[0], "")
            return Change(self._bare_span(line[place - 1])[1], end, "")
        if len(self.block(statement)) < 2:
            raise CannotEdit("the only statement of its block")
        return Change(start - len(self._indentation(statement)), self._end_of_line(end), "")

    def remove_block(self, statement: ast.If) -> Change:
        """Take a compound statement out, with its lines."""
        if self._is_elif(statement) or len(self.block(statement)) < 2:
            raise CannotEdit("an elif, or the only statement of its block")
        start, end = self._bare_span(statement)
        return Change(start - len(self._indentation(statement)), self._end_of_line(end), "")

    def comment_behind(self, statement: ast.stmt) -> str:
        """The comment at the end of a simple statement's line, with the space before it; none where it shares it."""
        end = self._bare_span(statement)[1]
        comment = self._tokens.comments.get(statement.end_lineno or 0)
        if comment is None or len(self._line(statement)) > 1 or self.text[end : comment.start].strip():
            return ""
        return self.text[end : comment.end]

    def lines_of(self, statement: ast.stmt) -> list[str]:
        """The lines of a statement without its indentation; raises CannotEdit where that would change a string."""
        start, end = self._bare_span(statement)
        indentation = self._indentation(statement)
        if re.search(r'"""|\'\'\'', self.text[start:end]):
            raise CannotEdit("a string of several lines")
        lines = _NEWLINE.split(self.text[start:end].rstrip())
        return [lines[0], *(line.removeprefix(indentation) for line in lines[1:])]

    def _line(self, statement: ast.stmt) -> list[ast.stmt]:
        """The simple statements that share a line with one, itself included, in order."""
        block = self.block(statement)
        first = last = _index(block, statement)
        while first > 0 and self._are_joined(block[first - 1], block[first]):
            first -= 1
        while last + 1 < len(block) and self._are_joined(block[last], block[last + 1]):
            last += 1
        return block[first : last + 1]

    def _are_joined(self, left: ast.stmt, right: ast.stmt) -> bool:
        return is_simple(left) and left.end_lineno == right.lineno

    def _begins_line(self, statement: ast.stmt) -> bool:
        start = self._bare_span(statement)[0]
        return not self.text[self._starts[statement.lineno - 1] : start].strip()

    def _is_elif(self, statement: ast.stmt) -> bool:
        return self.text.startswith("elif", self._bare_span(statement)[0])

    def _indentation(self, statement: ast.stmt) -> str:
        """The white space before a statement that begins its line."""
        if not self._begins_line(statement):
            raise CannotEdit("a statement that does not begin its line")
        return self.text[self._starts[statement.lineno - 1] : self._bare_span(statement)[0]]

    def _end_of_line(self, offset: int) -> int:
        match = _NEWLINE.search(self.text, offset)
        return match.end() if match else len(self.text)

    def _newline(self) -> str:
        match = _NEWLINE.search(self.text)
        return match.group() if match else "\n"


@dataclass(frozen=True, slots=True)
class _Token:
    start: int
    end: int
    text: str


class _Tokens:
    """The tokens of a text by where they start and end, and the comment at the end of each line that has one."""

    def __init__(self, text: str, starts: list[int]) -> None:
        self.comments: dict[int, _Token] = {}
        self._tokens: list[_Token] = []
        lines = (f"{line}\n" for line in _NEWLINE.split(text))  # tokenize knows no other end of a line
        try:
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                (row, column), (end_row, end_column) = token.start, token.end
                if end_row >= len(starts):
                    continue
                found = _Token(starts[row - 1] + column, starts[end_row - 1] + end_column, token.string)
                if token.type == tokenize.COMMENT:
                    self.comments[row] = found
                elif token.type not in _NO_CODE:
                    self._tokens.append(found)
        except (tokenize.TokenError, SyntaxError):
            raise CannotEdit("no tokens") from None
        self._by_start = {token.start: number for number, token in enumerate(self._tokens)}
        self._by_end = {token.end: number for number, token in enumerate(self._tokens)}

    def before(self, start: int) -> _Token | None:
        """The token before the one that starts at ``start``."""
        number = self._by_start.get(start, 0)
        return self._tokens[number - 1] if number else None

    def after(self, end: int) -> _Token | None:
        """The token after the one that ends at ``end``."""
        number = self._by_end.get(end, len(self._tokens))
        return self._tokens[number + 1] if number + 1 < len(self._tokens) else None


def is_simple(statement: ast.stmt) -> bool:
    """Whether a statement holds no others."""
    return not hasattr(statement, "body") and not isinstance(statement, ast.Match)


def _place(node: ast.AST) -> Location:
    """Where an expression or a statement stands, as findings and events tell it."""
    line, column = node.lineno, node.col_offset + 1  # type: ignore[attr-defined]
    return Location("", line, column, node.end_lineno, node.end_col_offset + 1)  # type: ignore[attr-defined]


def _index(block: list[ast.stmt], statement: ast.stmt) -> int:
    return next(number for number, other in enumerate(block) if other is statement)

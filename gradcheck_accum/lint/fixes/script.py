"""A script as a LibCST tree: the places of its nodes, their parents, and their text.

Evidence refers to places in the text; here a place is mapped to a node, and everything after that uses nodes.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TypeVar

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.syntax.places import Places

Statement = cst.BaseSmallStatement | cst.BaseCompoundStatement
Block = cst.BaseSuite | cst.Module
_Node = TypeVar("_Node", bound=cst.CSTNode)

_CELL = re.compile(r"#(?: ?%%|\x1f)")
"""A comment that begins a cell: editors know it in scripts, and notebooks are joined with one (`sources.notebooks`)."""
_DEEPEST = 200
"""Levels of nesting above which a script is not read: LibCST goes down by calls, and overflows the process's stack."""

_TOKENS = frozenset({"operator", "operators", "asynchronous", "dot", "star", "equal", "colon", "semicolon", "comma"})
_AROUND = frozenset({"lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "leading_lines", "header", "footer"})
_NO_NODES = _TOKENS | _AROUND | {"lines_after_decorators", "trailing_whitespace", "body_indent", "indent", "encoding"}
_BINDING = {
    (cst.AnnAssign, "target"),
    (cst.AsName, "name"),
    (cst.AssignTarget, "target"),
    (cst.AugAssign, "target"),
    (cst.ClassDef, "name"),
    (cst.CompFor, "target"),
    (cst.Del, "target"),
    (cst.For, "target"),
    (cst.FunctionDef, "name"),
    (cst.MatchAs, "name"),
    (cst.MatchStar, "name"),
    (cst.NamedExpr, "target"),
    (cst.Param, "name"),
}
"""Fields whose content is assigned to or deleted, not read."""
_NO_VARIABLE = {(cst.Attribute, "attr"), (cst.Arg, "keyword"), (cst.NameItem, "name")}
"""Where a name is not that of a variable which is read or bound right there."""


class CannotEdit(Exception):
    """A change that this module does not know how to make without touching more than it should."""


class Script:
    """One script, of which ``read`` was read. Raises CannotEdit where it cannot be changed without a loss."""

    def __init__(self, text: str, read: syntax.Module) -> None:
        self.text = text
        self._has_bare_returns = "\r" in text and "\n" not in text
        lines = text.replace("\r", "\n") if self._has_bare_returns else text
        self.module: cst.Module = read.origin  # type: ignore[assignment]
        self._tail = text[len(read.text) :]
        try:
            with syntax.going_down():
                if self.module.code != read.text or not lines.startswith(read.text):
                    raise CannotEdit("not read without a loss")
                self._places = Places(self.module, read.text, "", 1, None)
        except syntax.NestedTooDeeply:
            raise CannotEdit("nested too deeply") from None
        self._at: dict[tuple[int, int, int, int], list[cst.CSTNode]] = {}
        for part in (part for statement in read.body for part in syntax.walk(statement)):
            if part.origin is not None:
                self._at.setdefault(_corners(part.where), []).append(part.origin)
        self._above: dict[cst.CSTNode, tuple[cst.CSTNode, str]] = {}
        self._below: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        level: list[cst.CSTNode] = [self.module]
        for _ in range(_DEEPEST):
            for node in level:
                for child, name in _children(node):
                    self._above[child] = node, name
                    self._below.setdefault(node, []).append(child)
            level = [child for node in level for child in self._below.setdefault(node, [])]
        if level:
            raise CannotEdit("nested too deeply")

    # Finding

    def expression(self, where: Location) -> cst.BaseExpression | None:
        """The expression that spans exactly ``where``."""
        return self.find(where, cst.BaseExpression)  # type: ignore[type-abstract]

    def find(self, where: Location, kind: type[_Node]) -> _Node | None:
        """The node of the given type at ``where``."""
        return next((node for node in self._at.get(_corners(where), []) if isinstance(node, kind)), None)

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The ancestors of a node, innermost first."""
        while node in self._above:
            node = self._above[node][0]
            yield node

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The parent of a node."""
        return next(self.parents(node), None)

    def walk(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """A node and all below it, the outer ones first; no white space, no signs."""
        waiting = deque([node])
        while waiting:
            node = waiting.popleft()
            yield node
            waiting.extend(self._below[node])

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The innermost class around ``node``."""
        return next((parent for parent in self.parents(node) if isinstance(parent, cst.ClassDef)), None)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function around ``node``; None at module level."""
        return next((parent for parent in self.parents(node) if isinstance(parent, cst.FunctionDef)), None)

    def loops_of(self, node: cst.CSTNode) -> list[cst.For]:
        """The for loops around ``node`` in its own function, innermost first."""
        loops: list[cst.For] = []
        for parent in self.parents(node):
            if isinstance(parent, cst.FunctionDef):
                break
            if isinstance(parent, cst.For):
                loops.append(parent)
        return loops

    def calls_own_function(self, inside: cst.CSTNode) -> bool:
        """Whether a piece of the script calls a function of this file, as far as its name tells."""
        own = {node.name.value for node in self.walk(self.module) if isinstance(node, cst.FunctionDef)}
        return any(isinstance(node, cst.Call) and name_of_call(node) in own for node in self.walk(inside))

    # Statements

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
                break
        return None

    def block(self, statement: Statement) -> Block:
        """The block that contains a statement."""
        for parent in self.parents(statement):
            if isinstance(parent, (cst.BaseSuite, cst.Module)):
                return parent
        raise CannotEdit("not in a block")

    def holder(self, statement: Statement) -> cst.CSTNode | None:
        """What a statement's block belongs to: a loop, a condition, a function."""
        return self.parent(self.block(statement))

    def statements(self, block: Block) -> list[Statement]:
        """The statements of a block, those that share a line one by one."""
        return [statement for item in block.body for statement in _statements_of(item)]

    def next_to(self, statement: Statement, offset: int) -> cst.BaseSmallStatement | None:
        """The simple statement right after (1) or before (-1) another in the same block."""
        block = self.statements(self.block(statement))
        place = block.index(statement) + offset
        found = block[place] if 0 <= place < len(block) else None
        return found if isinstance(found, cst.BaseSmallStatement) else None

    def moved(
        self, statement: Statement, together: Container[Statement] = ()
    ) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """A statement as it is put elsewhere, ``together`` with others, with the comments that are its own."""
        comments = self.own_comments(statement, together)
        if isinstance(statement, cst.BaseCompoundStatement):
            return statement.with_changes(leading_lines=comments)
        line = self.parent(statement)
        alone = statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        moved = cst.SimpleStatementLine([alone], leading_lines=comments)
        match line:
            case cst.SimpleStatementLine(body=[*others, last]) | cst.SimpleStatementSuite(body=[*others, last]):
                if last is statement and all(other in together for other in others):
                    return moved.with_changes(trailing_whitespace=line.trailing_whitespace)
        return moved

    def own_comments(self, statement: Statement, together: Container[Statement] = ()) -> Sequence[cst.EmptyLine]:
        """The comments above a statement that speak of it alone, or of a paragraph that goes with it as a whole."""
        line = self._line(statement)
        lines: Sequence[cst.EmptyLine] = getattr(line, "leading_lines", ())
        count = 0
        while count < len(lines) and _is_comment(lines[-1 - count]):
            count += 1
        around = self._above[line][0]
        if not count or not isinstance(around, (cst.IndentedBlock, cst.Module)):
            return ()
        paragraph = takewhile(lambda other: not getattr(other, "leading_lines", ()), _behind(around.body, line))
        others = (one for other in (line, *paragraph) for one in _statements_of(other) if one is not statement)
        return lines[-count:] if all(other in together for other in others) else ()

    def _line(self, statement: Statement) -> cst.CSTNode:
        """The line of a simple statement; a compound one itself."""
        line = self.parent(statement)
        return line if isinstance(line, cst.SimpleStatementLine) and line.body[0] is statement else statement

    # Names

    def variables(self, inside: cst.CSTNode) -> Iterator[cst.Name]:
        """Every mention of a variable in a piece of the script."""
        for node in self.walk(inside):
            if isinstance(node, cst.Name) and self._role(node) not in _NO_VARIABLE:
                yield node

    def names(self, name: str, inside: cst.CSTNode | None) -> list[cst.Name]:
        """Every mention of a variable ``name`` in a function, or in the module."""
        return [node for node in self.variables(inside or self.module) if node.value == name]

    def is_bound(self, node: cst.CSTNode) -> bool:
        """Whether a variable or an attribute is assigned to here, not read."""
        role = self._role(node)
        while role is not None and issubclass(role[0], (cst.BaseElement, cst.Tuple, cst.List)):
            node = self._above[node][0]
            role = self._role(node)
        return role in _BINDING

    def bound(self, inside: cst.CSTNode) -> set[str]:
        """The names that a piece of the script gives a value."""
        imported = (node for node in self.walk(inside) if isinstance(node, cst.ImportAlias))
        names = {node.evaluated_alias or node.evaluated_name.partition(".")[0] for node in imported}
        return names | {node.value for node in self.variables(inside) if self.is_bound(node)}

    @cached_property
    def identifiers(self) -> set[str]:
        """Every identifier in the script, whatever it names."""
        return {node.value for node in self.walk(self.module) if isinstance(node, cst.Name)}

    def _role(self, node: cst.CSTNode) -> tuple[type[cst.CSTNode], str] | None:
        above = self._above.get(node)
        return (type(above[0]), above[1]) if above is not None else None

    # Text

    def text_of(self, module: cst.Module) -> str:
        """The text of the script as an edited module has it."""
        text = module.code.replace("\n", "\r") if self._has_bare_returns else module.code
        return text + self._tail

    def code(self, node: cst.CSTNode) -> str:
        """The source of a node, with its own parentheses."""
        return self.module.code_for_node(node)

    def start(self, node: cst.CSTNode) -> int:
        """Where a node starts, to compare it with others."""
        return self._places.span(node)[0]

    def holds(self, node: cst.CSTNode, where: Location) -> bool:
        """Whether a place of the script lies in a node."""
        start, end = (self._places.where(at, at) for at in self._places.span(node))
        return (start.line, start.column) <= (where.line, where.column) < (end.line, end.column)


def _corners(where: Location) -> tuple[int, int, int, int]:
    return where.line, where.column, where.end_line, where.end_column


def name_of_call(call: cst.Call) -> str | None:
    """The last part of the name that is called."""
    func = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return func.value if isinstance(func, cst.Name) else None


class _Fields(dict[type[cst.CSTNode], tuple[str, ...]]):
    """The fields of each kind of node in which there may be nodes that say more than white space and signs do."""

    def __missing__(self, kind: type[cst.CSTNode]) -> tuple[str, ...]:
        names = (field.name for field in dataclasses.fields(kind))
        found = self[kind] = tuple(n for n in names if n not in _NO_NODES and not n.startswith("whitespace"))
        return found


_FIELDS = _Fields()


def _children(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, str]]:
    """The children of a node, each with the name of its field."""
    for name in _FIELDS[type(node)]:
        value = getattr(node, name)
        for item in value if isinstance(value, Iterable) else (value,):
            if isinstance(item, cst.CSTNode):
                yield item, name


def _statements_of(item: cst.CSTNode) -> Sequence[Statement]:
    """The statements of a line, or the compound one that an item of a block is."""
    if isinstance(item, cst.SimpleStatementLine):
        return item.body
    return [item] if isinstance(item, (cst.BaseSmallStatement, cst.BaseCompoundStatement)) else []


def _behind(body: Sequence[cst.CSTNode], line: cst.CSTNode) -> Sequence[cst.CSTNode]:
    return body[body.index(line) + 1 :]


def _is_comment(line: cst.EmptyLine) -> bool:
    """Whether an empty line holds a comment that is none between cells."""
    return line.comment is not None and _CELL.match(line.comment.value) is None

"""Edits of a script, collected by the nodes that they are made at and applied in one pass over its tree.

Whatever has no edit in it is not visited: it keeps its nodes, and so every byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import cast

import libcst as cst

from gradcheck_accum.lint.fixes.script import CannotEdit, Script, Statement

Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
"""A statement that is put into a script: on a line of its own, and with its comments."""


class Edits:
    """What is to be changed in one script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.replaced: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.removed: set[Statement] = set()
        self.taken: set[Statement] = set()
        self.added_before: dict[Statement, list[Line]] = {}
        self.added_after: dict[Statement, list[Line]] = {}

    def replace(self, node: cst.BaseExpression, new: cst.BaseExpression) -> Edits:
        """Put another expression in the place of one, its parentheses included."""
        self.replaced[node] = new
        return self

    def remove(self, statement: Statement) -> Edits:
        """Take a statement out, with a comment behind it; those above it stay."""
        self.removed.add(statement)
        return self

    def take(self, *statements: Statement) -> list[Line]:
        """Take statements out to put them elsewhere: they, with the comments that are their own."""
        self.removed.update(statements)
        self.taken.update(statements)
        return [self._script.moved(statement, statements) for statement in statements]

    def before(self, statement: Statement, *lines: Line) -> Edits:
        """Add statements before one."""
        return self._add(self.added_before.setdefault(statement, []), lines)

    def after(self, statement: Statement, *lines: Line) -> Edits:
        """Add statements after one."""
        return self._add(self.added_after.setdefault(statement, []), lines)

    def _add(self, added: list[Line], lines: Iterable[Line]) -> Edits:
        # Several steps may ask for the same clearing at the same place.
        added += [line for line in lines if not any(_bare(line).deep_equals(_bare(other)) for other in added)]
        return self

    def applied(self) -> str:
        """The script's text after the edits. Raises CannotEdit where they cannot be made together."""
        script = self._script
        gone: set[cst.CSTNode] = {*self.replaced, *self.removed}
        around: set[cst.CSTNode] = set()
        for node in (*gone, *self.added_before, *self.added_after):
            parents = list(script.parents(node))
            if not gone.isdisjoint(parents):
                raise CannotEdit("overlapping changes")
            around.update(parents)
        try:
            return script.text_of(script.module.visit(_Application(self, script, around)))
        except RecursionError:
            raise CannotEdit("too deep") from None


class _Application(cst.CSTTransformer):
    def __init__(self, edits: Edits, script: Script, around: set[cst.CSTNode]) -> None:
        super().__init__()
        self._edits = edits
        self._script = script
        self._around = around

    # What LibCST would look up by name at every node and attribute: most of a visit's time.

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._around

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNodeT:
        node: cst.CSTNode = updated_node
        if original_node in self._edits.replaced:
            node = self._edits.replaced[original_node]
        elif original_node in self._around:
            match original_node, updated_node:
                case cst.SimpleStatementLine() as before, cst.SimpleStatementLine() as now:
                    node = self._line(before, now)
                case cst.SimpleStatementSuite() as before, cst.SimpleStatementSuite() as now:
                    node = self._suite(before, now)
                case (cst.IndentedBlock() | cst.Module()) as before, (cst.IndentedBlock() | cst.Module()) as now:
                    node = self._block(before, now)
                case cst.If(orelse=cst.If() as other), _ if self._is_edited(other):
                    raise CannotEdit("an elif")
        return cast(cst.CSTNodeT, node)

    def _is_edited(self, statement: Statement) -> bool:
        edits = self._edits
        return statement in edits.removed or statement in edits.added_before or statement in edits.added_after

    # Statements that have lines of their own

    def _block(
        self, before: cst.IndentedBlock | cst.Module, now: cst.IndentedBlock | cst.Module
    ) -> cst.IndentedBlock | cst.Module:
        """A block with its lines added and removed; the lines above a removed statement move to the next one."""
        edits = self._edits
        body: list[Line] = []
        left: list[cst.EmptyLine] = []
        has_heading = isinstance(before, cst.Module) and bool(before.header) and not _is_blank(before.header[-1])
        for old, new in zip(before.body, now.body, strict=True):
            statements = cast(Sequence[Statement], old.body if isinstance(old, cst.SimpleStatementLine) else [old])
            first, last = statements[0], statements[-1]
            added, following = edits.added_before.get(first, []), edits.added_after.get(last, [])
            is_kept = not edits.removed.issuperset(statements)
            # What comes in between a statement and the lines above it leaves it the comments that are its own.
            goes = first in edits.taken
            own = self._script.own_comments(first, edits.taken if goes else ()) if goes or (added and is_kept) else ()
            at_top = not (body or left or has_heading or old is before.body[0])
            above = _closed_up(left, cast(Line, new).leading_lines, at_top)
            kept = [cast(Line, new).with_changes(leading_lines=own)] if is_kept else []
            left = above[: len(above) - len(own)]
            lines = [*added, *kept, *following]
            if lines:
                lines[0] = _below(left, lines[0])
                left = []
            body += lines
        if not body:
            raise CannotEdit("the only statement of its block")
        while left and _is_blank(left[-1]):
            left.pop()
        return now.with_changes(body=body, footer=[*left, *now.footer])

    # Statements that share a line

    def _line(self, before: cst.SimpleStatementLine, now: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        if self._edits.removed.issuperset(before.body):
            return now
        body, comments = self._joined(before, now, has_line=True)
        return now.with_changes(body=body, trailing_whitespace=_with_comments(now.trailing_whitespace, comments))

    def _suite(self, before: cst.SimpleStatementSuite, now: cst.SimpleStatementSuite) -> cst.SimpleStatementSuite:
        body, comments = self._joined(before, now, has_line=False)
        if not body:
            raise CannotEdit("the only statement of its block")
        return now.with_changes(body=body, trailing_whitespace=_with_comments(now.trailing_whitespace, comments))

    def _joined(
        self,
        before: cst.SimpleStatementLine | cst.SimpleStatementSuite,
        now: cst.SimpleStatementLine | cst.SimpleStatementSuite,
        has_line: bool,
    ) -> tuple[list[cst.BaseSmallStatement], list[str]]:
        """The statements of one line, and the comments of those that are added to it."""
        edits = self._edits
        body: list[cst.BaseSmallStatement] = []
        comments: list[str] = []
        first, last = before.body[0], before.body[-1]
        for old, new in zip(before.body, now.body, strict=True):
            if not (has_line and old is first):
                _join(edits.added_before.get(old, []), body, comments)
            if old not in edits.removed:
                body.append(new)
            if not (has_line and old is last):
                _join(edits.added_after.get(old, []), body, comments)
        for place, statement in enumerate(body):
            if place == len(body) - 1:
                body[place] = statement.with_changes(semicolon=last.semicolon)
            elif statement is now.body[-1]:
                body[place] = statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return body, comments


def _closed_up(left: list[cst.EmptyLine], lines: Sequence[cst.EmptyLine], at_top: bool) -> list[cst.EmptyLine]:
    """What is left above a line that is gone, and the lines after it: of two blank ones that meet, one; none on top."""
    if at_top:
        return [*dropwhile(_is_blank, lines)]
    doubled = left and lines and _is_blank(left[-1]) and _is_blank(lines[0])
    return [*left, *lines[1:]] if doubled else [*left, *lines]


def _is_blank(line: cst.EmptyLine) -> bool:
    return line.comment is None


def _bare(line: Line) -> Line:
    """A line without its comments."""
    if isinstance(line, cst.SimpleStatementLine):
        return cst.SimpleStatementLine(line.body)
    return line.with_changes(leading_lines=())


def _below(above: Sequence[cst.EmptyLine], line: Line) -> Line:
    """A line with others above it."""
    return line.with_changes(leading_lines=[*above, *line.leading_lines]) if above else line


def _join(lines: Iterable[Line], body: list[cst.BaseSmallStatement], comments: list[str]) -> None:
    """Put statements into a line that holds others."""
    for line in lines:
        if not isinstance(line, cst.SimpleStatementLine):
            raise CannotEdit("a compound statement in a line of others")
        body += line.body
        found = [*(above.comment for above in line.leading_lines), line.trailing_whitespace.comment]
        comments += [comment.value for comment in found if comment is not None]


def _with_comments(space: cst.TrailingWhitespace, comments: list[str]) -> cst.TrailingWhitespace:
    """The end of a line with more comments."""
    if not comments:
        return space
    if space.comment is not None:
        comments = [space.comment.value, *comments]
    else:
        space = space.with_changes(whitespace=cst.SimpleWhitespace("  "))
    return space.with_changes(comment=cst.Comment("  ".join(comments)))

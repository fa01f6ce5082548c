"""A running line, and what ran before it in its function."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

from gradcheck_accum.verify.provenance.following import Place
from gradcheck_accum.verify.provenance.numbered import line_of

LOOPS = (ast.For, ast.AsyncFor, ast.While)


CallChain = tuple[tuple[CodeType, int], ...]
"""The user's frames at some moment, innermost first: for each its code and the instruction that it is at."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a counter is compared with, and the place of that expression.

    ``counter`` is what is compared, if it goes on counting from window to window, and ``first`` its value in the first
    turn of its loop, None where that is not explicit. ``count`` is what has come to the number, where each window
    counts from the start. ``listed`` are the lists that a loop that has ended ran over, all of one length; ``number``
    is None where the source only shows these.
    """

    number: ast.expr | None
    place: Place
    counter: ast.expr | None = None
    first: int | None = None
    listed: tuple[ast.Name | ast.Attribute, ...] = ()
    count: ast.expr | None = None


@dataclass(frozen=True)
class Line:
    """A line that runs now, or that computed what is tested now; ``chains`` are the call chains of the backwards."""

    place: Place
    node: ast.AST
    chains: Sequence[CallChain]

    @cached_property
    def backwards(self) -> list[set[int]]:
        """For each backward, the lines of this function that it ran from."""
        own = None if self.place.frame is None else self.place.frame.f_code
        return [{line_of(code, at) for code, at in chain if code is own} for chain in self.chains]

    @property
    def calls(self) -> str:
        """The source of what is called there to make the step."""
        return called(self.node)

    def any_ran_in(self, region: Sequence[ast.AST]) -> bool:
        """Whether a backward ran from within these nodes."""
        return any(_is_in(lines, region) for lines in self.backwards)

    def all_ran_in(self, region: Sequence[ast.AST]) -> bool:
        """Whether all backwards ran from within these nodes, as far as it is known where they ran."""
        return bool(self.backwards) and all(_is_in(lines, region) for lines in self.backwards)

    @cached_property
    def loops(self) -> list[ast.For | ast.AsyncFor | ast.While]:
        """The loops of the function around it, innermost first."""
        scope = self.place.scope
        return [n for n in self.place.syntax.around(self.node) if isinstance(n, LOOPS) and _is_within(n, scope)]


def called(node: ast.AST) -> str:
    """The source of what a call calls."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _is_in(lines: set[int], region: Sequence[ast.AST]) -> bool:
    spans = [(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)) for node in region]
    return any(first <= line <= last for line in lines for first, last in spans)


def _is_within(node: ast.AST, scope: ast.AST) -> bool:
    first, last = getattr(scope, "lineno", 0), getattr(scope, "end_lineno", None)
    return last is None or first <= getattr(node, "lineno", 0) <= last

"""Loops that number their micro-batches: which is the last, and how many a window really holds."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradcheck_accum.lint.fixes.case import integer
from gradcheck_accum.lint.fixes.script import FUNCTIONS, LOOPS, Change, Script
from gradcheck_accum.lint.source import walk

_PROGRESS_BARS = frozenset({"tqdm", "track", "trange"})
_NAMES = ("window", "window_size", "micro_batches_in_window")


@dataclass(frozen=True, slots=True)
class NumberedLoop:
    """A for loop whose variable ``index`` counts micro-batches from ``first``; ``length`` is the source of how many."""

    node: ast.For | ast.AsyncFor
    index: str
    first: int
    length: str
    is_sized: bool
    """Whether the length is known to exist: the loop runs over a range, or its function takes this length already."""

    def is_last(self) -> str:
        """The test for the last micro-batch."""
        return f"{self.index if self.first else f'{self.index} + 1'} == {self.length}"

    def window(self, steps: str) -> str:
        """How many micro-batches the window at hand really holds."""
        position = f"({self.index} - 1)" if self.first else self.index
        return f"min({steps}, {self.length} - {position} // {steps} * {steps})"

    def leaves_alone(self, steps: str) -> bool:
        """Whether nothing in the loop binds what ``steps`` reads, so that it means the same at the loop's top."""
        bound = {n.id for n in walk(self.node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        return bound.isdisjoint(n.id for n in walk(ast.parse(steps, mode="eval")) if isinstance(n, ast.Name))


def numbered_loop(script: Script, node: ast.AST) -> NumberedLoop | None:
    """The innermost loop around a node, if it numbers what it runs over (one further out may count epochs)."""
    loop = next((p for p in script.parents(node) if isinstance(p, (*LOOPS, ast.While, *FUNCTIONS))), None)
    if not isinstance(loop, LOOPS):
        return None
    call = _without_progress_bar(loop.iter)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
        return None
    first_argument = call.args[0]
    if call.func.id == "range" and isinstance(loop.target, ast.Name) and len(call.args) == 1 and not call.keywords:
        if isinstance(first_argument, (ast.Name, ast.Attribute, ast.Call)) or integer(first_argument) is not None:
            return NumberedLoop(loop, loop.target.id, 0, script.code(first_argument), is_sized=True)
        return None
    if call.func.id != "enumerate" or not isinstance(loop.target, ast.Tuple) or not loop.target.elts:
        return None
    index = loop.target.elts[0]
    items = _without_progress_bar(first_argument)
    first = _first_number(call)
    if (
        not isinstance(index, ast.Name)
        or first is None
        or not isinstance(items, (ast.Name, ast.Attribute, ast.Subscript))
    ):
        return None
    length = f"len({script.code(items)})"
    around = script.function_of(loop) or script.module
    taken = any(isinstance(node, ast.Call) and script.code(node) == length for node in walk(around))
    return NumberedLoop(loop, index.id, first, length, taken)


def _first_number(call: ast.Call) -> int | None:
    """What ``enumerate`` counts from, where that is 0 or 1."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if len(given) == 1:
        return 0
    first = integer(given[1])
    return first if first in (0, 1) else None


def _without_progress_bar(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Call) and node.args:
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        if name in _PROGRESS_BARS:
            return _without_progress_bar(node.args[0])
    return node


def name_of_window(script: Script, loop: NumberedLoop, steps: str) -> tuple[str, list[Change]]:
    """A variable that holds the window's own number of micro-batches, and the change that makes it, if none does."""
    value = loop.window(steps)
    for statement in loop.node.body:
        if isinstance(statement, ast.Assign) and script.code(statement.value) == value:
            return script.code(statement.targets[0]), []
    name = next((name for name in _NAMES if name not in script.identifiers), "_window")
    return name, [script.at_top(loop.node, [f"{name} = {value}"])]

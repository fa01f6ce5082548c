"""Loops that number their micro-batches: which is the last, and how many a window really holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from gradcheck_accum.lint.fixes.edits import Edits
from gradcheck_accum.lint.fixes.expressions import expression, integer, positional
from gradcheck_accum.lint.fixes.script import Script, name_of_call
from gradcheck_accum.lint.program.torch_names import PROGRESS_BARS

_NAMES = ("window", "window_size", "micro_batches_in_window")


@dataclass(frozen=True, slots=True)
class NumberedLoop:
    """A for loop whose variable ``index`` counts micro-batches from ``first``; ``length`` is the source of how many."""

    script: Script
    node: cst.For
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

    def leaves_alone(self, steps: cst.BaseExpression) -> bool:
        """Whether nothing in the loop binds what ``steps`` reads, so that it means the same at the loop's top."""
        read = {name.value for name in self.script.variables(steps)}
        return read.isdisjoint(self.script.bound(self.node))

    def name_of_window(self, steps: str, edits: Edits) -> cst.BaseExpression:
        """A variable that holds the window's own number of micro-batches; the edits make it, if nothing does yet."""
        script, value = self.script, self.window(steps)
        for statement in script.statements(self.node.body):
            if isinstance(statement, cst.Assign) and script.code(statement.value) == value:
                return statement.targets[0].target
        name = cst.Name(next((name for name in _NAMES if name not in script.identifiers), "_window"))
        made = cst.Assign([cst.AssignTarget(name)], expression(value))
        edits.before(script.statements(self.node.body)[0], cst.SimpleStatementLine([made]))
        return name


def numbered_loop(script: Script, node: cst.CSTNode) -> NumberedLoop | None:
    """The innermost loop around a node, if it numbers what it runs over (one further out may count epochs)."""
    loop = next((p for p in script.parents(node) if isinstance(p, (cst.For, cst.While, cst.FunctionDef))), None)
    if not isinstance(loop, cst.For):
        return None
    match _without_progress_bar(loop.iter), loop.target:
        case cst.Call(func=cst.Name("range"), args=[cst.Arg(keyword=None, star="", value=count)]), cst.Name(index):
            if isinstance(count, (cst.Name, cst.Attribute, cst.Call)) or integer(count) is not None:
                return NumberedLoop(script, loop, index, 0, script.code(count), is_sized=True)
        case (
            cst.Call(func=cst.Name("enumerate"), args=[cst.Arg(keyword=None, star="", value=given), *rest]),
            cst.Tuple(elements=[cst.Element(cst.Name(index)), *_]),
        ):
            items, first = _without_progress_bar(given), _first_number(rest)
            if first is None or not isinstance(items, (cst.Name, cst.Attribute, cst.Subscript)):
                return None
            length = f"len({script.code(items)})"
            around = script.walk(script.function_of(loop) or script.module)
            lengths = (n for n in around if isinstance(n, cst.Call) and name_of_call(n) == "len")
            return NumberedLoop(script, loop, index, first, length, any(script.code(n) == length for n in lengths))
    return None


def _first_number(rest: Sequence[cst.Arg]) -> int | None:
    """What ``enumerate`` counts from, where that is 0 or 1."""
    first = integer(rest[0].value) if rest else 0
    return first if first in (0, 1) else None


def _without_progress_bar(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.Call) and name_of_call(node) in PROGRESS_BARS:
        given = positional(node)
        return _without_progress_bar(given[0]) if given else node
    return node

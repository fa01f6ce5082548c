"""Loops that number their micro-batches: which is the last, and how many a window really holds."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from gradcheck_accum.lint.fixes.script import Change, Script, nodes_in

_PROGRESS_BARS = frozenset({"tqdm", "track", "trange"})
_NAMES = ("window", "window_size", "micro_batches_in_window")


@dataclass(frozen=True, slots=True)
class NumberedLoop:
    """A for loop whose variable ``index`` counts micro-batches from ``first``; ``length`` is the source of how many."""

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


def numbered_loop(script: Script, node: cst.CSTNode) -> NumberedLoop | None:
    """The innermost loop around a node, if it numbers what it runs over (one further out may count epochs)."""
    loop = next(iter(script.loops_of(node)), None)
    if loop is None:
        return None
    call = _without_progress_bar(loop.iter)
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or not call.args:
        return None
    positional = [argument.value for argument in call.args if argument.keyword is None and not argument.star]
    if call.func.value == "range" and isinstance(loop.target, cst.Name) and len(call.args) == len(positional) == 1:
        length = script.code(positional[0])
        if isinstance(positional[0], (cst.Name, cst.Attribute, cst.Integer, cst.Call)):
            return NumberedLoop(loop, loop.target.value, 0, length, is_sized=True)
        return None
    if call.func.value != "enumerate" or not isinstance(loop.target, cst.Tuple) or not positional:
        return None
    index = loop.target.elements[0].value
    items = _without_progress_bar(positional[0])
    first = _first_number(call)
    if (
        not isinstance(index, cst.Name)
        or first is None
        or not isinstance(items, (cst.Name, cst.Attribute, cst.Subscript))
    ):
        return None
    length = f"len({script.code(items)})"
    around = script.function_of(loop) or script.module
    taken = any(isinstance(node, cst.Call) and script.code(node) == length for node in nodes_in(around))
    return NumberedLoop(loop, index.value, first, length, taken)


def _first_number(call: cst.Call) -> int | None:
    """What ``enumerate`` counts from, where that is 0 or 1."""
    if len(call.args) == 1:
        return 0
    start = call.args[1].value
    return int(start.value) if isinstance(start, cst.Integer) and start.value in ("0", "1") else None


def _without_progress_bar(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.Call) and node.args:
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if isinstance(name, cst.Name) and name.value in _PROGRESS_BARS:
            return _without_progress_bar(node.args[0].value)
    return node


def name_of_window(script: Script, loop: NumberedLoop, steps: str) -> tuple[str, list[Change]]:
    """A variable that holds the window's own number of micro-batches, and the change that makes it, if none does."""
    value = loop.window(steps)
    body = loop.node.body.body if isinstance(loop.node.body, cst.IndentedBlock) else ()
    for line in body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Assign) and script.code(statement.value) == value:
                return script.code(statement.targets[0].target), []
    name = next((n for n in _NAMES if not script.names(n, None)), "_window")
    return name, [script.at_top(loop.node, [f"{name} = {value}"])]

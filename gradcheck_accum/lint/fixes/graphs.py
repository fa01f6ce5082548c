"""Repairs of losses that are kept with their graphs: GA801."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.scaling import operand
from gradcheck_accum.lint.fixes.script import CannotEdit, Script


def detach(case: Case) -> Iterator[Repair]:
    """GA801: keep the loss without its graph. Safe: no number changes, and nobody can send the graph back again."""
    script = case.script
    loss = _kept(script, case)
    yield Repair("Keep the loss without its graph", True, [script.replace(loss, f"{operand(script, loss)}.detach()")])


def _kept(script: Script, case: Case) -> ast.expr:
    """What is added to a sum (``total += loss``, ``total = total + loss``) or to a list."""
    where = case.finding.where
    added = script.find(where, ast.AugAssign)
    if added is not None and not isinstance(added.value, (ast.List, ast.Tuple)):
        return added.value
    appended = script.find(where, ast.Call)
    if appended is not None and len(appended.args) == 1 and not isinstance(appended.args[0], ast.Starred):
        return appended.args[0]
    sum = script.find(where, ast.BinOp)
    statement = script.statement(sum) if sum is not None else None
    if sum is None or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise CannotEdit("not a sum, nor a list that is appended to")
    target = script.code(statement.targets[0])
    if script.code(sum.left) == target:
        return sum.right
    if script.code(sum.right) == target:
        return sum.left
    raise CannotEdit("which of the two is the sum so far")

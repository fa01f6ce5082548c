"""Repairs of losses that are kept with their graphs: GA801."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.expressions import method_call
from gradcheck_accum.lint.fixes.script import CannotEdit, Script


def detach(case: Case) -> Iterator[Repair]:
    """GA801: keep the loss without its graph. Safe: no number changes, and no later backward can use the graph."""
    loss = _kept(case.script, case)
    yield Repair("Store the loss without its graph", True, case.edits().replace(loss, method_call(loss, "detach")))


def _kept(script: Script, case: Case) -> cst.BaseExpression:
    """What is added to a sum (``total += loss``, ``total = total + loss``) or to a list."""
    where = case.finding.where
    added = script.find(where, cst.AugAssign)
    if added is not None and not isinstance(added.value, (cst.List, cst.Tuple)):
        return added.value
    appended = script.find(where, cst.Call)
    if appended is not None and len(appended.args) == 1 and not appended.args[0].star:
        return appended.args[0].value
    sum = script.find(where, cst.BinaryOperation)
    statement = script.statement(sum) if sum is not None else None
    if sum is None or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        raise CannotEdit("not a sum, nor a list that is appended to")
    target = statement.targets[0].target
    if sum.left.deep_equals(target):
        return sum.right
    if sum.right.deep_equals(target):
        return sum.left
    raise CannotEdit("which of the two is the sum so far")

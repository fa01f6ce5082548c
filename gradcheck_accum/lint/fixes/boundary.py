"""Repairs of the window's bounds: GA301, GA302."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.counting import numbered_loop
from gradcheck_accum.lint.fixes.expressions import expression, in_parentheses
from gradcheck_accum.lint.fixes.script import Script


def count_from_one(case: Case) -> Iterator[Repair]:
    """GA302: test ``(i + 1) % K`` where ``i`` counts from 0."""
    for modulus in _moduli(case):
        if isinstance(modulus.left, cst.Name):
            edits = case.edits().replace(modulus.left, expression(f"({modulus.left.value} + 1)"))
            yield Repair("Count micro-batches from 1 in the boundary test", True, edits)


def step_for_remainder(case: Case) -> Iterator[Repair]:
    """GA301: close the window at the last micro-batch of a pass as well; never safe, for it adds an update."""
    script = case.script
    if not case.knows_weights():
        # Whether the loss of a shorter window would be right is not known either.
        return
    for modulus in _moduli(case):
        test, closes = _test_of(script, modulus)
        loop = numbered_loop(script, modulus)
        if loop is not None:
            extended: cst.BaseExpression
            if closes:
                extended = cst.BooleanOperation(test, cst.Or(), expression(loop.is_last()))
            else:
                extended = cst.BooleanOperation(test, cst.And(), expression(loop.is_last().replace("==", "!=")))
            if not _is_whole_condition(script, test):
                extended = in_parentheses(extended)
            edits = case.edits().replace(test, extended)
            yield Repair("Also step for the remaining micro-batches", False, edits)


def _moduli(case: Case) -> Iterator[cst.BinaryOperation]:
    """The places that take a counter modulo K."""
    for node in case.places_of_steps():
        match case.script.parent(node):
            case cst.BinaryOperation(operator=cst.Modulo(), right=right) as operation if right is node:
                yield operation


def _test_of(script: Script, modulus: cst.BinaryOperation) -> tuple[cst.BaseExpression, bool]:
    """The test that a modulus is part of, and whether it is true (not false) where the window closes."""
    parent = script.parent(modulus)
    if isinstance(parent, cst.ComparisonTarget):
        parent = script.parent(parent)
    match parent:
        case cst.UnaryOperation(operator=cst.Not()) as negated:
            return negated, True
        case cst.Comparison(comparisons=[cst.ComparisonTarget(operator=operator)]) as comparison:
            return comparison, isinstance(operator, cst.Equal)
    return modulus, False


def _is_whole_condition(script: Script, test: cst.BaseExpression) -> bool:
    """Whether an ``or`` may follow a test without parentheses around both."""
    parent = script.parent(test)
    return isinstance(parent, (cst.If, cst.Assign, cst.Return)) or (isinstance(parent, cst.Arg) and not parent.star)

"""Repairs of the window's bounds: GA301, GA302."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.counting import numbered_loop
from gradcheck_accum.lint.fixes.script import Script


def count_from_one(case: Case) -> Iterator[Repair]:
    """GA302: test ``(i + 1) % K`` where ``i`` counts from 0."""
    for modulus in _moduli(case):
        if isinstance(modulus.left, cst.Name):
            changed = case.script.replace(modulus.left, f"({modulus.left.value} + 1)")
            yield Repair("Count the micro-batches from 1 in the boundary's test", True, [changed])


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
            last = f"or {loop.is_last()}" if closes else f"and {loop.is_last().replace('==', '!=')}"
            extended = f"{script.code(test)} {last}"
            if not isinstance(script.parent(test), (cst.If, cst.Assign, cst.Arg, cst.Return)):
                extended = f"({extended})"
            yield Repair("Step for the micro-batches that are left over too", False, [script.replace(test, extended)])


def _moduli(case: Case) -> Iterator[cst.BinaryOperation]:
    """The places that take a counter modulo K."""
    for node in case.places_of_steps():
        operation = case.script.parent(node)
        if (
            isinstance(operation, cst.BinaryOperation)
            and isinstance(operation.operator, cst.Modulo)
            and operation.right is node
        ):
            yield operation


def _test_of(script: Script, modulus: cst.BinaryOperation) -> tuple[cst.BaseExpression, bool]:
    """The test that a modulus is part of, and whether it is true (not false) where the window closes."""
    parent = script.parent(modulus)
    if isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not):
        return parent, True
    if isinstance(parent, cst.Comparison) and len(parent.comparisons) == 1:
        return parent, isinstance(parent.comparisons[0].operator, cst.Equal)
    return modulus, False

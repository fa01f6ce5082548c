"""Repairs of the window's bounds: GA301, GA302."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.counting import numbered_loop
from gradcheck_accum.lint.fixes.script import Script


def count_from_one(case: Case) -> Iterator[Repair]:
    """GA302: test ``(i + 1) % K`` where ``i`` counts from 0."""
    for modulus in _moduli(case):
        if isinstance(modulus.left, ast.Name):
            changed = case.script.replace(modulus.left, f"({modulus.left.id} + 1)")
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
            if not _stands_alone(script, test):
                extended = f"({extended})"
            yield Repair("Step for the micro-batches that are left over too", False, [script.replace(test, extended)])


def _moduli(case: Case) -> Iterator[ast.BinOp]:
    """The places that take a counter modulo K."""
    for node in case.places_of_steps():
        operation = case.script.parent(node)
        if isinstance(operation, ast.BinOp) and isinstance(operation.op, ast.Mod) and operation.right is node:
            yield operation


def _test_of(script: Script, modulus: ast.BinOp) -> tuple[ast.expr, bool]:
    """The test that a modulus is part of, and whether it is true (not false) where the window closes."""
    parent = script.parent(modulus)
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        return parent, True
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        return parent, isinstance(parent.ops[0], ast.Eq)
    return modulus, False


def _stands_alone(script: Script, test: ast.expr) -> bool:
    """Whether an ``or`` may follow a test without parentheses around both."""
    parent = script.parent(test)
    return isinstance(parent, (ast.If, ast.Assign, ast.keyword, ast.Return)) or (
        isinstance(parent, ast.Call) and test in parent.args
    )

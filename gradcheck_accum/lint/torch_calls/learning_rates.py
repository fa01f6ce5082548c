"""Learning rates that a loop sets by hand: ``group["lr"] = ...``, and whether that moves them.

A rate that is computed from its previous value has no horizon: it moves each time. So does one whose values are known
and shrink by a constant factor. Any other follows a plan (a warm-up, a cosine); whether that counts micro-batches or
steps is unknown, so it is not reported.
"""

from __future__ import annotations

import math
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num
from gradcheck_accum.lint.syntax import Operator, text_of, walk

_RATE = "lr"


def note_rate(run: State, node: syntax.Assign | syntax.AugAssign, value: Any, scope: v.Scope) -> None:
    """Record that a statement moves the learning rate of an optimizer, if it does."""
    for target in node.targets if isinstance(node, syntax.Assign) else [node.target]:
        if not (isinstance(target, syntax.Subscript) and _names_a_rate(target.slice) and run.in_training):
            continue
        group = run.evaluate(target.value, scope)
        if isinstance(group, v.Group) and _moves(run, node, target, value, group.owner):
            run.recorder.rate(node, f"the rate of {group.owner}", group["params"].sources)


def _names_a_rate(key: syntax.Expression) -> bool:
    return isinstance(key, syntax.Constant) and key.value == _RATE


def _moves(
    run: State, node: syntax.Assign | syntax.AugAssign, target: syntax.Subscript, value: Any, optimizer: str
) -> bool:
    if isinstance(node, syntax.AugAssign) or any(_is_the_same(part, target) for part in walk(node.value)):
        return not (isinstance(value, Num) and value.value == (0 if _adds(node) else 1))
    if not isinstance(value, Num):
        return False
    before, last = run.made.rates.get(optimizer, (0.0, None))
    share = float(value.value) / before if before else None
    run.made.rates[optimizer] = float(value.value), last if share == 1.0 else share
    return share not in (None, 1.0) and last is not None and math.isclose(share or 0.0, last, rel_tol=1e-6)


def _adds(node: syntax.Assign | syntax.AugAssign) -> bool:
    return isinstance(node, syntax.AugAssign) and node.op in (Operator.ADD, Operator.SUB)


def _is_the_same(node: syntax.Node, target: syntax.Subscript) -> bool:
    return isinstance(node, syntax.Subscript) and text_of(node) == text_of(target)

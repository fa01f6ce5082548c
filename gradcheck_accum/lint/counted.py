"""Methods that count their own calls, and step at every K-th: each call is a micro-batch, whoever makes it.

What surrounds the calls is not in sight: who else clears, divides or steps at the end. So only those mistakes are told
of such a method that it makes all by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.functions import call_function
from gradcheck_accum.lint.syntax import Operator, text_of, walk
from gradcheck_accum.lint.values import Num, Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.facts import Function
    from gradcheck_accum.lint.interpreter import Interpreter
    from gradcheck_accum.lint.reach import Reach

TOLD = frozenset({"GA201", "GA202", "GA401", "GA402"})
"""The codes that need nothing but the method: clearings and clips between the backwards of one window."""


def counters(reach: Reach, function: Function) -> set[str]:
    """The attributes that a method adds 1 to and takes modulo something to step: none if it trains in a loop."""
    nodes = walk(function)
    if any(isinstance(n, (syntax.For, syntax.While)) and reach.backward_in(n.body) for n in nodes):
        return set()
    counted = {
        n.target.attr
        for n in nodes
        if isinstance(n, syntax.AugAssign)
        and n.op is Operator.ADD
        and isinstance(n.target, syntax.Attribute)
        and text_of(n.target.value) == "self"
        and isinstance(n.value, syntax.Constant)
        and n.value.value == 1
    }
    tested = {
        n.attr
        for branch in nodes
        if isinstance(branch, syntax.If) and reach.steps(branch.body)
        for part in walk(branch.test)
        if isinstance(part, syntax.BinOp) and part.op is Operator.MOD
        for n in walk(part.left)
        if isinstance(n, syntax.Attribute) and text_of(n.value) == "self"
    }
    return counted & tested


def call_each_batch(run: Interpreter, owner: v.Instance, function: Function, scope: v.Scope) -> None:
    """Call a method as a loop over endless data would."""
    for name in counters(run.reach, function):
        if not isinstance(owner.attributes.get(name), Num):
            owner.attributes[name] = Num(0)
    run.recorder.epoch = None
    run.loop_depth += 1
    try:
        for _ in range(run.knowledge.unbounded_length()):
            run.draw()
            parameters = function.args.args[1 : len(function.args.args) - len(function.args.defaults)]
            call_function(run, v.Function(function, scope, owner), [Symbol(a.arg) for a in parameters], {})
    finally:
        run.loop_depth -= 1

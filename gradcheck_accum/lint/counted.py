"""Methods that count their own calls, and step at every K-th: each call is a micro-batch, whoever makes it.

What surrounds the calls is not in sight: who else clears, divides or steps at the end. So only those mistakes are told
of such a method that it makes all by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.control import Restart
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


def begin(run: Interpreter, node: syntax.AugAssign, current: Any) -> None:
    """Give a counter that comes from elsewhere a number, where the loop steps by it. Raises Restart.

    Nothing shows what it was when the loop began. Whoever tests it before it is raised has it begin at 1, and who tests
    it raised, or one more than it, at 0: so the first window is as long as the others, which is no mistake's doing.
    """
    if not (v.is_named(current) and type(current) is Symbol and run.loop_depth and node.op is Operator.ADD):
        return
    if not (isinstance(node.value, syntax.Constant) and node.value.value == 1):
        return
    name, around = text_of(node.target), run.stack[-1] if run.stack else run.reach.module
    tested = [
        part
        for branch in walk(around)
        if isinstance(branch, syntax.If) and run.reach.steps(branch.body)
        for part in walk(branch.test)
        if isinstance(part, syntax.BinOp) and part.op is Operator.MOD
    ]
    lefts = [part for test in tested for part in walk(test.left) if isinstance(part, syntax.Expression)]
    if name in map(text_of, lefts):
        before = any(text_of(test.left) == name and test.where.line < node.where.line for test in tested)
        run.knowledge.bindings[current.name] = Num(int(before))
        if isinstance(node.target, syntax.Attribute):
            # What an object keeps goes on from pass to pass, and nobody shows how long those are.
            run.knowledge.forget_remainders()
        raise Restart


def carry(run: Interpreter, target: syntax.Expression, value: Any) -> None:
    """What a parameter that counts has come to: who calls the function once more gives it that."""
    function = run.stack[-1] if run.stack else None
    if isinstance(target, syntax.Name) and isinstance(function, syntax.FunctionDef):
        name = f"{function.name}.{target.id}"
        if name in run.knowledge.bindings and isinstance(value, Num):
            run.assigned[name] = value


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

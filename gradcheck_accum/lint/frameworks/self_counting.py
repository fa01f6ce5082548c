"""Methods that count their own calls, and step at every K-th: each call is a micro-batch, whoever makes it.

The callers are unknown: they may clear, divide, or step at the end. So only mistakes that the method makes by itself
are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.facts import adds_one
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Restart
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import Operator, text_of, walk

if TYPE_CHECKING:
    from gradcheck_accum.lint.program.facts import Function
    from gradcheck_accum.lint.program.reach import Reach

REPORTED = frozenset({"GA201", "GA202", "GA401", "GA402"})
"""The codes that need nothing but the method: clearings and clips between the backwards of one window."""


def counters(reach: Reach, function: Function) -> set[str]:
    """The attributes that a method adds 1 to and takes modulo something to step: none if it trains in a loop."""
    nodes = walk(function)
    if any(isinstance(n, (syntax.For, syntax.While)) and reach.backward_in(n.body) for n in nodes):
        return set()
    counted = {
        n.target.attr
        for n in nodes
        if adds_one(n) and isinstance(n.target, syntax.Attribute) and text_of(n.target.value) == "self"
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


def named(run: State, name: str, value: Any) -> Any:
    """The value bound to ``name``: an unknown number gets that name if the source increments it."""
    is_unnamed = type(value) is v.Computed or (type(value) is Symbol and not value.name)
    if not is_unnamed or not run.calls.stack:
        return value
    function = run.calls.stack[-1]
    if not isinstance(function, syntax.FunctionDef) or name not in run.reach.counters(function):
        return value
    return Symbol(f"{function.name}.{name}")


def begin(run: State, node: syntax.AugAssign, current: Any) -> None:
    """Give a counter that comes from elsewhere a number, where the loop acts on gradients by it. Raises Restart.

    Nothing shows what it was when the loop began. Whoever tests it before it is raised has it begin at 1, and who tests
    it raised, or one more than it, at 0: so the first window is as long as the others, which is no mistake's doing.
    """
    if not (v.is_named(current) and type(current) is Symbol and run.loops.depth and adds_one(node)):
        return
    name, around = text_of(node.target), run.calls.stack[-1] if run.calls.stack else run.reach.module
    tested = [
        part
        for branch in walk(around)
        if isinstance(branch, syntax.If) and run.reach.touches_gradients(branch.body)
        for part in walk(branch.test)
        if isinstance(part, syntax.BinOp) and part.op is Operator.MOD
    ]
    lefts = [part for test in tested for part in walk(test.left) if isinstance(part, syntax.Expression)]
    if name in map(text_of, lefts):
        before = any(text_of(test.left) == name and test.where.line < node.where.line for test in tested)
        run.knowledge.bindings[current.name] = Num(int(before))
        if isinstance(node.target, syntax.Attribute):
            # An object's counter continues from pass to pass, and the lengths of passes are unknown.
            run.knowledge.forget_remainders()
        raise Restart


def carry(run: State, target: syntax.Expression, value: Any) -> None:
    """The final value of a parameter that counts: it is passed to the next call of the function."""
    function = run.calls.stack[-1] if run.calls.stack else None
    if isinstance(target, syntax.Name) and isinstance(function, syntax.FunctionDef):
        name = f"{function.name}.{target.id}"
        if name in run.knowledge.bindings and isinstance(value, Num):
            run.assigned[name] = value


def call_each_batch(run: State, owner: v.Instance, function: Function, scope: v.Scope) -> None:
    """Call a method as a loop over endless data would."""
    for name in counters(run.reach, function):
        if not isinstance(owner.attributes.get(name), Num):
            owner.attributes[name] = Num(0)
    run.recorder.epoch = None
    run.loops.depth += 1
    try:
        for _ in range(run.knowledge.unbounded_length()):
            run.draw()
            parameters = function.args.args[1 : len(function.args.args) - len(function.args.defaults)]
            call_function(run, v.Function(function, scope, owner), [Symbol(a.arg) for a in parameters], {})
    finally:
        run.loops.depth -= 1

"""Functions that step at every K-th call: each is a micro-batch, whoever makes it.

They count their calls themselves, as methods do, or are given the count.

The callers are unknown: they may clear, divide a loss that they hand on, or step at the end. So only mistakes that the
method makes by itself are reported. No one else has a loss that it makes before its backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.facts import adds_one
from gradcheck_accum.lint.program.reach import remembered
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Restart
from gradcheck_accum.lint.state.knowledge import ASSUMED_STEPS
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import Comparison, Operator, text_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gradcheck_accum.lint.program.facts import Function
    from gradcheck_accum.lint.program.reach import Reach

REPORTED = frozenset({"GA101", "GA102", "GA104", "GA201", "GA202", "GA302", "GA401", "GA402", "GA501"})
"""The codes that need nothing but the function: what it does between the backwards of one window, the share of a loss
that it makes itself (of one that it is given, the factors are unknown), and where a count begins that it keeps."""
REPORTED_OF_TURNS = frozenset({"GA401", "GA501"})
"""Those that need not even the count: what is clipped is what the function has just added to, or scaled."""


@remembered
def counters(reach: Reach, function: Function) -> frozenset[str]:
    """The attributes that a method adds 1 to, and takes modulo something, or sets back where they come to it, to step.

    So may what it calls. None if that trains in a loop.
    """
    nodes = _nodes(reach, function)
    if _trains_in_a_loop(reach, nodes):
        return frozenset()
    return frozenset(_raised(nodes) & _tested(reach, nodes))


def _nodes(reach: Reach, function: Function) -> list[syntax.Node]:
    """All that is in a function and in what it calls."""
    return [n for one in (function, *reach.callees((function,), None)) for n in walk(one)]


def _raised(nodes: Iterable[syntax.Node]) -> set[str]:
    """The attributes of the object itself that are raised by 1."""
    raised = (n.target for n in nodes if adds_one(n))
    return {t.attr for t in raised if isinstance(t, syntax.Attribute) and text_of(t.value) == "self"}


def _tested(reach: Reach, nodes: Sequence[syntax.Node]) -> set[str]:
    """Those that decide on a step, modulo something or where they come to it."""
    lefts = [part.left for part in _taken_modulo(nodes, reach.steps)]
    lefts += [part.left for part in _compared(reach, nodes)]
    return {
        n.attr for left in lefts for n in walk(left) if isinstance(n, syntax.Attribute) and text_of(n.value) == "self"
    }


@remembered
def given_count(reach: Reach, function: Function) -> tuple[str, syntax.BinOp] | None:
    """The count that a function is given, and where it takes that modulo something to step; None if it has none.

    None too if it trains in a loop.
    """
    nodes = walk(function)
    if _trains_in_a_loop(reach, nodes) or not reach.backward(function):
        return None
    bound = {n.id for n in nodes if isinstance(n, (syntax.Assign, syntax.AugAssign)) for n in _names_bound(n)}
    given = {parameter.arg for parameter in _parameters(function)} - bound
    tests = [part for part in _taken_modulo(nodes, reach.steps) if not given.isdisjoint(_names_in(part.left))]
    counts = {name for part in tests for name in _names_in(part.left) if name in given}
    return (counts.pop(), tests[0]) if len(counts) == 1 else None


def is_called_each_batch(reach: Reach, function: Function) -> bool:
    """Whether each call of a function is a micro-batch."""
    return bool(counters(reach, function)) or given_count(reach, function) is not None


@remembered
def is_whole_turn(reach: Reach, function: Function) -> bool:
    """Whether a function without a loop makes gradients, clips them and steps: the whole turn of somebody's loop."""
    # What it defines inside, somebody else may call: a driver, as often as there are batches.
    own = [statement for statement in function.body if not isinstance(statement, syntax.FunctionDef)]
    if not (reach.backward_in(own) and any(map(reach.clips_itself, own)) and reach.steps(own)):
        return False
    return not any(_trains_in_a_loop(reach, walk(one)) for one in (function, *reach.callees((function,), None)))


def _given_gate(reach: Reach, function: Function) -> tuple[str, syntax.Expression] | None:
    """The parameter that a function steps for, and where it asks for it, if the backward does not depend on it."""
    parameters = {parameter.arg for parameter in _parameters(function)}
    for branch in walk(function):
        if not (isinstance(branch, syntax.If) and isinstance(branch.test, syntax.Name)):
            continue
        steps = reach.steps(branch.body) and not reach.steps(branch.orelse)
        if steps and branch.test.id in parameters and not reach.backward_in(branch.body):
            return branch.test.id, branch.test
    return None


def _trains_in_a_loop(reach: Reach, nodes: Iterable[syntax.Node]) -> bool:
    return any(map(reach.is_training_loop, nodes))


def _taken_modulo(
    nodes: Iterable[syntax.Node], acts: Callable[[Sequence[syntax.Statement]], bool]
) -> list[syntax.BinOp]:
    """What is taken modulo something in the conditions of branches that ``acts`` holds for: that step, say."""
    return [
        part
        for branch in nodes
        if isinstance(branch, syntax.If) and acts(branch.body)
        for part in walk(branch.test)
        if isinstance(part, syntax.BinOp) and part.op is Operator.MOD
    ]


def _compared(reach: Reach, nodes: Iterable[syntax.Node]) -> list[syntax.Compare]:
    """What is compared with a number that it comes to where a step is made, and is set back there."""
    return [
        part
        for branch in nodes
        if isinstance(branch, syntax.If) and reach.steps(branch.body) and not reach.backward_in(branch.body)
        for part in walk(branch.test)
        if isinstance(part, syntax.Compare) and part.ops in ((Comparison.EQ,), (Comparison.GTE,))
        if any(text_of(part.left) in map(text_of, _targets(own)) for own in branch.body)
    ]


def _targets(node: syntax.Statement) -> tuple[syntax.Expression, ...]:
    return tuple(node.targets) if isinstance(node, syntax.Assign) else ()


def _names_in(node: syntax.Node) -> set[str]:
    """The names in an expression that stand for themselves, and for no object with a member there."""
    nodes = walk(node)
    holders = {id(n.value) for n in nodes if isinstance(n, (syntax.Attribute, syntax.Subscript))}
    return {n.id for n in nodes if isinstance(n, syntax.Name) and id(n) not in holders}


def _names_bound(node: syntax.Assign | syntax.AugAssign) -> list[syntax.Name]:
    targets = node.targets if isinstance(node, syntax.Assign) else (node.target,)
    return [target for target in targets if isinstance(target, syntax.Name)]


def _parameters(function: Function) -> list[syntax.Arg]:
    spec = function.args
    return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]


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
    tested = _taken_modulo(walk(around), run.reach.touches_gradients)
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


def call_each_batch(run: State, owner: v.Instance | None, function: Function, scope: v.Scope) -> None:
    """Call a function as a loop over endless data would."""
    if owner is not None:
        unknown = [n for n in counters(run.reach, function) if not isinstance(owner.attributes.get(n), Num)]
        owner.attributes.update({n: _unshown_start(run.reach, function, n) for n in unknown})
    counted = given_count(run.reach, function)
    gate = None if is_called_each_batch(run.reach, function) else _given_gate(run.reach, function)
    run.recorder.epoch = None
    run.loops.depth += 1
    try:
        for turn in range(run.knowledge.unbounded_length()):
            run.draw()
            given = _arguments(run, function, is_method=owner is not None)
            if counted is not None:
                count, test = counted
                # Its first window is as long as the others (`begin`).
                given[count] = Num(turn + isinstance(test.left, syntax.Name))
            if gate is not None:
                # A step that the caller decides on comes when it says so.
                run.recorder.doubt_length(gate[1])
                given[gate[0]] = turn % ASSUMED_STEPS == ASSUMED_STEPS - 1
            call_function(run, v.Function(function, scope, owner), [], given)
    finally:
        run.loops.depth -= 1


def _unshown_start(reach: Reach, function: Function, name: str) -> Num:
    """Where a count begins that nothing shows the start of: with a first window as long as the others (`begin`)."""
    nodes = _nodes(reach, function)
    counted = f"self.{name}"
    raised = [n.where.line for n in nodes if adds_one(n) and text_of(n.target) == counted]
    tested = [n.where.line for n in _taken_modulo(nodes, reach.steps) if text_of(n.left) == counted]
    return Num(int(bool(tested) and min(tested) < min(raised)))


def _arguments(run: State, function: Function, *, is_method: bool) -> dict[str, Any]:
    """What a caller passes that is not known, but for what has a default that is no number."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = dict(zip(reversed([a.arg for a in positional]), reversed(spec.defaults), strict=False))
    given: dict[str, Any] = {}
    for parameter in positional[is_method:]:
        default = defaults.get(parameter.arg)
        number = default.value if isinstance(default, syntax.Constant) else None
        known = number if type(number) is int else None
        if default is None or known is not None:
            given[parameter.arg] = run.resolve(Symbol(parameter.arg, known))
    return given

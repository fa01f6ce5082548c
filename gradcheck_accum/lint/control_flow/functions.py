"""Functions of the file: calls from inside it, and calls from outside, with unknown arguments."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import NO_GRAPHS, READS_FILES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import begins_at_default
from gradcheck_accum.lint.state.control import Broke, Continued, Exhausted, Raised, Returned
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol
from gradcheck_accum.lint.syntax import Comparison, Operator, last_name, text_of, walk

_DEPTH = 12
_EVALUATION = 200
"""Evaluations from which on a function that goes through data of its own, and only reports, is carried out once."""
_LONG = 1_000
"""Evaluations from which on a function of a training loop that does nothing to gradients may be a report."""
_BUILT_IN = frozenset(dir(builtins))
_CONTEXT = "contextmanager"
_READS = frozenset({"open", "input"})
_COMPUTING = ("torch", "math", "random", "itertools", "functools", "operator", "numpy")
"""Where functions come from that read what they are given, and chance."""
_DEEPEST = 3
"""Objects in objects are looked into this far."""


def call_function(run: State, function: v.Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Execute a function of this file."""
    node = function.node
    if len(run.calls.stack) >= _DEPTH or node in run.calls.stack:
        return Symbol()
    scope = v.Scope(outer=function.scope)
    _bind_arguments(run, function, scope, args, kwargs)
    if isinstance(node, syntax.Lambda):
        return run.evaluate(node.body, scope)
    without_graphs = any(word in text_of(d) for d in node.decorator_list for word in NO_GRAPHS)
    if without_graphs and not run.reach.handles_gradients(node):
        return Symbol()
    run.calls.visited.add(node)
    if run.reach.yields(node) and any(last_name(d) == _CONTEXT for d in node.decorator_list):
        return v.Paused(node, scope)
    if run.reach.yields(node) and not run.reach.backward_in(node.body):
        if run.reach.never_ends(node):
            return v.Stream.endless(run.recorder.micro_batch)
        passed_on = _passed_on(node, scope)
        if isinstance(passed_on, tuple) and passed_on[:1] == ("range",):
            return passed_on
        given = [*args, *kwargs.values()]
        whole = any(map(v.is_multiple_of_steps, given)) or not _asks_outside(run, node, scope)
        _forget_what_turns_set(run, function)
        return v.Loader(generated=True, whole=whole, carry_out=partial(_yielded, run, function, scope))
    knows = run.knowledge
    if (node in knows.evaluations and run.in_training) or (knows.skims and node in knows.reports):
        return Symbol()
    spent, recorded, result, idle = run.spent, len(run.recorder.raw), None, run.loops.idle
    run.calls.stack.append(node)
    run.calls.frames.append(scope)
    run.no_graphs += without_graphs
    try:
        run.execute(node.body, scope)
    except Returned as returned:
        result = returned.value
    finally:
        run.no_graphs -= without_graphs
        run.calls.frames.pop()
        run.calls.stack.pop()
    took = run.spent - spent
    if run.in_training and took > _EVALUATION and run.recorder.only_shows_since(recorded) and v.may_be_reported(result):
        if run.loops.idle > idle and not run.reach.acts((node,)):
            knows.evaluations.add(node)
            run.calls.evaluated = True
        if run.loops.depth > 0 and took > _LONG:
            knows.reports.add(node)
    return result


def run_around(run: State, context: v.Paused, block: Callable[[Any], None]) -> None:
    """Carry out a generator that is a context, and the block of its ``with`` where it yields.

    What leaves the block early, but for an error, leaves it once the generator has come to its end.
    """
    node, left, entered = context.node, [], []

    def run_block(value: Any) -> None:
        entered.append(value)
        frame = run.calls.stack.pop(), run.calls.frames.pop()
        try:
            block(value)
        except (Broke, Continued, Returned) as control:
            left.append(control)
        finally:
            run.calls.stack.append(frame[0])
            run.calls.frames.append(frame[1])

    outer = run.calls.blocks.get(node)
    if len(run.calls.stack) < _DEPTH and node not in run.calls.stack:
        run.calls.blocks[node] = run_block
        run.calls.stack.append(node)
        run.calls.frames.append(context.scope)
        try:
            run.execute(node.body, context.scope)
        except Returned:
            pass
        finally:
            run.calls.frames.pop()
            run.calls.stack.pop()
            run.calls.blocks.pop(node)
            if outer is not None:
                run.calls.blocks[node] = outer
    if not entered:
        block(Symbol())
    if left:
        raise left[0]


def are_counted_out(run: State, given: Sequence[Any]) -> bool:
    """Whether the source determines how much data there is among values, and none of them is from outside."""
    data = [value for value in given if isinstance(value, (v.Data, list))]
    rest = [value for value in given if not isinstance(value, (v.Data, list, Num, str, bool))]
    determined = (id(one) not in run.iterated.grown if isinstance(one, list) else one.is_determined for one in data)
    return bool(data) and not rest and all(determined)


def _is_shown(run: State, value: Any, depth: int = 0) -> bool:
    """Whether the source shows a value, or how many it holds: nothing of it is from outside."""
    match value:
        case Num():
            return value.tags.isdisjoint({v.WHOLE, v.ASSUMED}) and not value.names
        case str() | bool() | None | v.Function() | v.Class():
            return True
        case v.Reference():
            return value.path.startswith(_COMPUTING) and value.tail not in READS_FILES
        case v.Data() | list():
            return are_counted_out(run, [value])
        case v.Loader():
            return value.whole or value.length is not None
        case v.Chunks():
            return value.whole or not value.assumed
        case tuple():
            return all(_is_shown(run, one, depth) for one in value)
        case dict() if depth < _DEEPEST:
            return all(_is_shown(run, one, depth + 1) for one in value.values())
        case v.Instance() if depth < _DEEPEST:
            return all(_is_shown(run, one, depth + 1) for one in value.attributes.values())
    return False


def _asks_outside(run: State, node: syntax.FunctionDef, scope: v.Scope, asked: tuple[syntax.Node, ...] = ()) -> bool:
    """Whether a function reads anything that the source does not show: its answers may be any."""
    if node in asked:
        return False
    inner = tuple(walk(node))
    called = {n.func.id for n in inner if isinstance(n, syntax.Call) and isinstance(n.func, syntax.Name)}
    for name in {n.id for n in inner if isinstance(n, syntax.Name)} | scope.names.keys():
        holder = scope.find(name)
        if holder is None:
            # It is Python's own, or bound in the function, unless it came with a star import.
            if name in _READS or (name in called and name not in _BUILT_IN):
                return True
            continue
        value = holder.names[name]
        further = value.node if isinstance(value, v.Function) else None
        if not _is_shown(run, value) or (
            isinstance(further, syntax.FunctionDef)
            and _asks_outside(run, further, v.Scope(outer=value.scope), (*asked, node))
        ):
            return True
    members = (n for n in inner if isinstance(n, syntax.Attribute) and n.attr in READS_FILES)
    return any(isinstance(run.evaluate(n.value, scope), v.Reference) for n in members)


def _passed_on(node: syntax.FunctionDef, scope: v.Scope) -> Any:
    """What a generator was given and yields item by item, unchanged, as one that reports progress; else None."""
    yields = [n for n in walk(node) if isinstance(n, (syntax.Yield, syntax.YieldFrom))]
    for loop in (n for n in walk(node) if isinstance(n, syntax.For) and len(yields) == 1):
        match loop.target, loop.iter, yields[0]:
            case syntax.Name(id=item), syntax.Name(id=given), syntax.Yield(value=syntax.Name(id=yielded)):
                each_time = any(isinstance(own, syntax.Expr) and own.value is yields[0] for own in loop.body)
                if each_time and item == yielded:
                    return scope.names.get(given)
    return None


def _forget_what_turns_set(run: State, generator: v.Function) -> None:
    """What a generator writes into its object in its turns is another in each turn of the loop that it gives data.

    It is carried out all at once, so what it has written then is none of them.
    """
    node, owner = generator.node, generator.owner
    if not isinstance(owner, v.Instance) or not isinstance(node, syntax.FunctionDef):
        return
    first = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)][:1]
    for written in run.reach.bound_in_loops(node):
        holder, _, name = written.rpartition(".")
        if [holder] == first:
            owner.attributes[name] = UNKNOWN


def _yielded(run: State, generator: v.Function, scope: v.Scope) -> list[Any]:
    """What a generator yields, as far as it can be executed."""
    node = generator.node
    if isinstance(node, syntax.Lambda) or len(run.calls.stack) >= _DEPTH or node in run.calls.stack:
        return []
    outer, run.calls.yielded = run.calls.yielded, []
    run.calls.stack.append(node)
    run.calls.frames.append(scope)
    run.loops.depth += 1
    try:
        with suppress(Returned, Raised, Exhausted):
            run.execute(node.body, scope)
    finally:
        run.loops.depth -= 1
        run.calls.frames.pop()
        run.calls.stack.pop()
        found, run.calls.yielded = run.calls.yielded, outer
        _forget_what_turns_set(run, generator)
    return found or []


def _bind_arguments(run: State, function: v.Function, scope: v.Scope, args: list[Any], kwargs: dict[str, Any]) -> None:
    node, spec = function.node, function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    static = any("staticmethod" in text_of(d) for d in getattr(node, "decorator_list", []))
    if function.owner is not None and not static:
        args = [function.owner, *args]
    name = getattr(node, "name", "lambda")
    defaults: dict[str, syntax.Expression] = {
        a.arg: d for a, d in zip(reversed(positional), reversed(spec.defaults), strict=False)
    }
    defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
    given = dict(zip((a.arg for a in positional), args, strict=False)) | kwargs
    for parameter in (*positional, *spec.kwonlyargs):
        if parameter.arg in given:
            scope.names[parameter.arg] = v.passed_as(given[parameter.arg], parameter.arg)
        elif parameter.arg in defaults and not kwargs.get("**"):
            default = run.evaluate(defaults[parameter.arg], function.scope)
            offered = v.is_left_off(default, parameter.arg) and _counts_to(run, function, parameter.arg)
            scope.names[parameter.arg] = (
                run.resolve(Symbol(f"{name}.{parameter.arg}", 1)) if offered else v.known_as(default, parameter.arg)
            )
        else:
            scope.names[parameter.arg] = run.resolve(Symbol(f"{name}.{parameter.arg}"))
    if spec.vararg is not None:
        scope.names[spec.vararg.arg] = args[len(positional) :] or Symbol()
    if spec.kwarg is not None:
        scope.names[spec.kwarg.arg] = Symbol(f"{name}.{spec.kwarg.arg}")


def _counts_to(run: State, function: v.Function, name: str) -> bool:
    """Whether a function makes gradients and counts to this parameter for its steps, or what it calls may.

    So does what an object counts to that it makes.
    """
    node, owner = function.node, function.owner
    bodies = [getattr(node, "body", ())]
    if isinstance(owner, v.Instance) and isinstance(node, syntax.FunctionDef) and node.name == "__init__":
        bodies = [one.body for one in owner.cls.methods.values()]
    training = [body for body in bodies if run.reach.steps(body) and run.reach.backward_in(body)]
    return any(_is_counted_to(run, part, name) for body in training for statement in body for part in walk(statement))


def _is_counted_to(run: State, node: syntax.Node, name: str) -> bool:
    """Whether an expression compares a count with what has this name, or hands it on to what trains."""
    match node:
        case syntax.BinOp(op=Operator.MOD, right=right):
            return last_name(right) == name
        case syntax.Compare(ops=((Comparison.EQ | Comparison.GTE),), comparators=(right,)):
            return last_name(right) == name
        case syntax.Call():
            given = (*node.args, *(keyword.value for keyword in node.keywords))
            return any(last_name(one) == name for one in given) and run.reach.backward(node)
    return False


def call_from_outside(run: State, function: v.Function) -> None:
    """Execute a function that nothing in the file calls, with unknown arguments."""
    run.recorder.entered = run.recorder.micro_batch + 1
    node = run.calls.entrance = function.node
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    if function.owner is not None:
        positional = positional[1:]
    constants = dict(zip(reversed([a.arg for a in positional]), reversed(spec.defaults), strict=False)) | {
        a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
    }
    given: dict[str, Any] = {}
    for parameter in (*positional, *spec.kwonlyargs):
        default = constants.get(parameter.arg)
        number = default.value if isinstance(default, syntax.Constant) else None
        known = number if isinstance(number, int) and not isinstance(number, bool) else None
        if parameter.annotation is not None and text_of(parameter.annotation).rpartition(".")[2] == "Fabric":
            given[parameter.arg] = v.Framework(v.Num(1))
            continue
        symbol = Symbol(f"{getattr(node, 'name', '')}.{parameter.arg}", known)
        if begins_at_default(run, parameter.arg, symbol, known):
            given[parameter.arg] = run.knowledge.known(symbol.name) or v.Num(0)
            continue
        given[parameter.arg] = run.resolve(symbol)
    with suppress(Raised, Exhausted, Broke, Continued):
        call_function(run, function, [], given)

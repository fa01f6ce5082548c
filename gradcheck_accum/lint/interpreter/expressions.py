"""Expressions of a training loop, evaluated as far as the source tells."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import (
    OPPOSITES,
    ORDERED,
    answered,
    choose,
    decide_in_turn,
    prefer_ranks,
    truth_of,
    values_named_in,
)
from gradcheck_accum.lint.interpreter.assignment import assign
from gradcheck_accum.lint.interpreter.calls import call
from gradcheck_accum.lint.interpreter.comprehensions import comprehension, dict_comprehension, mapped_by
from gradcheck_accum.lint.interpreter.iteration import items_of
from gradcheck_accum.lint.interpreter.objects import attribute, known_otherwise
from gradcheck_accum.lint.interpreter.subscripts import subscript
from gradcheck_accum.lint.program.facts import mapped
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_in_comparison, bind_length, bind_steps
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor, bounded, is_named, is_settled
from gradcheck_accum.lint.syntax import Comparison, Junction, Operator, UnaryOperator, call_name, text_of
from gradcheck_accum.lint.torch_calls.arithmetic import binary, met, of_numbers
from gradcheck_accum.lint.torch_calls.data import batches_of, length_of
from gradcheck_accum.lint.torch_calls.gradient_changes import is_gradient
from gradcheck_accum.lint.torch_calls.losses import compares_loss
from gradcheck_accum.lint.torch_calls.masks import mask_of
from gradcheck_accum.lint.torch_calls.metrics import shown
from gradcheck_accum.lint.torch_calls.retained_graphs import summed
from gradcheck_accum.lint.torch_calls.weight_averages import note_update

_OF_COUNTS = (Operator.FLOORDIV, Operator.DIV, Operator.MULT)
"""What a number of micro-batches is computed by."""

_COMPARISONS: dict[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.EQ: operator.eq,
    Comparison.NOTEQ: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LTE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GTE: operator.ge,
}


def evaluate(run: State, node: syntax.Expression, scope: v.Scope) -> Any:
    """The value of an expression; `UNKNOWN` or a named symbol where the source does not tell."""
    run.spend()
    handler = _HANDLERS.get(type(node))
    if handler is None:
        return UNKNOWN
    value = handler(run, node, scope)
    kind = type(value)
    if kind is Symbol or kind is v.Computed or kind is v.Reference or kind is v.Got:
        value = run.resolve(value)
    if type(value) is Tensor and not value.is_located:
        return value.located(run.recorder.locate(node))
    return value


def _constant(run: State, node: syntax.Constant, scope: v.Scope) -> Any:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bounded(Num(value, origins=frozenset({f"{node.where.line}:{node.where.column - 1}"})))
    return value if isinstance(value, (str, bool, type(None))) else UNKNOWN


def _name(run: State, node: syntax.Name, scope: v.Scope) -> Any:
    holder = scope.find(node.id)
    if holder is None:
        # What a star import or a branch that was not taken brings is what it is called.
        return v.Reference(node.id) if node.id == "torch" else Symbol(node.id)
    return holder.names[node.id]


def _attribute(run: State, node: syntax.Attribute, scope: v.Scope) -> Any:
    value = known_otherwise(node.value, evaluate(run, node.value, scope))
    is_leaf = run.loops.has_leaves and type(value) is Symbol and not value.name
    if node.attr == "grad" and (is_leaf or isinstance(value, Tensor)):
        run.recorder.opaque(node, "a backward that was made for the gradients of activations")
    if isinstance(value, v.Optimizer) and node.attr in ("step", "zero_grad"):
        return v.BoundMethod(value, node)
    return v.known_as(attribute(run, value, node.attr), node.attr)


def _binary(run: State, node: syntax.BinOp, scope: v.Scope) -> Any:
    left, right = evaluate(run, node.left, scope), evaluate(run, node.right, scope)
    if node.op is Operator.ADD:
        note_update(run, node, scope)
    if isinstance(left, str):
        shown(run, node, [right])
    if _is_written_out(node.left) and isinstance(left, Num) and isinstance(right, Num):
        # Where nothing is counted on the left, what divides it is no K.
        return of_numbers(node.op, left, right)
    if node.op is Operator.MOD:
        if not isinstance(right, Num):
            right = bind_length(run, right, text_of(node.right))
            if run.question.ends_pass:
                return UNKNOWN  # by what a pass is left early is no K
            right = _with_settings_bound(run, node.right, right, scope)
        run.note_count(node.right, right)
    result = binary(run, node.op, left, right)
    result = summed(run, node, result)
    # No loss is divided by floor division, which computes a number from any operands.
    counts = node.op is Operator.FLOORDIV or isinstance(left, v.Samples) or (is_settled(left) and is_settled(right))
    # In a loop, what is computed from settings alone is the same in every turn.
    fixed = not run.loops.depth or (node.op in _OF_COUNTS and v.is_fixed(left) and v.is_fixed(right))
    if (result is UNKNOWN or result is v.SCALED) and fixed and counts:
        return v.Computed(text_of(node), op=node.op, left=left, right=right)
    return result


def _with_settings_bound(run: State, node: syntax.Expression, value: Any, scope: v.Scope) -> Any:
    """A modulus: where it is a product of settings, each has a number as one has that is a modulus alone."""
    if not (run.in_training and isinstance(node, syntax.BinOp) and node.op is Operator.MULT):
        return value
    factors = [evaluate(run, side, scope) for side in (node.left, node.right)]
    if all(isinstance(one, Num) or is_named(one) for one in factors):
        for one in factors:
            bind_steps(run, one)
    return value


def _is_written_out(node: syntax.Expression) -> bool:
    """Whether an expression is made of numbers that stand there."""
    if isinstance(node, syntax.BinOp):
        return _is_written_out(node.left) and _is_written_out(node.right)
    return isinstance(node, syntax.Constant)


def _unary(run: State, node: syntax.UnaryOp, scope: v.Scope) -> Any:
    value = evaluate(run, node.operand, scope)
    if node.op is UnaryOperator.NOT:
        truth = answered(run, node.operand, value)
        return v.negated(value) if truth is None else not truth
    if isinstance(value, Num):
        return value.derive(-value.value) if node.op is UnaryOperator.USUB else value
    return value if isinstance(value, (Tensor, v.Scaled, v.Data)) else UNKNOWN


def _boolean(run: State, node: syntax.BoolOp, scope: v.Scope) -> Any:
    wants = node.op is Junction.OR
    last: Any = UNKNOWN
    unknown = False
    for operand in node.values:
        last = evaluate(run, operand, scope)
        truth = truth_of(run, last)
        if truth is None:
            truth = decide_in_turn(run, operand, last, scope, run.condition_changes_gradients())
        if truth is wants:
            return last if truth_of(run, last) is not None or is_named(last) else truth
        unknown = unknown or truth is None
    if unknown:
        return UNKNOWN
    return last if truth_of(run, last) is not None or is_named(last) else not wants


def _compare(run: State, node: syntax.Compare, scope: v.Scope) -> Any:
    left = evaluate(run, node.left, scope)
    result: Any = True
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(run, right_node, scope)
        steps_if = OPPOSITES[op] if run.question.steps_otherwise else op
        literal = isinstance(node.left, syntax.Constant) or isinstance(right_node, syntax.Constant)
        left, right = bind_in_comparison(run, left, right, steps_if, literal)
        if right is UNKNOWN and isinstance(right_node, syntax.BinOp) and isinstance(right_node.right, syntax.Constant):
            # `i == num_batches - 1` says what the number of batches is compared with.
            bind_in_comparison(run, left, evaluate(run, right_node.left, scope), steps_if, literal)
        if steps_if in (Comparison.EQ, Comparison.GTE):
            run.note_count(right_node, right)
        if steps_if in (Comparison.EQ, Comparison.GTE, Comparison.GT):
            run.note_bound(right, left)
        if right is None and is_gradient(node.left) and op in (Comparison.IS, Comparison.ISNOT):
            # Whether a parameter was used at all is no question of accumulation.
            outcome: Any = op is Comparison.ISNOT
        elif literal and op in (Comparison.EQ, Comparison.NOTEQ) and _counts_a_batch(node.left, left):
            outcome = UNKNOWN
        elif _count_unlike_things(left, right) or _count_unlike_things(right, left):
            if run.boundary is not None:
                run.recorder.opaque(node, "how many micro-batches a window has")
            outcome = UNKNOWN
        elif op in ORDERED and (
            _asks_a_guess(run, node.left, left, right, scope) or _asks_a_guess(run, right_node, right, left, scope)
        ):
            outcome = UNKNOWN
        else:
            outcome = _compare_pair(run, op, left, right)
        if outcome is not True:
            result = outcome
            break
        left = right
    compared = [value for value in (left, right) if isinstance(value, v.Data)]
    if result is UNKNOWN and compared:
        both = met(compared[0], compared[-1]) if len(compared) > 1 else compared[0]
        asked = replace(both, made=compared[0].made) if len(compared) > 1 else both
        return mask_of(asked, isinstance(left, Num) or isinstance(right, Num))
    if result is UNKNOWN and len(node.ops) == 1:
        bounds = [value.value for value in (left, right) if isinstance(value, Num)]
        if any(compares_loss(run, value, node.ops[0], *bounds) for value in (left, right)):
            return v.HowGreat()
    return result


def _counts_a_batch(node: syntax.Expression, value: Any) -> bool:
    """Whether an expression is the ``len`` of a batch: of its rows, or of its tensors, which are not shown."""
    return (
        isinstance(node, syntax.Call) and call_name(node) == "len" and isinstance(value, Num) and v.UNITS in value.tags
    )


def _count_unlike_things(rows: Any, length: Any) -> bool:
    """Whether one number counts rows, and the other is the assumed length of something, be that of batches or rows."""
    if not (isinstance(rows, Num) and isinstance(length, Num)) or v.UNITS in length.tags:
        return False
    return v.UNITS in rows.tags and v.LENGTH not in rows.tags and {v.LENGTH, v.ASSUMED} <= length.tags


def _asks_a_guess(run: State, node: syntax.Expression, length: Any, number: Any, scope: v.Scope) -> bool:
    """Whether a condition that decides on training asks how many things something holds, which it does not show.

    A memory that fills up has as many as a training needs, and not the length that is assumed of it.
    """
    if not (isinstance(length, Num) and isinstance(number, Num) and v.LENGTH not in number.tags):
        return False
    if not {v.LENGTH, v.ASSUMED} <= length.tags or not (isinstance(node, syntax.Call) and call_name(node) == "len"):
        return False
    branch = run.question.branch
    trains = branch is not None and run.reach.backward_in(branch.body)
    if not (trains or run.question.in_guard) or len(node.args) != 1:
        return False
    holder = evaluate(run, node.args[0], scope)
    return isinstance(holder, (Symbol, v.Instance)) or (trains and isinstance(holder, list))


def _compare_pair(run: State, op: Comparison, left: Any, right: Any) -> Any:
    if op in (Comparison.IS, Comparison.ISNOT):
        if right is None and (not isinstance(left, Symbol) or isinstance(left, (v.Figure, v.Computed))):
            return (left is None) == (op is Comparison.IS)
        if right is None and isinstance(left, Symbol) and left.default is not None:
            return v.ByDefault(holds=op is Comparison.ISNOT)
        return UNKNOWN
    if op in (Comparison.IN, Comparison.NOTIN):
        if isinstance(right, (list, tuple, dict)) and isinstance(left, str):
            if isinstance(right, dict) and left not in right and not v.shows_its_keys(right):
                return UNKNOWN
            return (left in right) == (op is Comparison.IN)
        return UNKNOWN
    if isinstance(left, Num) and isinstance(right, Num):
        return bool(_COMPARISONS[op](left.value, right.value))
    if isinstance(left, (str, bool)) and isinstance(right, (str, bool)) and op in (Comparison.EQ, Comparison.NOTEQ):
        return bool(_COMPARISONS[op](left, right))
    if isinstance(left, Symbol) and isinstance(left.default, float) and isinstance(right, Num):
        # A whole number may count micro-batches: what it is by default says nothing of what it is for.
        return v.ByDefault(holds=bool(_COMPARISONS[op](left.default, right.value)))
    asks = op in (Comparison.EQ, Comparison.NOTEQ) and isinstance(left, Symbol) and isinstance(right, str)
    if asks and isinstance(left.default, str):
        return v.ByDefault(holds=(left.default == right) == (op is Comparison.EQ))
    return UNKNOWN


def _conditional(run: State, node: syntax.IfExp, scope: v.Scope) -> Any:
    if any(isinstance(value, v.Measured) for value in values_named_in(node.test, scope)):
        return v.MEASURED
    prefer_ranks(run, node.test, scope, ((node.body,), (node.orelse,)))
    chosen = choose(run, node.test, scope, ())
    return evaluate(run, node.body if chosen else node.orelse, scope)


def _collection(run: State, node: syntax.List | syntax.Tuple | syntax.Set, scope: v.Scope) -> Any:
    items: list[Any] = []
    for element in node.elts:
        if isinstance(element, syntax.Starred):
            value = evaluate(run, element.value, scope)
            items.extend(value if isinstance(value, (list, tuple)) else [value])
        else:
            items.append(evaluate(run, element, scope))
    return tuple(items) if isinstance(node, syntax.Tuple) else items


def _dict(run: State, node: syntax.Dict, scope: v.Scope) -> Any:
    pairs: dict[Any, Any] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        value = evaluate(run, value_node, scope)
        if key_node is not None:
            pairs[v.key_of(evaluate(run, key_node, scope), text_of(key_node))] = value
        elif isinstance(value, dict):
            pairs.update(value)
    return pairs


def _lambda(run: State, node: syntax.Lambda, scope: v.Scope) -> Any:
    return v.Function(node, scope)


def _named(run: State, node: syntax.NamedExpr, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope)
    assign(run, node.target, value, scope)
    return value


def _call(run: State, node: syntax.Call, scope: v.Scope) -> Any:
    if mapped(node) is not None and scope.find("map") is None:
        return comprehension(run, mapped_by(node), scope)
    return call(run, node, scope)


def _await(run: State, node: syntax.Await, scope: v.Scope) -> Any:
    return evaluate(run, node.value, scope)


def _yield(run: State, node: syntax.Yield, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope) if node.value is not None else None
    block = run.calls.blocks.get(run.calls.stack[-1]) if run.calls.stack else None
    if block is not None:
        block(value)
        return None
    if run.calls.yielded is not None and len(run.calls.yielded) < v.LONGEST_LIST:
        # Whoever yields a list may go on to fill it again.
        run.calls.yielded.append(list(value) if isinstance(value, list) else value)
    return UNKNOWN


def _yield_from(run: State, node: syntax.YieldFrom, scope: v.Scope) -> Any:
    source = evaluate(run, node.value, scope)
    if isinstance(source, v.Loader):
        items: list[Any] | None = list(batches_of(source, length_of(run, source)))
    else:
        items = items_of(run, source, limit=v.LONGEST_LIST)
    if run.calls.yielded is not None and items is not None and len(run.calls.yielded) + len(items) <= v.LONGEST_LIST:
        run.calls.yielded.extend(items)
    return UNKNOWN


def _formatted(run: State, node: syntax.JoinedStr, scope: v.Scope) -> Any:
    for part in node.values:
        if isinstance(part, syntax.FormattedValue):
            # A whole epoch may be run inside the braces.
            shown(run, part.value, [evaluate(run, part.value, scope)], label=node)
    return UNKNOWN


_HANDLERS: dict[type[syntax.Expression], Callable[[State, Any, v.Scope], Any]] = {
    syntax.Constant: _constant,
    syntax.Name: _name,
    syntax.Attribute: _attribute,
    syntax.Subscript: subscript,
    syntax.BinOp: _binary,
    syntax.UnaryOp: _unary,
    syntax.BoolOp: _boolean,
    syntax.Compare: _compare,
    syntax.IfExp: _conditional,
    syntax.List: _collection,
    syntax.Tuple: _collection,
    syntax.Set: _collection,
    syntax.Dict: _dict,
    syntax.ListComp: comprehension,
    syntax.GeneratorExp: comprehension,
    syntax.SetComp: comprehension,
    syntax.DictComp: dict_comprehension,
    syntax.Lambda: _lambda,
    syntax.NamedExpr: _named,
    syntax.Call: _call,
    syntax.Await: _await,
    syntax.Yield: _yield,
    syntax.YieldFrom: _yield_from,
    syntax.JoinedStr: _formatted,
}

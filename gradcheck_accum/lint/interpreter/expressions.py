"""Expressions of a training loop, evaluated as far as the source tells."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import answered, choose, decide, settled, truth_of
from gradcheck_accum.lint.interpreter.assignment import assign
from gradcheck_accum.lint.interpreter.calls import call
from gradcheck_accum.lint.interpreter.iteration import items_of
from gradcheck_accum.lint.interpreter.objects import attribute, known_otherwise
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_in_comparison
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor, bounded, is_named, is_settled
from gradcheck_accum.lint.syntax import Comparison, Junction, Operator, UnaryOperator, text_of, walk
from gradcheck_accum.lint.torch_calls.arithmetic import binary, of_numbers
from gradcheck_accum.lint.torch_calls.data import (
    batch_at,
    batches_of,
    length_of,
    length_of_value,
    rows_of,
    slice_of_data,
)
from gradcheck_accum.lint.torch_calls.gradient_changes import is_gradient
from gradcheck_accum.lint.torch_calls.masks import chooses, mask_of, selected
from gradcheck_accum.lint.torch_calls.metrics import shown
from gradcheck_accum.lint.torch_calls.retained_graphs import summed
from gradcheck_accum.lint.torch_calls.weight_averages import note_update

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
    if node.attr == "grad" and isinstance(value, Tensor):
        run.recorder.opaque(node, "a backward that was made for the gradients of activations")
    return v.known_as(attribute(run, value, node.attr), node.attr)


def _subscript(run: State, node: syntax.Subscript, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope)
    index = UNKNOWN if isinstance(node.slice, syntax.Slice) else evaluate(run, node.slice, scope)
    match value:
        case ("shape", v.Data() as data):
            return rows_of(run, data) if isinstance(index, Num) and index.value == 0 else UNKNOWN
        case ("zip" | "enumerate" | "islice" | "range" | "shape" | "slice", *_):
            # What stands for an iterator is no tuple of its parts.
            return UNKNOWN
        case list() | tuple() if isinstance(index, Num) and isinstance(index.value, int):
            if isinstance(value, list) and len(value) > 1 and not run.loops.passes and v.is_data(value):
                # A list of batches that is counted through by hand.
                slice_of_data(run, value, index, None)
                chosen = value[index.value] if -len(value) <= index.value < len(value) else UNKNOWN
                run.recorder.learn_units(v.rows_in(chosen))
                return chosen
            return value[index.value] if -len(value) <= index.value < len(value) else UNKNOWN
        case list() if isinstance(node.slice, syntax.Slice) and id(value) in run.iterated.grown:
            # Of how many there are nothing is known, and so it is of a part of them.
            part = list(value)
            run.iterated.grown[id(part)] = part
            return part
        case list() | tuple() if isinstance(node.slice, syntax.Slice):
            return _slice(run, value, node.slice, scope)
        case dict():
            key = v.key_of(index, text_of(node.slice))
            held = value.get(key, UNKNOWN)
            if isinstance(key, Num) and isinstance(held, Num):
                return UNKNOWN  # a table of numbers has another one for every turn
            return v.known_as(held, key) if isinstance(key, str) else held
        case v.Data():
            # Rows are what the first of several dimensions counts.
            rows = node.slice.elts[0] if isinstance(node.slice, syntax.Tuple) and node.slice.elts else node.slice
            if isinstance(rows, syntax.Constant) and rows.value is ...:
                return value
            match index:
                case ("slice", lower, upper):
                    return slice_of_data(run, value, lower, upper)
            if isinstance(rows, syntax.Slice):
                lower, upper = (None if b is None else evaluate(run, b, scope) for b in (rows.lower, rows.upper))
                return slice_of_data(run, value, lower, upper)
            # Rows that are chosen at random are as new as the choice, and as many where their places are.
            if isinstance(index, v.Data):
                rows_chosen = index.rows if index.holds is v.Holds.PLACES else None
                return v.Data(rows_chosen, made=index.made, varies=value.varies or chooses(index))
            # What is at a number may be a tensor of the batch, or a row of one.
            return replace(value.changed(), counted=None, drawn=None)
        case v.Chunks() if isinstance(node.slice, syntax.Slice):
            length = length_of_value(run, value)
            return _slice(run, [value.piece] * int(length.value), node.slice, scope)
        case v.Loader():
            if isinstance(node.slice, syntax.Slice):
                # A list of batches, sliced: the micro-batches of one window, say.
                return _slice(run, batches_of(value, length_of(run, value)), node.slice, scope)
            return batch_at(run, value, index)
        case Tensor() if chooses(index):
            return selected(value)
        case Tensor():
            item = attribute(run, value, str(index) if isinstance(index, str) else "item")
            return item.element(index) if isinstance(item, Tensor) and isinstance(index, Num) else item
        case v.Parameters() | v.Gradient():
            return value
        case v.Model() if isinstance(index, Num):
            return v.Member(source=f"{value.name}.{index.value}")
        case Symbol():
            if isinstance(index, str):
                return value.member(index)
            if (
                isinstance(index, Num)
                and isinstance(node.slice, syntax.Constant)
                and value.name
                and (not run.in_training or _is_the_same_in_every_turn(run, node.value))
            ):
                return value.member(str(index.value))  # one of several things that a call gave together
            return _slice_of_batches(run, value, node.slice, scope)
    return UNKNOWN


def _slice(run: State, items: Any, node: syntax.Slice, scope: v.Scope) -> Any:
    bounds: list[int | None] = []
    for bound in (node.lower, node.upper, node.step):
        number = evaluate(run, bound, scope) if bound is not None else None
        if number is not None and not (isinstance(number, Num) and isinstance(number.value, int)):
            return UNKNOWN
        bounds.append(number.value if isinstance(number, Num) else None)  # type: ignore[arg-type]
    return items[slice(*bounds)] if bounds[2] != 0 else UNKNOWN


def _slice_of_batches(run: State, batches: Symbol, index: syntax.Expression, scope: v.Scope) -> Any:
    """An unknown sequence cut at a multiple of K, or along its own length: so only lists of batches are.

    What else a turn of a training loop cuts out of one, elsewhere in every turn, is its data, as far as anybody knows.
    """
    if not isinstance(index, syntax.Slice):
        return UNKNOWN
    bounds = [evaluate(run, bound, scope) for bound in (index.lower, index.upper) if bound is not None]
    if not any(isinstance(b, Num) and b.tags & {v.STEPS, v.DERIVED, v.LENGTH, v.POSITION} for b in bounds):
        moves = run.loops.depth and index.lower is not None and index.upper is not None and _changes(run, index)
        return v.Got(turn=run.loops.turn) if moves else UNKNOWN
    length = length_of_value(run, batches)
    if not isinstance(length, Num):
        # Nobody cuts a window where there is none: as long as the bounds are apart.
        length = max((b for b in bounds if isinstance(b, Num)), key=lambda bound: bound.value)
        run.recorder.assumed_length = True
    return _slice(run, [v.Data()] * int(length.value), index, scope)


def _is_the_same_in_every_turn(run: State, node: syntax.Expression) -> bool:
    """Whether no loop of the function binds what stands in an expression, nor calls anything for it."""
    changing = run.reach.bound_in_loops(run.calls.stack[-1] if run.calls.stack else None)
    return all(not isinstance(inner, syntax.Call) and text_of(inner) not in changing for inner in walk(node))


def _changes(run: State, index: syntax.Slice) -> bool:
    """Whether both bounds of a slice are made of what changes with the turns of a loop."""
    changing = run.reach.bound_in_loops(run.calls.stack[-1] if run.calls.stack else None)
    bounds = [bound for bound in (index.lower, index.upper) if bound is not None]
    return all(changing & {text_of(inner) for inner in walk(bound)} for bound in bounds)


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
        run.note_count(node.right, right)
    result = binary(run, node.op, left, right)
    result = summed(run, node, result)
    # Nobody divides a loss without a remainder: that makes one number of whatever it is made of.
    counts = node.op is Operator.FLOORDIV or isinstance(left, v.Samples) or (is_settled(left) and is_settled(right))
    if (result is UNKNOWN or result is v.SCALED) and not run.loops.depth and counts:
        return v.Computed(text_of(node), op=node.op, left=left, right=right)
    return result


def _is_written_out(node: syntax.Expression) -> bool:
    """Whether an expression is made of numbers that stand there."""
    if isinstance(node, syntax.BinOp):
        return _is_written_out(node.left) and _is_written_out(node.right)
    return isinstance(node, syntax.Constant)


def _unary(run: State, node: syntax.UnaryOp, scope: v.Scope) -> Any:
    value = evaluate(run, node.operand, scope)
    if node.op is UnaryOperator.NOT:
        truth = answered(run, node.operand, value)
        return UNKNOWN if truth is None else not truth
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
            truth = decide(run, operand, last, run.condition_changes_gradients())
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
        literal = isinstance(node.left, syntax.Constant) or isinstance(right_node, syntax.Constant)
        left, right = bind_in_comparison(run, left, right, op, literal)
        if right is UNKNOWN and isinstance(right_node, syntax.BinOp) and isinstance(right_node.right, syntax.Constant):
            # `i == num_batches - 1` says what the number of batches is compared with.
            bind_in_comparison(run, left, evaluate(run, right_node.left, scope), op, literal)
        if op in (Comparison.EQ, Comparison.GTE):
            run.note_count(right_node, right)
        if op in (Comparison.EQ, Comparison.GTE, Comparison.GT):
            run.note_bound(right)
        if right is None and is_gradient(node.left) and op in (Comparison.IS, Comparison.ISNOT):
            # Whether a parameter was used at all is no question of accumulation.
            outcome: Any = op is Comparison.ISNOT
        else:
            outcome = _compare_pair(run, op, left, right)
        if outcome is not True:
            result = outcome
            break
        left = right
    compared = [value for value in (left, right) if isinstance(value, v.Data)]
    if result is UNKNOWN and compared:
        return mask_of(compared[0])
    return result


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


def _comprehension(run: State, node: syntax.ListComp | syntax.GeneratorExp | syntax.SetComp, scope: v.Scope) -> Any:
    return _comprehended(run, node.elt, node.generators, scope)


def _comprehended(
    run: State, elt: syntax.Expression, generators: Sequence[syntax.Comprehension], scope: v.Scope
) -> Any:
    generator, *inner_generators = generators
    if not inner_generators and run.reach.backward(elt):
        run.execute((_loop_of(elt, generator),), v.Scope(outer=scope))
        return UNKNOWN
    source = evaluate(run, generator.iter, scope)
    inner = v.Scope(outer=scope)

    def element(of: Any) -> Any:
        assign(run, generator.target, of, inner)
        return _comprehended(run, elt, inner_generators, inner) if inner_generators else evaluate(run, elt, inner)

    if isinstance(source, (list, tuple)) and v.all_parameters(source):
        source = v.united(source)
    if isinstance(source, v.Parameters):
        # What is made of them is as good as they are; what is done to their gradients counts.
        chosen = _chosen(run, source, generator, inner)
        made = element(chosen)
        return made if isinstance(made, (v.Gradient, v.Parameters)) else chosen
    if inner_generators:
        return _flattened(run, source, element)
    if isinstance(source, v.Chunks):
        made = element(source.piece)
        return source if v.is_data(made) else [made] * source.count
    if isinstance(source, v.Loader):
        return _of_every_batch(run, elt, generator.target, source, scope)
    if isinstance(source, Tensor):
        # The losses that a model returned in a dictionary, say.
        return element(source)
    items = items_of(run, source, limit=v.LONGEST_LIST)
    if items is None:
        if any(is_gradient(part) for part in walk(elt)):
            element(Symbol())
        return UNKNOWN
    results: list[Any] = []
    for number, item in enumerate(items):
        assign(run, generator.target, item, inner)
        if all(choose(run, test, inner, ()) for test in generator.ifs):
            with run.calls.in_turn(number):
                results.append(evaluate(run, elt, inner))
    return results


@lru_cache(maxsize=64)
def _loop_of(elt: syntax.Expression, generator: syntax.Comprehension) -> syntax.For:
    """The loop that a comprehension is which makes gradients; the same each time."""
    where, origin = generator.where, generator.origin
    body: syntax.Statement = syntax.Expr(elt.where, elt.origin, elt)
    for test in reversed(generator.ifs):
        body = syntax.If(test.where, test.origin, test, (body,), ())
    return syntax.For(where, origin, generator.target, generator.iter, (body,), ())


def _chosen(run: State, source: v.Parameters, generator: syntax.Comprehension, scope: v.Scope) -> v.Parameters:
    """The parameters of a comprehension's source that its conditions choose."""
    assign(run, generator.target, source, scope)
    for test in generator.ifs:
        if settled(run, test, scope) is None:
            source = source.chosen(text_of(test))
    return source


def _flattened(run: State, source: Any, element: Callable[[Any], Any]) -> Any:
    """What several ``for`` in one comprehension make: the parameters of several models, or nothing that is known."""
    items = items_of(run, source, limit=v.LONGEST_LIST)
    pieces = [element(item) for item in ([Symbol()] if items is None else items)]
    return v.united(pieces) if v.all_parameters(pieces) else UNKNOWN


def _dict_comprehension(run: State, node: syntax.DictComp, scope: v.Scope) -> Any:
    """``{k: t.to(device) for k, t in batch.items()}`` is a batch still; what is made of other items has their keys."""
    generator, *others = node.generators
    source = evaluate(run, generator.iter, scope)
    if v.is_data(source):
        return v.Data(v.rows_in(source))
    items = None if others else items_of(run, source, limit=v.LONGEST_LIST)
    if items is None:
        return UNKNOWN
    inner = v.Scope(outer=scope)
    made: dict[Any, Any] = {}
    for number, item in enumerate(items):
        assign(run, generator.target, item, inner)
        if all(choose(run, test, inner, ()) for test in generator.ifs):
            key = v.key_of(evaluate(run, node.key, inner), text_of(node.key))
            with run.calls.in_turn(number):
                made[key] = evaluate(run, node.value, inner)
    return made


def _of_every_batch(
    run: State, element: syntax.Expression, target: syntax.Expression, loader: v.Loader, scope: v.Scope
) -> Any:
    """What a comprehension makes of a loader's batches: batches again, or something that is counted of each."""
    inner = v.Scope(outer=scope)

    def of(batch: v.Data) -> Any:
        assign(run, target, batch, inner)
        return evaluate(run, element, inner)

    value = of(v.Data(loader.rows))
    if isinstance(value, Num):
        if loader.length is None or loader.length > v.LONGEST_LIST:
            return UNKNOWN
        batches = batches_of(loader, loader.length)
        each = {batch: of(batch) for batch in dict.fromkeys(batches)}
        return [each[batch] for batch in batches]
    return replace(loader, length=length_of(run, loader)) if loader.length is not None else loader


def _lambda(run: State, node: syntax.Lambda, scope: v.Scope) -> Any:
    return v.Function(node, scope)


def _named(run: State, node: syntax.NamedExpr, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope)
    assign(run, node.target, value, scope)
    return value


def _call(run: State, node: syntax.Call, scope: v.Scope) -> Any:
    return call(run, node, scope)


def _await(run: State, node: syntax.Await, scope: v.Scope) -> Any:
    return evaluate(run, node.value, scope)


def _yield(run: State, node: syntax.Yield, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope) if node.value is not None else None
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
            shown(run, part.value, [evaluate(run, part.value, scope)])
    return UNKNOWN


_HANDLERS: dict[type[syntax.Expression], Callable[[State, Any, v.Scope], Any]] = {
    syntax.Constant: _constant,
    syntax.Name: _name,
    syntax.Attribute: _attribute,
    syntax.Subscript: _subscript,
    syntax.BinOp: _binary,
    syntax.UnaryOp: _unary,
    syntax.BoolOp: _boolean,
    syntax.Compare: _compare,
    syntax.IfExp: _conditional,
    syntax.List: _collection,
    syntax.Tuple: _collection,
    syntax.Set: _collection,
    syntax.Dict: _dict,
    syntax.ListComp: _comprehension,
    syntax.GeneratorExp: _comprehension,
    syntax.SetComp: _comprehension,
    syntax.DictComp: _dict_comprehension,
    syntax.Lambda: _lambda,
    syntax.NamedExpr: _named,
    syntax.Call: _call,
    syntax.Await: _await,
    syntax.Yield: _yield,
    syntax.YieldFrom: _yield_from,
    syntax.JoinedStr: _formatted,
}

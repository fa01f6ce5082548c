"""Expressions of a training loop, evaluated as far as the source tells."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Factor, Operation, Purpose, Reduction
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.calls import call
from gradcheck_accum.lint.values import Num, Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

UNKNOWN = Symbol()

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(run: Interpreter, node: ast.expr, scope: v.Scope) -> Any:
    """The value of an expression; `UNKNOWN` or a named symbol where the source does not tell."""
    run.spend()
    handler = _HANDLERS.get(type(node))
    value = run.resolve(handler(run, node, scope)) if handler else UNKNOWN
    if isinstance(value, Tensor) and not value.is_located:
        return value.located(run.recorder.locate(node))
    return value


def _constant(run: Interpreter, node: ast.Constant, scope: v.Scope) -> Any:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Num(value)
    return value if isinstance(value, (str, bool, type(None))) else UNKNOWN


def _name(run: Interpreter, node: ast.Name, scope: v.Scope) -> Any:
    holder = scope.find(node.id)
    return holder.names[node.id] if holder else Symbol(node.id)


def _attribute(run: Interpreter, node: ast.Attribute, scope: v.Scope) -> Any:
    return attribute(run, evaluate(run, node.value, scope), node.attr)


def attribute(run: Interpreter, value: Any, name: str) -> Any:
    """``value.name``."""
    match value:
        case v.Instance():
            if name in value.attributes:
                return value.attributes[name]
            method = run.find_method(value.cls, name)
            if method is not None:
                function = v.Function(method, value.cls.scope, value)
                return run.call_function(function, [], {}) if _is_property(method) else function
            held = _class_constant(run, value.cls, name)
            return held if held is not None else Symbol(f"{value.cls.node.name}.{name}")
        case v.Class():
            held = _class_constant(run, value, name)
            return held if held is not None else Symbol(f"{value.node.name}.{name}")
        case v.Reference():
            return v.Reference(f"{value.path}.{name}")
        case Tensor():
            if name == "grad":
                return UNKNOWN
            if name in {"data"}:
                return UNKNOWN
            parts = tuple(v.Part(f".{name}", Reduction.MEAN, (), part.micro_batch) for part in value.parts[:1])
            return Tensor(parts, value.models)
        case v.Data():
            return ("shape", value) if name == "shape" else value
        case v.Parameters() if name == "grad":
            return v.Gradient(value.sources)
        case v.Gradient():
            return value
        case v.Optimizer() if name == "param_groups":
            return [{"params": v.Parameters(value.sources)}]
        case v.Loader() if name in {"dataset", "sampler", "batch_sampler"}:
            return UNKNOWN
        case Symbol():
            if name == "param_groups":
                return [{"params": v.Parameters(None)}]
            return value.member(name)
    return UNKNOWN


def _is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(d, ast.Name) and d.id in {"property", "cached_property"} for d in decorators)


def _class_constant(run: Interpreter, cls: v.Class, name: str) -> Any:
    for statement in cls.node.body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return evaluate(run, statement.value, cls.scope)
    return None


def _subscript(run: Interpreter, node: ast.Subscript, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope)
    index = UNKNOWN if isinstance(node.slice, ast.Slice) else evaluate(run, node.slice, scope)
    match value:
        case ("shape", v.Data() as data):
            return run.rows_of(data) if isinstance(index, Num) and index.value == 0 else UNKNOWN
        case list() | tuple() if isinstance(index, Num) and isinstance(index.value, int):
            return value[index.value] if -len(value) <= index.value < len(value) else UNKNOWN
        case list() | tuple() if isinstance(node.slice, ast.Slice):
            return _slice(run, value, node.slice, scope)
        case dict():
            if isinstance(index, str) and index in value:
                return value[index]
            return UNKNOWN
        case v.Data():
            if isinstance(node.slice, ast.Slice):
                bounds = [evaluate(run, b, scope) for b in (node.slice.lower, node.slice.upper) if b is not None]
                run.slice_of_data(bounds)
            return v.Data()
        case v.Loader():
            return _slice_of_loader(run, value, node.slice, scope)
        case Tensor():
            return attribute(run, value, str(index) if isinstance(index, str) else "item")
        case v.Parameters() | v.Gradient():
            return value
        case Symbol():
            if isinstance(index, str):
                return value.member(index)
            return Symbol()
    return UNKNOWN


def _slice(run: Interpreter, items: Any, node: ast.Slice, scope: v.Scope) -> Any:
    bounds: list[int | None] = []
    for bound in (node.lower, node.upper, node.step):
        number = evaluate(run, bound, scope) if bound is not None else None
        if number is not None and not (isinstance(number, Num) and isinstance(number.value, int)):
            return UNKNOWN
        bounds.append(number.value if isinstance(number, Num) else None)  # type: ignore[arg-type]
    return items[slice(*bounds)]


def _slice_of_loader(run: Interpreter, loader: v.Loader, index: ast.expr, scope: v.Scope) -> Any:
    """A list of batches, sliced: the micro-batches of one window, say."""
    if not isinstance(index, ast.Slice):
        run.recorder.draw()
        return v.Data()
    return _slice(run, [v.Data()] * run.length_of(loader), index, scope)


def _binary(run: Interpreter, node: ast.BinOp, scope: v.Scope) -> Any:
    left, right = evaluate(run, node.left, scope), evaluate(run, node.right, scope)
    if isinstance(node.op, ast.Mod):
        run.note_count(node.right, right)
    return binary(run, node.op, left, right)


def binary(run: Interpreter, op: ast.operator, left: Any, right: Any) -> Any:
    """``left op right``."""
    if isinstance(left, Num) and isinstance(op, (ast.Mod, ast.FloorDiv)):
        right = run.bind_steps(right)
    if isinstance(left, Num) and isinstance(right, Num):
        return _arithmetic(op, left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return UNKNOWN
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _tensor_arithmetic(run, op, left, right)
    if isinstance(op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
        return left + right
    if isinstance(op, ast.Mult) and isinstance(left, list) and isinstance(right, Num):
        return left * right.value if isinstance(right.value, int) and 0 <= right.value <= 10_000 else UNKNOWN
    if isinstance(left, v.Parameters) and isinstance(right, v.Parameters):
        known = left.sources is not None and right.sources is not None
        return v.Parameters(left.sources | right.sources if known else None)  # type: ignore[operator]
    if isinstance(left, v.Gradient) or isinstance(right, v.Gradient):
        return UNKNOWN
    if v.is_data(left) or v.is_data(right):
        return Tensor((_fresh(run, "expression"),), elementwise=True)
    if isinstance(left, Symbol) and isinstance(right, Num) and right.tags & {v.STEPS, v.DERIVED} and not left.name:
        # An unnamed result of a call, scaled by K: a loss whose making could not be followed.
        return _tensor_arithmetic(run, op, Tensor((_fresh(run, "loss"),)), right)
    return UNKNOWN


def _fresh(run: Interpreter, name: str) -> v.Part:
    return v.Part(name, Reduction.MEAN, (), run.recorder.micro_batch)


def _arithmetic(op: ast.operator, left: Num, right: Num) -> Any:
    try:
        if isinstance(op, ast.Div):
            if isinstance(left.value, float) or isinstance(right.value, float):
                return left.derive(left.value / right.value, right)
            return left.derive(Fraction(left.value) / Fraction(right.value), right)
        if isinstance(op, ast.Pow) and abs(float(right.value)) < 64 and abs(float(left.value)) < 1e6:
            return left.derive(float(left.value) ** float(right.value), right)
        if type(op) in _ARITHMETIC:
            return left.derive(_ARITHMETIC[type(op)](left.value, right.value), right)
    except (ZeroDivisionError, OverflowError, ValueError):
        pass
    return UNKNOWN


def _tensor_arithmetic(run: Interpreter, op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if isinstance(op, (ast.Add, ast.Sub)):
            parts = (*left.parts, *right.parts)
            return Tensor(parts, left.models | right.models, left.grad_scaled or right.grad_scaled)
        if left.elementwise or right.elementwise:
            return Tensor(left.parts, left.models | right.models, left.grad_scaled, elementwise=True)
        return left.scaled(Factor(None))
    tensor, other = (left, right) if isinstance(left, Tensor) else (right, left)
    if isinstance(op, (ast.Add, ast.Sub)):
        return tensor
    if isinstance(op, (ast.Mult, ast.Div)):
        if tensor.elementwise and v.is_data(other):
            return tensor
        inverse = isinstance(op, ast.Div)
        if inverse and tensor is right:
            return tensor.scaled(Factor(None))
        return scaled(run, tensor, other, Operation.DIVIDE if inverse else Operation.MULTIPLY)
    return tensor.scaled(Factor(None))


def scaled(run: Interpreter, tensor: Tensor, other: Any, operation: Operation) -> Tensor:
    """A loss multiplied or divided by a value.

    What divides a sum may count units, of which the interpretation has an assumed number only: a count that was not
    made from it is unknown.
    """
    factor = factor_of(other, operation)
    summed = tensor.elementwise or any(part.reduction is Reduction.SUM for part in tensor.parts)
    counts = operation is Operation.DIVIDE and isinstance(other, Num) and not other.tags & {v.UNITS, v.STEPS, v.DERIVED}
    if summed and counts and not (run.recorder.knows_units and other.value == run.recorder.units):
        return tensor.scaled(Factor(None, operation))
    return tensor.scaled(factor)


def factor_of(value: Any, operation: Operation) -> Factor:
    """What multiplying or dividing by ``value`` does to a loss."""
    if not isinstance(value, Num) or (operation is Operation.DIVIDE and value.value == 0):
        return Factor(None, operation)
    number = float(value.value)
    purpose = Purpose.ACCUMULATION if value.tags & {v.STEPS, v.DERIVED} else Purpose.UNKNOWN
    if operation is Operation.DIVIDE:
        return Factor(1 / number, operation, purpose)
    # A quotient that was kept in a variable (scale = 1 / K) is still a division.
    operation = Operation.DIVIDE if isinstance(value.value, Fraction) else operation
    return Factor(number, operation, purpose)


def _unary(run: Interpreter, node: ast.UnaryOp, scope: v.Scope) -> Any:
    value = evaluate(run, node.operand, scope)
    if isinstance(node.op, ast.Not):
        truth = run.truth(value)
        return UNKNOWN if truth is None else not truth
    if isinstance(value, Num):
        return value.derive(-value.value) if isinstance(node.op, ast.USub) else value
    return value if isinstance(value, Tensor) else UNKNOWN


def _boolean(run: Interpreter, node: ast.BoolOp, scope: v.Scope) -> Any:
    wants = isinstance(node.op, ast.Or)
    last: Any = UNKNOWN
    unknown = False
    for operand in node.values:
        last = evaluate(run, operand, scope)
        truth = run.truth(last)
        if truth is None:
            truth = run.decide(operand, last)
        if truth is None:
            unknown = True
        elif truth is wants:
            return last if run.truth(last) is not None else truth
    if unknown:
        return UNKNOWN
    return last if run.truth(last) is not None else not wants


def _compare(run: Interpreter, node: ast.Compare, scope: v.Scope) -> Any:
    left = evaluate(run, node.left, scope)
    result: Any = True
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(run, right_node, scope)
        literal = isinstance(node.left, ast.Constant) or isinstance(right_node, ast.Constant)
        left, right = run.bind_in_comparison(left, right, op, literal)
        if isinstance(op, (ast.Eq, ast.GtE)):
            run.note_count(right_node, right)
        outcome = _compare_pair(run, op, left, right)
        if outcome is not True:
            result = outcome
            break
        left = right
    return result


def _compare_pair(run: Interpreter, op: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if right is None and not isinstance(left, Symbol):
            return (left is None) == isinstance(op, ast.Is)
        return UNKNOWN
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(right, (list, tuple, dict)) and isinstance(left, str):
            return (left in right) == isinstance(op, ast.In)
        return UNKNOWN
    if isinstance(left, Num) and isinstance(right, Num):
        return bool(_COMPARISONS[type(op)](left.value, right.value))
    if isinstance(left, (str, bool)) and isinstance(right, (str, bool)) and isinstance(op, (ast.Eq, ast.NotEq)):
        return bool(_COMPARISONS[type(op)](left, right))
    return UNKNOWN


def _conditional(run: Interpreter, node: ast.IfExp, scope: v.Scope) -> Any:
    chosen = run.choose(node.test, scope, ())
    return evaluate(run, node.body if chosen else node.orelse, scope)


def _collection(run: Interpreter, node: ast.List | ast.Tuple | ast.Set, scope: v.Scope) -> Any:
    items: list[Any] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            value = evaluate(run, element.value, scope)
            items.extend(value if isinstance(value, (list, tuple)) else [value])
        else:
            items.append(evaluate(run, element, scope))
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(run: Interpreter, node: ast.Dict, scope: v.Scope) -> Any:
    pairs: dict[str, Any] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        value = evaluate(run, value_node, scope)
        key = evaluate(run, key_node, scope) if key_node is not None else None
        if isinstance(key, str):
            pairs[key] = value
    return pairs


def _comprehension(run: Interpreter, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: v.Scope) -> Any:
    if len(node.generators) != 1:
        return UNKNOWN
    generator = node.generators[0]
    source = evaluate(run, generator.iter, scope)
    if isinstance(source, (v.Parameters, v.Chunks)):
        return source
    if isinstance(source, (list, tuple)) and source and all(isinstance(item, v.Parameters) for item in source):
        return source[0]
    if isinstance(source, v.Loader) and not run.reaches_backward(node.elt):
        return v.Loader(run.length_of(source), source.rows) if source.length is not None else source
    items = run.items_of(source, limit=10_000)
    if items is None:
        return UNKNOWN
    inner = v.Scope(outer=scope)
    results: list[Any] = []
    for item in items:
        run.assign(generator.target, item, inner)
        if all(run.choose(test, inner, ()) for test in generator.ifs):
            results.append(evaluate(run, node.elt, inner))
    return results


def _lambda(run: Interpreter, node: ast.Lambda, scope: v.Scope) -> Any:
    return v.Function(node, scope)


def _named(run: Interpreter, node: ast.NamedExpr, scope: v.Scope) -> Any:
    value = evaluate(run, node.value, scope)
    run.assign(node.target, value, scope)
    return value


def _call(run: Interpreter, node: ast.Call, scope: v.Scope) -> Any:
    return call(run, node, scope)


def _await(run: Interpreter, node: ast.Await, scope: v.Scope) -> Any:
    return evaluate(run, node.value, scope)


def _formatted(run: Interpreter, node: ast.JoinedStr, scope: v.Scope) -> Any:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            # A whole epoch may be run inside the braces.
            evaluate(run, part.value, scope)
    return UNKNOWN


_HANDLERS: dict[type[ast.expr], Callable[[Interpreter, Any, v.Scope], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.List: _collection,
    ast.Tuple: _collection,
    ast.Set: _collection,
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.SetComp: _comprehension,
    ast.Lambda: _lambda,
    ast.NamedExpr: _named,
    ast.Call: _call,
    ast.Await: _await,
    ast.JoinedStr: _formatted,
}

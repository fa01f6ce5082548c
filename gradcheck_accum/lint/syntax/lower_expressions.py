"""Expressions of a LibCST tree in the syntax of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.lower_strings import STRINGS
from gradcheck_accum.lint.syntax.lowering import Handler, Lowering
from gradcheck_accum.lint.syntax.node import NOWHERE, Node
from gradcheck_accum.lint.syntax.operators import Comparison, Junction, Operator, UnaryOperator

_WORDS = {"True": True, "False": False, "None": None}

# Constants and names


def _name(low: Lowering, node: cst.Name) -> Node:
    if node.value in _WORDS:
        return s.Constant(low.where(node), node, _WORDS[node.value])
    return s.Name(low.where(node), node, node.value)


def _integer(low: Lowering, node: cst.Integer) -> Node:
    text = node.value
    return s.Constant(low.where(node), node, int(text, 10 if text.strip("0_") == "" else 0))


def _float(low: Lowering, node: cst.Float) -> Node:
    return s.Constant(low.where(node), node, float(node.value))


def _imaginary(low: Lowering, node: cst.Imaginary) -> Node:
    return s.Constant(low.where(node), node, complex(node.value.replace("J", "j")))


def _ellipsis(low: Lowering, node: cst.Ellipsis) -> Node:
    return s.Constant(low.where(node), node, ...)


def _attribute(low: Lowering, node: cst.Attribute) -> Node:
    return s.Attribute(low.where(node), node, low.one(node.value), node.attr.value, node in low.stored)


# Signs

_OPERATORS = {
    cst.Add: Operator.ADD,
    cst.Subtract: Operator.SUB,
    cst.Multiply: Operator.MULT,
    cst.MatrixMultiply: Operator.MATMULT,
    cst.Divide: Operator.DIV,
    cst.Modulo: Operator.MOD,
    cst.FloorDivide: Operator.FLOORDIV,
    cst.Power: Operator.POW,
    cst.LeftShift: Operator.LSHIFT,
    cst.RightShift: Operator.RSHIFT,
    cst.BitOr: Operator.BITOR,
    cst.BitXor: Operator.BITXOR,
    cst.BitAnd: Operator.BITAND,
}
_UNARY = {
    cst.Not: UnaryOperator.NOT,
    cst.Minus: UnaryOperator.USUB,
    cst.Plus: UnaryOperator.UADD,
    cst.BitInvert: UnaryOperator.INVERT,
}
_JUNCTIONS = {cst.And: Junction.AND, cst.Or: Junction.OR}
_COMPARISONS = {
    cst.Equal: Comparison.EQ,
    cst.NotEqual: Comparison.NOTEQ,
    cst.LessThan: Comparison.LT,
    cst.LessThanEqual: Comparison.LTE,
    cst.GreaterThan: Comparison.GT,
    cst.GreaterThanEqual: Comparison.GTE,
    cst.Is: Comparison.IS,
    cst.IsNot: Comparison.ISNOT,
    cst.In: Comparison.IN,
    cst.NotIn: Comparison.NOTIN,
}


def _binary(low: Lowering, node: cst.BinaryOperation) -> Node:
    operator = _OPERATORS[type(node.operator)]
    return s.BinOp(low.where(node), node, low.one(node.left), operator, low.one(node.right))


def _unary(low: Lowering, node: cst.UnaryOperation) -> Node:
    return s.UnaryOp(low.where(node), node, _UNARY[type(node.operator)], low.one(node.expression))


def _boolean(low: Lowering, node: cst.BooleanOperation) -> Node:
    """``a or b or c`` is one; LibCST reads ``(a or b) or c``."""
    kind = type(node.operator)
    values: list[cst.BaseExpression] = [node.right]
    left = node.left
    while isinstance(left, cst.BooleanOperation) and type(left.operator) is kind and not left.lpar:
        values.append(left.right)
        left = left.left
    values.append(left)
    return s.BoolOp(low.where(node), node, _JUNCTIONS[kind], low.all(reversed(values)))


def _compare(low: Lowering, node: cst.Comparison) -> Node:
    signs = tuple(_COMPARISONS[type(target.operator)] for target in node.comparisons)
    others = low.all(target.comparator for target in node.comparisons)
    return s.Compare(low.where(node), node, low.one(node.left), signs, others)


# Calls and functions


def arguments(low: Lowering, given: Sequence[cst.Arg]) -> tuple[tuple[s.Expression, ...], tuple[s.Keyword, ...]]:
    """What is given to a call or a class, without and with names."""
    plain: list[s.Expression] = []
    named: list[s.Keyword] = []
    for arg in given:
        if arg.keyword is not None or arg.star == "**":
            keyword = arg.keyword.value if arg.keyword is not None else None
            named.append(s.Keyword(low.where(arg), arg, keyword, low.one(arg.value)))
        elif arg.star:
            plain.append(s.Starred(low.where(arg), arg, low.one(arg.value)))
        else:
            plain.append(low.one(arg.value))
    return tuple(plain), tuple(named)


def _call(low: Lowering, node: cst.Call) -> Node:
    where = low.where(node)
    func = low.one(node.func)
    match node.args:
        case [cst.Arg(value=cst.GeneratorExp(lpar=[]) as generator, comma=cst.MaybeSentinel.DEFAULT)]:
            # The parentheses are those of both.
            start, end = low.places.text.index("(", low.places.whole(node.func)[1]), low.places.span(node)[1]
            return s.Call(where, node, func, (_generator(low, generator, low.places.where(start, end)),), ())
    return s.Call(where, node, func, *arguments(low, node.args))


def parameters(low: Lowering, node: cst.Parameters) -> s.Arguments:
    """The parameters of a function."""
    positional = [*node.posonly_params, *node.params]
    starred = node.star_arg if isinstance(node.star_arg, cst.Param) else None
    return s.Arguments(
        NOWHERE,
        node,
        low.all(node.posonly_params),
        low.all(node.params),
        low.one(starred),
        low.all(node.kwonly_params),
        tuple(low.one(p.default) for p in node.kwonly_params),
        low.one(node.star_kwarg),
        tuple(low.one(p.default) for p in positional if p.default is not None),
    )


def _parameter(low: Lowering, node: cst.Param) -> Node:
    start, end = low.places.span(node.name)
    annotation = node.annotation.annotation if node.annotation is not None else None
    if annotation is not None:
        end = low.places.whole(annotation)[1]
    return s.Arg(low.places.where(start, end), node, node.name.value, low.one(annotation))


def _lambda(low: Lowering, node: cst.Lambda) -> Node:
    return s.Lambda(low.where(node), node, parameters(low, node.params), low.one(node.body))


# Collections


def _tuple(low: Lowering, node: cst.Tuple) -> Node:
    return s.Tuple(low.places.bracketed(node), node, _elements(low, node.elements))


def _list(low: Lowering, node: cst.List) -> Node:
    return s.List(low.where(node), node, _elements(low, node.elements))


def _set(low: Lowering, node: cst.Set) -> Node:
    return s.Set(low.where(node), node, _elements(low, node.elements))


def _elements(low: Lowering, elements: Sequence[cst.BaseElement]) -> tuple[Any, ...]:
    return low.all(e if isinstance(e, cst.StarredElement) else e.value for e in elements)


def _starred(low: Lowering, node: cst.StarredElement) -> Node:
    return s.Starred(low.where(node), node, low.one(node.value))


def _dict(low: Lowering, node: cst.Dict) -> Node:
    keys = tuple(low.one(e.key) if isinstance(e, cst.DictElement) else None for e in node.elements)
    return s.Dict(low.where(node), node, keys, low.all(e.value for e in node.elements))


def _comprehensions(low: Lowering, node: cst.CompFor | None) -> Iterator[s.Comprehension]:
    while node is not None:
        target, source, tests = low.target(node.target), low.one(node.iter), low.all(i.test for i in node.ifs)
        yield s.Comprehension(NOWHERE, node, target, source, tests)
        node = node.inner_for_in


def _list_comprehension(low: Lowering, node: cst.ListComp) -> Node:
    return s.ListComp(low.where(node), node, low.one(node.elt), tuple(_comprehensions(low, node.for_in)))


def _set_comprehension(low: Lowering, node: cst.SetComp) -> Node:
    return s.SetComp(low.where(node), node, low.one(node.elt), tuple(_comprehensions(low, node.for_in)))


def _generator(low: Lowering, node: cst.GeneratorExp, where: Location | None = None) -> s.GeneratorExp:
    place = where or low.places.bracketed(node)
    return s.GeneratorExp(place, node, low.one(node.elt), tuple(_comprehensions(low, node.for_in)))


def _dict_comprehension(low: Lowering, node: cst.DictComp) -> Node:
    generators = tuple(_comprehensions(low, node.for_in))
    return s.DictComp(low.where(node), node, low.one(node.key), low.one(node.value), generators)


# Items


def _subscript(low: Lowering, node: cst.Subscript) -> Node:
    elements = [_index(low, element) for element in node.slice]
    index = elements[0]
    first, last = node.slice[0], node.slice[-1]
    if len(elements) > 1 or isinstance(first.comma, cst.Comma) or isinstance(index, s.Starred):
        start, end = low.places.span(first)[0], _end(low, last)
        if isinstance(last.comma, cst.Comma):
            end = low.places.text.index(",", end) + 1
        index = s.Tuple(low.places.where(start, end), None, tuple(elements))
    return s.Subscript(low.where(node), node, low.one(node.value), index)


def _index(low: Lowering, element: cst.SubscriptElement) -> s.Expression:
    part = element.slice
    if isinstance(part, cst.Slice):
        bounds = low.one(part.lower), low.one(part.upper), low.one(part.step)
        place = low.places.where(low.places.span(element)[0], _end(low, element))
        return s.Slice(place, part, *bounds)
    value: s.Expression = low.one(part.value)  # type: ignore[attr-defined]
    return s.Starred(low.where(element), part, value) if getattr(part, "star", None) else value


def _end(low: Lowering, element: cst.SubscriptElement) -> int:
    """Where one ends: to LibCST the white space after a slice's last colon is the slice's."""
    start, end = low.places.span(element)
    return start + len(low.places.text[start:end].rstrip())


# The rest


def _conditional(low: Lowering, node: cst.IfExp) -> Node:
    return s.IfExp(low.where(node), node, low.one(node.test), low.one(node.body), low.one(node.orelse))


def _named(low: Lowering, node: cst.NamedExpr) -> Node:
    return s.NamedExpr(low.where(node), node, low.target(node.target), low.one(node.value))


def _await(low: Lowering, node: cst.Await) -> Node:
    return s.Await(low.where(node), node, low.one(node.expression))


def _yield(low: Lowering, node: cst.Yield) -> Node:
    if isinstance(node.value, cst.From):
        return s.YieldFrom(low.where(node), node, low.one(node.value.item))
    return s.Yield(low.where(node), node, low.one(node.value))


EXPRESSIONS: dict[type[cst.CSTNode], Handler] = {
    **STRINGS,
    cst.Name: _name,
    cst.Integer: _integer,
    cst.Float: _float,
    cst.Imaginary: _imaginary,
    cst.Ellipsis: _ellipsis,
    cst.Attribute: _attribute,
    cst.Subscript: _subscript,
    cst.BinaryOperation: _binary,
    cst.UnaryOperation: _unary,
    cst.BooleanOperation: _boolean,
    cst.Comparison: _compare,
    cst.Call: _call,
    cst.Lambda: _lambda,
    cst.Param: _parameter,
    cst.Tuple: _tuple,
    cst.List: _list,
    cst.Set: _set,
    cst.StarredElement: _starred,
    cst.Dict: _dict,
    cst.ListComp: _list_comprehension,
    cst.SetComp: _set_comprehension,
    cst.GeneratorExp: _generator,
    cst.DictComp: _dict_comprehension,
    cst.IfExp: _conditional,
    cst.NamedExpr: _named,
    cst.Await: _await,
    cst.Yield: _yield,
}

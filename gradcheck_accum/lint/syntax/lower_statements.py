"""Statements of a LibCST tree in the syntax of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.lower_expressions import arguments, parameters
from gradcheck_accum.lint.syntax.lowering import Handler, Lowering
from gradcheck_accum.lint.syntax.node import NOWHERE, Node
from gradcheck_accum.lint.syntax.operators import Operator

_OPERATORS = {
    cst.AddAssign: Operator.ADD,
    cst.SubtractAssign: Operator.SUB,
    cst.MultiplyAssign: Operator.MULT,
    cst.MatrixMultiplyAssign: Operator.MATMULT,
    cst.DivideAssign: Operator.DIV,
    cst.ModuloAssign: Operator.MOD,
    cst.FloorDivideAssign: Operator.FLOORDIV,
    cst.PowerAssign: Operator.POW,
    cst.LeftShiftAssign: Operator.LSHIFT,
    cst.RightShiftAssign: Operator.RSHIFT,
    cst.BitOrAssign: Operator.BITOR,
    cst.BitXorAssign: Operator.BITXOR,
    cst.BitAndAssign: Operator.BITAND,
}

# Simple statements


def _expr(low: Lowering, node: cst.Expr) -> Node:
    return s.Expr(low.where(node), node, low.one(node.value))


def _assign(low: Lowering, node: cst.Assign) -> Node:
    targets = tuple(low.target(target.target) for target in node.targets)
    return s.Assign(low.where(node), node, targets, low.one(node.value))


def _augmented(low: Lowering, node: cst.AugAssign) -> Node:
    operator = _OPERATORS[type(node.operator)]
    return s.AugAssign(low.where(node), node, low.target(node.target), operator, low.one(node.value))


def _annotated(low: Lowering, node: cst.AnnAssign) -> Node:
    parts = low.target(node.target), low.one(node.annotation.annotation), low.one(node.value)
    return s.AnnAssign(low.where(node), node, *parts)


def _return(low: Lowering, node: cst.Return) -> Node:
    return s.Return(low.where(node), node, low.one(node.value))


def _raise(low: Lowering, node: cst.Raise) -> Node:
    cause = node.cause.item if node.cause is not None else None
    return s.Raise(low.where(node), node, low.one(node.exc), low.one(cause))


def _assert(low: Lowering, node: cst.Assert) -> Node:
    return s.Assert(low.where(node), node, low.one(node.test), low.one(node.msg))


def _delete(low: Lowering, node: cst.Del) -> Node:
    target = node.target
    if isinstance(target, cst.Tuple) and not target.lpar:
        return s.Delete(low.where(node), node, low.all(element.value for element in target.elements))
    return s.Delete(low.where(node), node, (low.one(target),))


def _pass(low: Lowering, node: cst.Pass) -> Node:
    return s.Pass(low.where(node), node)


def _break(low: Lowering, node: cst.Break) -> Node:
    return s.Break(low.where(node), node)


def _continue(low: Lowering, node: cst.Continue) -> Node:
    return s.Continue(low.where(node), node)


def _global(low: Lowering, node: cst.Global | cst.Nonlocal) -> Node:
    return s.Global(low.where(node), node, tuple(item.name.value for item in node.names))


def _import(low: Lowering, node: cst.Import) -> Node:
    return s.Import(low.where(node), node, low.all(node.names))


def _import_from(low: Lowering, node: cst.ImportFrom) -> Node:
    names = [node.names] if isinstance(node.names, cst.ImportStar) else node.names
    module = _dotted(node.module) if node.module is not None else None
    return s.ImportFrom(low.where(node), node, module, low.all(names), len(node.relative))


def _alias(low: Lowering, node: cst.ImportAlias) -> Node:
    asname = node.asname.name.value if node.asname is not None else None  # type: ignore[union-attr]
    return s.Alias(low.where(node), node, _dotted(node.name), asname)


def _star(low: Lowering, node: cst.ImportStar) -> Node:
    return s.Alias(low.where(node), node, "*", None)


def _dotted(node: cst.BaseExpression) -> str:
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    return ".".join(reversed([*parts, node.value]))  # type: ignore[attr-defined]


def _type_alias(low: Lowering, node: cst.TypeAlias) -> Node:
    return s.TypeAlias(low.where(node), node, low.one(node.name), _types(low, node), low.one(node.value))


def _types(low: Lowering, node: Any) -> tuple[s.TypeParam, ...]:
    parameters: cst.TypeParameters | None = node.type_parameters
    return () if parameters is None else low.all(parameters.params)


def _type_param(low: Lowering, node: cst.TypeParam) -> Node:
    start, end = low.places.span(node.param)
    bound = getattr(node.param, "bound", None)
    if node.default is not None:
        end = low.places.whole(node.default)[1]
    return s.TypeParam(low.places.where(start, end), node, low.one(bound), low.one(node.default))


# Compound statements


def _otherwise(low: Lowering, node: cst.If | cst.Else | cst.Finally | None) -> tuple[s.Statement, ...]:
    """What follows a body: nothing, an ``elif`` or a body of its own."""
    if node is None:
        return ()
    return (low.one(node),) if isinstance(node, cst.If) else low.body(node.body)


def _if(low: Lowering, node: cst.If) -> Node:
    test, body, orelse = low.one(node.test), low.body(node.body), _otherwise(low, node.orelse)
    return s.If(low.until(node, (*body, *orelse)[-1]), node, test, body, orelse)


def _for(low: Lowering, node: cst.For) -> Node:
    target, source = low.target(node.target), low.one(node.iter)
    body, orelse = low.body(node.body), _otherwise(low, node.orelse)
    return s.For(low.until(node, (*body, *orelse)[-1]), node, target, source, body, orelse)


def _while(low: Lowering, node: cst.While) -> Node:
    test, body, orelse = low.one(node.test), low.body(node.body), _otherwise(low, node.orelse)
    return s.While(low.until(node, (*body, *orelse)[-1]), node, test, body, orelse)


def _with(low: Lowering, node: cst.With) -> Node:
    items, body = low.all(node.items), low.body(node.body)
    return s.With(low.until(node, body[-1]), node, items, body)


def _with_item(low: Lowering, node: cst.WithItem) -> Node:
    bound = low.target(node.asname.name) if node.asname is not None else None
    return s.WithItem(NOWHERE, node, low.one(node.item), bound)


def _try(low: Lowering, node: cst.Try | cst.TryStar) -> Node:
    body, handlers = low.body(node.body), low.all(node.handlers)
    orelse, finalbody = _otherwise(low, node.orelse), _otherwise(low, node.finalbody)
    last = (*body, *handlers, *orelse, *finalbody)[-1]
    return s.Try(low.until(node, last), node, body, handlers, orelse, finalbody)


def _handler(low: Lowering, node: cst.ExceptHandler | cst.ExceptStarHandler) -> Node:
    name = node.name.name.value if node.name is not None else None  # type: ignore[union-attr]
    kind, body = low.one(node.type), low.body(node.body)
    return s.ExceptHandler(low.until(node, body[-1]), node, kind, name, body)


def _match(low: Lowering, node: cst.Match) -> Node:
    subject, cases = low.one(node.subject), low.all(node.cases)
    return s.Match(low.until(node, cases[-1].body[-1]), node, subject, cases)


def _match_case(low: Lowering, node: cst.MatchCase) -> Node:
    return s.MatchCase(NOWHERE, node, low.one(node.pattern), low.one(node.guard), low.body(node.body))


def _decorators(low: Lowering, decorators: Sequence[cst.Decorator]) -> tuple[s.Expression, ...]:
    return low.all(decorator.decorator for decorator in decorators)


def _function(low: Lowering, node: cst.FunctionDef) -> Node:
    returns = node.returns.annotation if node.returns is not None else None
    args, body, decorators = parameters(low, node.params), low.body(node.body), _decorators(low, node.decorators)
    where = low.until(node, body[-1])
    return s.FunctionDef(where, node, node.name.value, args, body, decorators, low.one(returns), _types(low, node))


def _class(low: Lowering, node: cst.ClassDef) -> Node:
    bases, keywords = arguments(low, [*node.bases, *node.keywords])
    body, decorators = low.body(node.body), _decorators(low, node.decorators)
    where = low.until(node, body[-1])
    return s.ClassDef(where, node, node.name.value, bases, keywords, body, decorators, _types(low, node))


STATEMENTS: dict[type[cst.CSTNode], Handler] = {
    cst.Expr: _expr,
    cst.Assign: _assign,
    cst.AugAssign: _augmented,
    cst.AnnAssign: _annotated,
    cst.Return: _return,
    cst.Raise: _raise,
    cst.Assert: _assert,
    cst.Del: _delete,
    cst.Pass: _pass,
    cst.Break: _break,
    cst.Continue: _continue,
    cst.Global: _global,
    cst.Nonlocal: _global,
    cst.Import: _import,
    cst.ImportFrom: _import_from,
    cst.ImportAlias: _alias,
    cst.ImportStar: _star,
    cst.TypeAlias: _type_alias,
    cst.TypeParam: _type_param,
    cst.If: _if,
    cst.For: _for,
    cst.While: _while,
    cst.With: _with,
    cst.WithItem: _with_item,
    cst.Try: _try,
    cst.TryStar: _try,
    cst.ExceptHandler: _handler,
    cst.ExceptStarHandler: _handler,
    cst.Match: _match,
    cst.MatchCase: _match_case,
    cst.FunctionDef: _function,
    cst.ClassDef: _class,
}

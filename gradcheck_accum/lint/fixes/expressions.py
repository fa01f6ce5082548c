"""Expressions that repairs are made of."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from gradcheck_accum.lint.fixes.script import CannotEdit

_BINDS_TIGHTER = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseString)


def expression(source: str) -> cst.BaseExpression:
    """The expression that a piece of source is."""
    try:
        return cst.parse_expression(source)
    except cst.ParserSyntaxError:
        raise CannotEdit("spread over lines") from None


def integer(node: cst.BaseExpression) -> int | None:
    """The whole number that an expression is, if it is one."""
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def binds_tighter(node: cst.BaseExpression) -> bool:
    """Whether an expression needs no parentheses as an operand of any operator."""
    return bool(node.lpar) or isinstance(node, _BINDS_TIGHTER)


def in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression with one more pair of parentheses around it."""
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def operand(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression as the left side of a division, or with a method behind it."""
    return node if binds_tighter(node) else in_parentheses(node)


def divided(dividend: cst.BaseExpression, divisor: cst.BaseExpression) -> cst.BinaryOperation:
    """One expression divided by another."""
    return cst.BinaryOperation(operand(dividend), cst.Divide(), operand(divisor))


def method_call(node: cst.BaseExpression, name: str, arguments: Sequence[cst.Arg] = ()) -> cst.Call:
    """The call of a method of what an expression is."""
    return cst.Call(cst.Attribute(operand(node), cst.Name(name)), arguments)


def call_statement(node: cst.BaseExpression, name: str, arguments: Sequence[cst.Arg] = ()) -> cst.SimpleStatementLine:
    """The same as a statement of its own."""
    return cst.SimpleStatementLine([cst.Expr(method_call(node, name, arguments))])


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """The positional arguments of a call, up to a starred one."""
    given: list[cst.BaseExpression] = []
    for argument in call.args:
        if argument.keyword is not None or argument.star:
            break
        given.append(argument.value)
    return given

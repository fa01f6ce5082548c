"""The kinds of syntax that a training script is read as: Python's own, without what a loop's meaning does not need.

What is asynchronous is what it is without; ``except*`` is ``except``, ``nonlocal`` is ``global``, and all patterns that
ask for a structure are one kind. Constants hold their values. The names are those of the standard library's `ast`, and
so is the order of the fields.
"""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint.syntax.node import Node
from gradcheck_accum.lint.syntax.operators import Comparison, Junction, Operator, UnaryOperator


class Expression(Node):
    """What has a value."""


class Statement(Node):
    """What is carried out."""


class Pattern(Node):
    """What a value is matched with."""


# Expressions


class Constant(Expression):
    """A number, a string, a word like ``None``."""

    value: Any


class Name(Expression):
    """A name."""

    id: str


class Attribute(Expression):
    """``value.attr``; ``is_stored`` where it is given a value."""

    value: Expression
    attr: str
    is_stored: bool


class Subscript(Expression):
    """``value[slice]``."""

    value: Expression
    slice: Expression


class Slice(Expression):
    """``lower:upper:step``."""

    lower: Expression | None
    upper: Expression | None
    step: Expression | None


class Starred(Expression):
    """``*value``."""

    value: Expression


class Call(Expression):
    """A call."""

    func: Expression
    args: tuple[Expression, ...]
    keywords: tuple[Keyword, ...]


class BinOp(Expression):
    """``left + right``."""

    left: Expression
    op: Operator
    right: Expression


class UnaryOp(Expression):
    """``-operand``."""

    op: UnaryOperator
    operand: Expression


class BoolOp(Expression):
    """``a or b or c``."""

    op: Junction
    values: tuple[Expression, ...]


class Compare(Expression):
    """``left < a < b``."""

    left: Expression
    ops: tuple[Comparison, ...]
    comparators: tuple[Expression, ...]


class IfExp(Expression):
    """``body if test else orelse``."""

    test: Expression
    body: Expression
    orelse: Expression


class NamedExpr(Expression):
    """``target := value``."""

    target: Expression
    value: Expression


class Lambda(Expression):
    """``lambda args: body``."""

    args: Arguments
    body: Expression


class List(Expression):
    """``[a, b]``."""

    elts: tuple[Expression, ...]


class Tuple(Expression):
    """``a, b``."""

    elts: tuple[Expression, ...]


class Set(Expression):
    """``{a, b}``."""

    elts: tuple[Expression, ...]


class Dict(Expression):
    """``{k: v, **d}``; the key of what is unpacked is None."""

    keys: tuple[Expression | None, ...]
    values: tuple[Expression, ...]


class ListComp(Expression):
    """``[elt for ...]``."""

    elt: Expression
    generators: tuple[Comprehension, ...]


class SetComp(Expression):
    """``{elt for ...}``."""

    elt: Expression
    generators: tuple[Comprehension, ...]


class GeneratorExp(Expression):
    """``(elt for ...)``."""

    elt: Expression
    generators: tuple[Comprehension, ...]


class DictComp(Expression):
    """``{key: value for ...}``."""

    key: Expression
    value: Expression
    generators: tuple[Comprehension, ...]


class Await(Expression):
    """``await value``."""

    value: Expression


class Yield(Expression):
    """``yield value``."""

    value: Expression | None


class YieldFrom(Expression):
    """``yield from value``."""

    value: Expression


class JoinedStr(Expression):
    """A string with values in it, and how all of it is written."""

    values: tuple[FormattedValue, ...]
    written: str


# What expressions are made of


class FormattedValue(Node):
    """``{value:format_spec}`` in a string."""

    value: Expression
    format_spec: tuple[FormattedValue, ...]


class Keyword(Node):
    """``arg=value`` in a call; ``**value`` without a name."""

    arg: str | None
    value: Expression


class Comprehension(Node):
    """``for target in iter if ...``."""

    target: Expression
    iter: Expression
    ifs: tuple[Expression, ...]


class Arg(Node):
    """A parameter of a function."""

    arg: str
    annotation: Expression | None


class Arguments(Node):
    """The parameters of a function, with as many defaults at the end as there are."""

    posonlyargs: tuple[Arg, ...]
    args: tuple[Arg, ...]
    vararg: Arg | None
    kwonlyargs: tuple[Arg, ...]
    kw_defaults: tuple[Expression | None, ...]
    kwarg: Arg | None
    defaults: tuple[Expression, ...]


# Statements


class Expr(Statement):
    """An expression that is evaluated for what it does."""

    value: Expression


class Assign(Statement):
    """``a = b = value``."""

    targets: tuple[Expression, ...]
    value: Expression


class AugAssign(Statement):
    """``target += value``."""

    target: Expression
    op: Operator
    value: Expression


class AnnAssign(Statement):
    """``target: annotation = value``."""

    target: Expression
    annotation: Expression
    value: Expression | None


class If(Statement):
    """``if``, with an ``elif`` as another one in ``orelse``."""

    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


class For(Statement):
    """``for``."""

    target: Expression
    iter: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


class While(Statement):
    """``while``."""

    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


class With(Statement):
    """``with``."""

    items: tuple[WithItem, ...]
    body: tuple[Statement, ...]


class Try(Statement):
    """``try``."""

    body: tuple[Statement, ...]
    handlers: tuple[ExceptHandler, ...]
    orelse: tuple[Statement, ...]
    finalbody: tuple[Statement, ...]


class Match(Statement):
    """``match``."""

    subject: Expression
    cases: tuple[MatchCase, ...]


class Return(Statement):
    """``return``."""

    value: Expression | None


class Raise(Statement):
    """``raise exc from cause``."""

    exc: Expression | None
    cause: Expression | None


class Assert(Statement):
    """``assert``."""

    test: Expression
    msg: Expression | None


class Delete(Statement):
    """``del``."""

    targets: tuple[Expression, ...]


class Pass(Statement):
    """``pass``."""


class Break(Statement):
    """``break``."""


class Continue(Statement):
    """``continue``."""


class Global(Statement):
    """``global`` and ``nonlocal``."""

    names: tuple[str, ...]


class Import(Statement):
    """``import``."""

    names: tuple[Alias, ...]


class ImportFrom(Statement):
    """``from module import``, with ``level`` dots."""

    module: str | None
    names: tuple[Alias, ...]
    level: int


class TypeAlias(Statement):
    """``type name = value``."""

    name: Expression
    type_params: tuple[TypeParam, ...]
    value: Expression


class FunctionDef(Statement):
    """A function."""

    name: str
    args: Arguments
    body: tuple[Statement, ...]
    decorator_list: tuple[Expression, ...]
    returns: Expression | None
    type_params: tuple[TypeParam, ...]


class ClassDef(Statement):
    """A class."""

    name: str
    bases: tuple[Expression, ...]
    keywords: tuple[Keyword, ...]
    body: tuple[Statement, ...]
    decorator_list: tuple[Expression, ...]
    type_params: tuple[TypeParam, ...]


# What statements are made of


class Module(Node):
    """A whole file, with its comments in order, and the text that LibCST read, in which everything has its place."""

    body: tuple[Statement, ...]
    comments: tuple[Comment, ...]
    text: str


class Comment(Node):
    """A comment, from its ``#`` on."""

    text: str


class Alias(Node):
    """``name as asname`` in an import."""

    name: str
    asname: str | None


class WithItem(Node):
    """``context_expr as optional_vars``."""

    context_expr: Expression
    optional_vars: Expression | None


class ExceptHandler(Node):
    """``except type as name``."""

    type: Expression | None
    name: str | None
    body: tuple[Statement, ...]


class MatchCase(Node):
    """``case pattern if guard``."""

    pattern: Pattern
    guard: Expression | None
    body: tuple[Statement, ...]


class TypeParam(Node):
    """A parameter of a type."""

    bound: Expression | None
    default: Expression | None


# Patterns


class MatchValue(Pattern):
    """A value to be equal to."""

    value: Expression


class MatchAs(Pattern):
    """``pattern as name``; ``_`` has neither, and a name alone no pattern."""

    pattern: Pattern | None
    name: str | None


class MatchStructure(Pattern):
    """Any other pattern, with the expressions and the patterns in it."""

    values: tuple[Expression, ...]
    patterns: tuple[Pattern, ...]

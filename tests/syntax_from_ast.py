"""The syntax of a script as the standard library's `ast` parses it: what LibCST's tree gives is compared with it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.node import NOWHERE, Node
from gradcheck_accum.lint.syntax.operators import Comparison, Junction, Operator, UnaryOperator


def lower(module: ast.Module, text: str, path: str, first: int = 1, at: Location | None = None) -> s.Module:
    """The syntax of a module; its lines count from ``first``, or all of it stands ``at`` one place."""
    return _Lowering(text, path, first, at).module(module)


class _Lowering:
    def __init__(self, text: str, path: str, first: int, at: Location | None) -> None:
        self._text = text
        self._lines = re.split(r"\r\n|\r|\n", text)
        self._path = path
        self._shift = first - 1
        self._at = at

    def module(self, module: ast.Module) -> s.Module:
        # White space after the last line is none of what LibCST reads, and its lines never end with returns alone.
        read = re.sub(r"(?<=[\r\n])[ \t\f]+\Z", "", self._text)
        return s.Module(NOWHERE, None, self.all(module.body), tuple(self.comments()), re.sub(r"\r(?!\n)", "\n", read))

    def comments(self) -> Iterator[s.Comment]:
        """The comments of the text, read from its tokens."""
        with suppress(tokenize.TokenError, SyntaxError):
            for token in tokenize.generate_tokens(io.StringIO(self._text, newline=None).readline):
                if token.type == tokenize.COMMENT:
                    (line, start), (_, end) = token.start, token.end
                    place = Location(self._path, line + self._shift, start + 1, line + self._shift, end + 1)
                    yield s.Comment(self._at or place, None, token.string)

    def one(self, node: ast.AST | None) -> Any:
        """The syntax of a node; None for none."""
        return None if node is None else _HANDLERS[type(node)](self, node)

    def all(self, nodes: Iterable[ast.AST | None]) -> tuple[Any, ...]:
        """The syntax of several nodes."""
        return tuple([self.one(node) for node in nodes])

    def where(self, node: Any) -> Location:
        if self._at is not None:
            return self._at
        end, end_offset = _end(node)
        column, end_column = self.column(node.lineno, node.col_offset), self.column(end, end_offset)
        return Location(self._path, node.lineno + self._shift, column, end + self._shift, end_column)

    def column(self, line: int, offset: int) -> int:
        """Where Python's own offset, which counts bytes, is in characters, from 1."""
        return len(self._lines[line - 1].encode()[:offset].decode()) + 1

    def written(self, node: ast.expr) -> str:
        return ast.get_source_segment(self._text, node) or ""


def _end(node: Any) -> tuple[int, int]:
    """Where a node ends; a compound statement with its last one, whatever semicolons are behind that."""
    for name in ("finalbody", "orelse", "handlers", "cases", "body"):
        statements = getattr(node, name, None)
        if isinstance(statements, list) and statements:
            return _end(statements[-1])
    return node.end_lineno, node.end_col_offset


def _plain(kind: Callable[..., Node], *fields: str) -> Callable[[_Lowering, Any], Node]:
    """Lowers a node whose fields are those of ours: nodes, several of them, or names."""

    def lower(self: _Lowering, node: Any) -> Node:
        return kind(self.where(node), None, *[_field(self, getattr(node, name)) for name in fields])

    return lower


def _field(self: _Lowering, value: Any) -> Any:
    if isinstance(value, ast.AST):
        return self.one(value)
    if isinstance(value, list):
        return self.all(value) if value and not isinstance(value[0], str) else tuple(value)
    return value


def _attribute(self: _Lowering, node: ast.Attribute) -> Node:
    return s.Attribute(self.where(node), None, self.one(node.value), node.attr, isinstance(node.ctx, ast.Store))


def _joined(self: _Lowering, node: Any) -> Node:
    where = self.where(node)
    return s.JoinedStr(where, None, _formatted_in(self, node.values, where), self.written(node))


def _formatted_in(self: _Lowering, parts: Sequence[Any], where: Location) -> tuple[s.FormattedValue, ...]:
    """The values in a string, which stand where all of it does."""
    found = [part for part in parts if not isinstance(part, ast.Constant)]
    specs = [_formatted_in(self, p.format_spec.values, where) if p.format_spec is not None else () for p in found]
    return tuple(s.FormattedValue(where, None, self.one(p.value), spec) for p, spec in zip(found, specs, strict=True))


def _comprehension(self: _Lowering, node: ast.comprehension) -> Node:
    return s.Comprehension(NOWHERE, None, self.one(node.target), self.one(node.iter), self.all(node.ifs))


def _arguments(self: _Lowering, node: ast.arguments) -> Node:
    return s.Arguments(NOWHERE, None, *[_field(self, getattr(node, name)) for name in node._fields])


def _with_item(self: _Lowering, node: ast.withitem) -> Node:
    return s.WithItem(NOWHERE, None, self.one(node.context_expr), self.one(node.optional_vars))


def _match_case(self: _Lowering, node: ast.match_case) -> Node:
    return s.MatchCase(NOWHERE, None, self.one(node.pattern), self.one(node.guard), self.all(node.body))


def _match_singleton(self: _Lowering, node: ast.MatchSingleton) -> Node:
    return s.MatchStructure(self.where(node), None, (), ())


def _match_structure(self: _Lowering, node: Any) -> Node:
    values = [*filter(None, [getattr(node, "cls", None)]), *getattr(node, "keys", [])]
    patterns = [*getattr(node, "patterns", []), *getattr(node, "kwd_patterns", [])]
    return s.MatchStructure(self.where(node), None, self.all(values), self.all(patterns))


def _type_param(self: _Lowering, node: Any) -> Node:
    bound, default = getattr(node, "bound", None), getattr(node, "default_value", None)
    return s.TypeParam(self.where(node), None, self.one(bound), self.one(default))


def _function(self: _Lowering, node: Any) -> Node:
    type_params = self.all(getattr(node, "type_params", ()))
    parts = self.one(node.args), self.all(node.body), self.all(node.decorator_list), self.one(node.returns)
    return s.FunctionDef(self.where(node), None, node.name, *parts, type_params)


def _class(self: _Lowering, node: ast.ClassDef) -> Node:
    type_params = self.all(getattr(node, "type_params", ()))
    parts = self.all(node.bases), self.all(node.keywords), self.all(node.body), self.all(node.decorator_list)
    return s.ClassDef(self.where(node), None, node.name, *parts, type_params)


def _operation(kind: Callable[..., Node], *fields: str) -> Callable[[_Lowering, Any], Node]:
    """Lowers a node with a sign."""

    def lower(self: _Lowering, node: Any) -> Node:
        values = [
            _SIGNS[type(v)] if name == "op" else _field(self, v) for name in fields for v in (getattr(node, name),)
        ]
        return kind(self.where(node), None, *values)

    return lower


def _compare(self: _Lowering, node: ast.Compare) -> Node:
    signs: tuple[Any, ...] = tuple(_SIGNS[type(op)] for op in node.ops)
    return s.Compare(self.where(node), None, self.one(node.left), signs, self.all(node.comparators))


_SIGNS: dict[type[ast.AST], Any] = {
    getattr(ast, name): sign
    for name, sign in {
        **{"Add": Operator.ADD, "Sub": Operator.SUB, "Mult": Operator.MULT, "MatMult": Operator.MATMULT},
        **{"Div": Operator.DIV, "Mod": Operator.MOD, "FloorDiv": Operator.FLOORDIV, "Pow": Operator.POW},
        **{"LShift": Operator.LSHIFT, "RShift": Operator.RSHIFT, "BitOr": Operator.BITOR, "BitXor": Operator.BITXOR},
        **{"BitAnd": Operator.BITAND, "And": Junction.AND, "Or": Junction.OR, "Not": UnaryOperator.NOT},
        **{"USub": UnaryOperator.USUB, "UAdd": UnaryOperator.UADD, "Invert": UnaryOperator.INVERT},
        **{"Eq": Comparison.EQ, "NotEq": Comparison.NOTEQ, "Lt": Comparison.LT, "LtE": Comparison.LTE},
        **{"Gt": Comparison.GT, "GtE": Comparison.GTE, "Is": Comparison.IS, "IsNot": Comparison.ISNOT},
        **{"In": Comparison.IN, "NotIn": Comparison.NOTIN},
    }.items()
}

_PLAIN: list[type[Node]] = [
    *(s.Constant, s.Name, s.Subscript, s.Slice, s.Starred, s.Call, s.IfExp, s.NamedExpr, s.Lambda),
    *(s.List, s.Tuple, s.Set, s.Dict, s.ListComp, s.SetComp, s.GeneratorExp, s.DictComp, s.Await, s.Yield, s.YieldFrom),
    *(s.Expr, s.Assign, s.AnnAssign, s.If, s.For, s.While, s.With, s.Try, s.Match, s.Return, s.Raise, s.Assert),
    *(s.Delete, s.Pass, s.Break, s.Continue, s.Global, s.Import, s.ImportFrom, s.ExceptHandler),
]

_HANDLERS: dict[type[ast.AST], Callable[[_Lowering, Any], Node]] = {
    getattr(ast, kind.__name__): _plain(kind, *(f for f in kind.FIELDS if f not in ("where", "origin")))
    for kind in _PLAIN
} | {
    ast.AsyncFor: _plain(s.For, "target", "iter", "body", "orelse"),
    ast.AsyncWith: _plain(s.With, "items", "body"),
    ast.Nonlocal: _plain(s.Global, "names"),
    ast.keyword: _plain(s.Keyword, "arg", "value"),
    ast.arg: _plain(s.Arg, "arg", "annotation"),
    ast.alias: _plain(s.Alias, "name", "asname"),
    ast.MatchValue: _plain(s.MatchValue, "value"),
    ast.MatchAs: _plain(s.MatchAs, "pattern", "name"),
    ast.MatchSingleton: _match_singleton,
    **dict.fromkeys(
        (ast.MatchSequence, ast.MatchStar, ast.MatchMapping, ast.MatchClass, ast.MatchOr), _match_structure
    ),
    ast.Attribute: _attribute,
    ast.JoinedStr: _joined,
    ast.BinOp: _operation(s.BinOp, "left", "op", "right"),
    ast.UnaryOp: _operation(s.UnaryOp, "op", "operand"),
    ast.BoolOp: _operation(s.BoolOp, "op", "values"),
    ast.AugAssign: _operation(s.AugAssign, "target", "op", "value"),
    ast.Compare: _compare,
    ast.comprehension: _comprehension,
    ast.arguments: _arguments,
    ast.withitem: _with_item,
    ast.match_case: _match_case,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
}

_NEWER: dict[str, Callable[[_Lowering, Any], Node]] = {
    "TryStar": _plain(s.Try, "body", "handlers", "orelse", "finalbody"),
    "TypeAlias": _plain(s.TypeAlias, "name", "type_params", "value"),
    "TypeVar": _type_param,
    "ParamSpec": _type_param,
    "TypeVarTuple": _type_param,
    "TemplateStr": _joined,
}
_HANDLERS |= {getattr(ast, name): handler for name, handler in _NEWER.items() if hasattr(ast, name)}
"""What came with Python 3.11 to 3.14."""

"""The bindings of names in the source, by assignments and in other ways."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradcheck_accum.verify.provenance.syntax import Function, Scope, Syntax

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that binds a name, in the function ``scope``: to ``value``, None where it is no plain assignment."""

    node: ast.AST
    value: ast.expr | None
    scope: Scope


class _Table:
    """The bindings of one file, read for each scope on first use."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._of_others: dict[str, list[Binding]] | None = None
        self._scopes: dict[ast.AST, dict[str, list[Binding]]] = {}
        self._declaring: dict[str, list[tuple[Function, type[ast.stmt]]]] = defaultdict(list)
        for node in syntax.walk(syntax.tree):
            scope = syntax.scope_of(node) if isinstance(node, (ast.Global, ast.Nonlocal)) else None
            if isinstance(node, (ast.Global, ast.Nonlocal)) and isinstance(scope, _FUNCTIONS):
                for name in node.names:
                    self._declaring[name].append((scope, type(node)))

    def own(self, scope: Scope | ast.ClassDef, within: Scope) -> dict[str, list[Binding]]:
        """What a scope's own code binds, by names and dotted attributes, without the scopes nested in it."""
        if scope not in self._scopes:
            found: dict[str, list[Binding]] = defaultdict(list)
            for binding in _bindings(self._syntax, scope, within):
                found[_name(binding.node)].append(binding)
            self._scopes[scope] = dict(found)
        return self._scopes[scope]

    def of_others(self, attribute: str) -> list[Binding]:
        """The bindings of an attribute of an object other than a method's ``self``."""
        if self._of_others is None:
            self._of_others = defaultdict(list)
            for scope in self._syntax.walk(self._syntax.tree):
                if not isinstance(scope, (*_FUNCTIONS, ast.Module)):
                    continue
                own = [] if isinstance(scope, ast.Module) else parameters(scope)
                itself = own[0].arg if own and self._syntax.class_of(scope) is not None else ""
                for name, bindings in self.own(scope, scope).items():
                    owner, _, bound = name.rpartition(".")
                    if owner and "." not in owner and owner != itself:
                        self._of_others[bound] += bindings
        return self._of_others.get(attribute, [])

    def declares(self, scope: Scope, name: str) -> bool:
        """Whether a function declares a name as global or nonlocal."""
        return any(own is scope for own, _ in self._declaring.get(name, ()))

    def declaring(self, scope: Scope, name: str) -> Iterator[Function]:
        """The functions that declare a name to be that of ``scope``."""
        kind = ast.Global if isinstance(scope, ast.Module) else ast.Nonlocal
        inside = set(self._syntax.walk(scope)) if kind is ast.Nonlocal and name in self._declaring else set()
        for function, own in self._declaring.get(name, ()):
            if own is kind and (kind is ast.Global or function in inside):
                yield function


@lru_cache(maxsize=64)
def _table(syntax: Syntax) -> _Table:
    return _Table(syntax)


def parameters(function: Function) -> list[ast.arg]:
    """The parameters that a call may pass by position, in order."""
    return [*function.args.posonlyargs, *function.args.args]


def is_parameter(scope: Scope, name: str) -> bool:
    """Whether a name is one of a function's parameters, except ``*args`` and ``**kwargs``."""
    if isinstance(scope, ast.Module):
        return False
    return any(own.arg == name for own in (*parameters(scope), *scope.args.kwonlyargs))


def owner_of(syntax: Syntax, scope: Scope, name: str) -> Scope | None:
    """The scope that binds a name which is read in ``scope``; None where the file does not bind it."""
    table = _table(syntax)
    while True:
        if (is_parameter(scope, name) or name in table.own(scope, scope)) and not table.declares(scope, name):
            return scope
        if isinstance(scope, ast.Module):
            return scope if any(table.declaring(scope, name)) else None
        scope = syntax.scope_of(scope)


def names_bound(syntax: Syntax, scope: Scope, name: str) -> list[Binding]:
    """All places that bind a scope's name, including functions that declare it as global or nonlocal."""
    table = _table(syntax)
    scopes = [scope, *table.declaring(scope, name)]
    return [binding for own in scopes for binding in table.own(own, own).get(name, ())]


def attributes_bound(syntax: Syntax, cls: ast.ClassDef, attribute: str) -> list[Binding]:
    """All places in a class's own body and methods that bind an attribute of its instances.

    This includes the places that bind an attribute of this name of another object, which may be an instance.
    """
    table = _table(syntax)
    found = [*table.own(cls, syntax.scope_of(cls)).get(attribute, ()), *table.of_others(attribute)]
    for method in cls.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and (own := parameters(method)):
            found += table.own(method, method).get(f"{own[0].arg}.{attribute}", ())
    return found


def is_default(syntax: Syntax, cls: ast.ClassDef, attribute: str) -> bool:
    """Whether a class's own body binds an attribute: a setting's default, say."""
    return attribute in _table(syntax).own(cls, syntax.scope_of(cls))


def assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The names and attributes that an assignment binds, each with its value, None where that is not explicit."""
    match target, value:
        case (ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(elts=values)) if len(
            targets
        ) == len(values) and not any(isinstance(e, ast.Starred) for e in (*targets, *values)):
            for own, inner in zip(targets, values, strict=True):
                yield from assigned(own, inner)
        case (
            ast.Tuple(elts=[whole, rest]),
            ast.Call(func=ast.Name(id="divmod"), args=[left, right], keywords=[]),
        ):
            quotient = ast.copy_location(ast.BinOp(left, ast.FloorDiv(), right), value)
            yield from assigned(whole, quotient)
            yield from assigned(rest, None)
        case (
            ast.Tuple(elts=targets) | ast.List(elts=targets),
            ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size"), args=[], keywords=[]),
        ) if not any(isinstance(own, ast.Starred) for own in targets):
            for dimension, own in enumerate(targets):
                where = ast.copy_location(ast.Constant(dimension), value)
                yield from assigned(own, ast.copy_location(ast.Subscript(value, where, ast.Load()), value))
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            for own in targets:
                yield from assigned(own, None)
        case ast.Starred(value=inner), _:
            yield from assigned(inner, None)
        case ((ast.Name() | ast.Attribute()), _):
            yield target, value


def _bindings(syntax: Syntax, scope: Scope | ast.ClassDef, within: Scope) -> Iterator[Binding]:
    nodes = list(_own_nodes(syntax, scope))
    products = {node: list(_scaled_next(node, syntax)) for node in nodes if isinstance(node, ast.Assign)}
    taken_in = {own for scaled in products.values() for own in scaled}
    for node in nodes:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        match node:
            case ast.AugAssign() if node in taken_in:
                pass
            case ast.Assign(targets=targets, value=value):
                for own in products[node]:
                    value = ast.copy_location(ast.BinOp(value, own.op, own.value), value)
                pairs = [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                pairs = [(target, value)]
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
                pairs = [(target, None)]
            case ast.comprehension(target=target) | ast.withitem(optional_vars=ast.expr() as target):
                pairs = [(target, None)]
            case ast.alias() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Binding(node, None, within)
            case ast.ExceptHandler(name=str()) | ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
                yield Binding(node, None, within)
        for goal, given in pairs:
            yield from (Binding(own, part, within) for own, part in assigned(goal, given))


def _scaled_next(statement: ast.Assign, syntax: Syntax) -> Iterator[ast.AugAssign]:
    """The statements right after an assignment that multiply or divide its number: with them it is one product."""
    match statement.targets:
        case [ast.Name(id=name)]:
            outer = syntax.parent(statement)
        case _:
            return
    blocks = (getattr(outer, field, ()) for field in ("body", "orelse", "finalbody"))
    block = next((own for own in blocks if isinstance(own, list) and statement in own), [])
    for following in block[block.index(statement) + 1 :] if block else ():
        match following:
            case ast.AugAssign(target=ast.Name(id=scaled), op=ast.Mult() | ast.Div()) if scaled == name:
                yield following
            case _:
                return


def _own_nodes(syntax: Syntax, scope: Scope | ast.ClassDef) -> Iterator[ast.AST]:
    pending: list[ast.AST] = list(scope.body) if isinstance(scope.body, list) else [scope.body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += syntax.children(node)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.alias(name=name, asname=other):
            return other or name.partition(".")[0]
    return getattr(node, "name", None) or ""

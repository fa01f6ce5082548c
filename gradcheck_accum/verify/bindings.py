"""What the source binds names to.

Where each binding of a name is a plain assignment, the name is what was assigned. Where one is not (a loop's target, a
sum that grows, what a context manager gives), what the name is bound to is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradcheck_accum.verify.syntax import Function, Scope, Syntax

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that binds a name: to ``value``, or None where it is no plain assignment; in the function ``scope``."""

    node: ast.AST
    value: ast.expr | None
    scope: Scope


def parameters(function: Function) -> list[ast.arg]:
    """The parameters that a call may give by position, in order."""
    return [*function.args.posonlyargs, *function.args.args]


def is_parameter(scope: Scope, name: str) -> bool:
    """Whether a name is one of a function's parameters, ``*args`` and ``**kwargs`` left out."""
    if isinstance(scope, ast.Module):
        return False
    return any(own.arg == name for own in (*parameters(scope), *scope.args.kwonlyargs))


def owner_of(syntax: Syntax, scope: Scope, name: str) -> Scope | None:
    """The scope that a name belongs to which is read in ``scope``; None where the file does not bind it."""
    while True:
        if (is_parameter(scope, name) or names_bound(syntax, scope, name)) and not _declares(scope, name):
            return scope
        if isinstance(scope, ast.Module):
            return None
        scope = syntax.scope_of(scope)


def names_bound(syntax: Syntax, scope: Scope, name: str) -> list[Binding]:
    """All places that bind a scope's name: functions inside may declare it to be theirs."""
    found = [b for b in _bindings(scope, scope) if _is_name(b, name)]
    for inner in ast.walk(scope):
        if isinstance(inner, _SCOPES) and not isinstance(inner, ast.ClassDef) and inner is not scope:
            kind = ast.Global if isinstance(scope, ast.Module) else ast.Nonlocal
            if _declares(inner, name, kind):
                found += [b for b in _bindings(inner, inner) if _is_name(b, name)]
    return found


def attributes_bound(cls: ast.ClassDef, scope: Scope, attribute: str) -> list[Binding]:
    """All places in a class's own body and methods that bind an attribute of its instances."""
    found = [b for b in _bindings(cls, scope) if _is_name(b, attribute)]
    for method in cls.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and (own := parameters(method)):
            found += [b for b in _bindings(method, method) if _is_attribute(b, own[0].arg, attribute)]
    return found


def _bindings(scope: Scope | ast.ClassDef, within: Scope) -> Iterator[Binding]:
    """All bindings in a scope's own code; that of the functions and classes inside is theirs."""
    for node in _own_nodes(scope):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound(target, value, within)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield from _bound(target, value, within)
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
                yield from _bound(target, None, within)
            case ast.comprehension(target=target) | ast.withitem(optional_vars=ast.expr() as target):
                yield from _bound(target, None, within)
            case ast.alias() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Binding(node, None, within)
            case ast.ExceptHandler(name=str()) | ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
                yield Binding(node, None, within)


def assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The names and attributes that an assignment binds, each to what; to None where that is not written."""
    match target, value:
        case (ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(elts=values)) if len(
            targets
        ) == len(values) and not any(isinstance(e, ast.Starred) for e in (*targets, *values)):
            for own, inner in zip(targets, values, strict=True):
                yield from assigned(own, inner)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            for own in targets:
                yield from assigned(own, None)
        case ast.Starred(value=inner), _:
            yield from assigned(inner, None)
        case ((ast.Name() | ast.Attribute()), _):
            yield target, value


def _bound(target: ast.expr, value: ast.expr | None, within: Scope) -> Iterator[Binding]:
    return (Binding(own, given, within) for own, given in assigned(target, value))


def _own_nodes(scope: Scope | ast.ClassDef) -> Iterator[ast.AST]:
    pending: list[ast.AST] = list(scope.body) if isinstance(scope.body, list) else [scope.body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)


def _is_name(binding: Binding, name: str) -> bool:
    match binding.node:
        case ast.Name(id=own):
            return own == name
        case ast.alias(name=own, asname=other):
            return (other or own.partition(".")[0]) == name
        case ast.Attribute():
            return False
    return getattr(binding.node, "name", None) == name


def _is_attribute(binding: Binding, instance: str, attribute: str) -> bool:
    match binding.node:
        case ast.Attribute(value=ast.Name(id=own), attr=name):
            return (own, name) == (instance, attribute)
    return False


def _declares(scope: Scope, name: str, kind: type[ast.stmt] | tuple[type[ast.stmt], ...] = ()) -> bool:
    """Whether a function says that a name is another's."""
    kinds = kind or (ast.Global, ast.Nonlocal)
    nodes: Iterable[ast.AST] = () if isinstance(scope, ast.Module) else _own_nodes(scope)
    return any(isinstance(node, kinds) and name in node.names for node in nodes)  # type: ignore[attr-defined]

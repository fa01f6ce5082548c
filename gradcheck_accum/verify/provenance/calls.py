"""Calls in the source: whether one entered a frame, and its arguments by parameter."""

from __future__ import annotations

import ast
from types import CodeType, FrameType, FunctionType, MethodType

from gradcheck_accum.verify.provenance.bindings import parameters
from gradcheck_accum.verify.provenance.readable import value_of
from gradcheck_accum.verify.provenance.syntax import Function, Scope


def may_call(call: ast.Call, frame: FrameType, code: CodeType, cls: ast.ClassDef | None) -> bool:
    """Whether what ``frame`` calls by ``call`` is the function of ``code``, a method of ``cls`` if that is given.

    A call by the function's own name is taken to be one; any other name is looked up.
    """
    names = {code.co_name}
    if cls is not None and code.co_name == "__init__":
        names.add(cls.name)
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in names:
            return True
    if code.co_name == "__call__" and cls is not None:
        return True
    called = value_of(call.func, frame)
    if type(called) is MethodType:
        called = called.__func__
    return type(called) is FunctionType and called.__code__ is code


def is_passed_on(call: ast.Call, scope: Scope) -> bool:
    """Whether a wrapper only passes its arguments on: ``function(*args, **kwargs)``."""
    match call:
        case ast.Call(
            args=[ast.Starred(value=ast.Name(id=listed))], keywords=[ast.keyword(arg=None, value=ast.Name(id=named))]
        ) if not isinstance(scope, ast.Module):
            own = scope.args
            takes_all = not (own.args or own.posonlyargs or own.kwonlyargs)
            return bool(takes_all and own.vararg and own.kwarg and (own.vararg.arg, own.kwarg.arg) == (listed, named))
    return False


def is_open(call: ast.Call) -> bool:
    """Whether a call unpacks arguments that are not written in it."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def argument_of(call: ast.Call, function: Function, name: str, cls: ast.ClassDef | None) -> ast.expr | None:
    """The argument of a call for a parameter of ``function``, a method of ``cls`` if that is given."""
    named = next((k.value for k in call.keywords if k.arg == name), None)
    if named is not None:
        return named
    positions = [own.arg for own in parameters(function)][_left_out(call, function, cls) :]
    given = call.args[: positions.index(name) + 1] if name in positions else []
    complete = given and len(given) == positions.index(name) + 1
    return given[-1] if complete and not any(isinstance(a, ast.Starred) for a in given) else None


def default_of(function: Function, name: str) -> ast.expr | None:
    """The default of a parameter."""
    own, arguments = parameters(function), function.args
    pairs = list(zip(reversed(own), reversed(arguments.defaults), strict=False))
    by_name = [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return next((default for arg, default in (*pairs, *by_name) if arg.arg == name), None)


def _left_out(call: ast.Call, function: Function, cls: ast.ClassDef | None) -> int:
    """How many of a method's first parameters are not written in its calls: the object, or the class."""
    decorators = {d.id for d in getattr(function, "decorator_list", ()) if isinstance(d, ast.Name)}
    if cls is None or "staticmethod" in decorators:
        return 0
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner)) if owner == cls.name and "classmethod" not in decorators:
            return 0
    return 1

"""Whether a call in the source is the one that a frame was entered by."""

from __future__ import annotations

import ast
from types import CodeType, FrameType, FunctionType, MethodType

from gradcheck_accum.verify.readable import value_of
from gradcheck_accum.verify.syntax import Scope


def may_call(call: ast.Call, frame: FrameType, code: CodeType, cls: ast.ClassDef | None) -> bool:
    """Whether what ``frame`` calls by ``call`` is the function of ``code``, a method of ``cls`` if that is given.

    What is called by a function's own name is that function; what has another name is looked up.
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
    """Whether a wrapper hands on just what it was given: ``function(*args, **kwargs)``."""
    match call:
        case ast.Call(
            args=[ast.Starred(value=ast.Name(id=listed))], keywords=[ast.keyword(arg=None, value=ast.Name(id=named))]
        ) if not isinstance(scope, ast.Module):
            own = scope.args
            takes_all = not (own.args or own.posonlyargs or own.kwonlyargs)
            return bool(takes_all and own.vararg and own.kwarg and (own.vararg.arg, own.kwarg.arg) == (listed, named))
    return False

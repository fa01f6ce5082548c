"""Where a number comes from: the names that it was bound to on its way, and the places of the constants it began as.

A number keeps its identity while it is handed on: assigned to another name, passed to a function, made a float. What is
computed from several others is a number of its own, and no name of theirs is its name. Nothing of the user's is run:
all is read off the syntax of the frames on the stack.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType

from gradcheck_accum.verify.bindings import (
    Binding,
    attributes_bound,
    is_parameter,
    names_bound,
    owner_of,
    parameters,
)
from gradcheck_accum.verify.calls import is_passed_on, may_call
from gradcheck_accum.verify.frames import is_followed, shown
from gradcheck_accum.verify.syntax import Function, Scope, Syntax, frame_around, own_frame, syntax_of

MOST_FRAMES = 8
"""How many callers a number is followed to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression stands: in a function of a file, and the frame that runs it, if one on the stack does.

    ``depth`` is how many frames it is away from the one that was asked first.
    """

    syntax: Syntax
    scope: Scope
    frame: FrameType | None = None
    depth: int = 0


class Origins:
    """Reads the origins of one expression; ``depth`` is how many callers it has asked for that."""

    def __init__(self, *, names_alone: bool = False) -> None:
        self.depth = 0
        self._names_alone = names_alone
        """Whether to leave it at the names that stand there: a framework's code is none of the user's to follow."""
        self._seen: set[tuple[int, str]] = set()

    def of(self, node: ast.expr, place: Place) -> frozenset[str] | None:
        """The origins of a number, None where it is one that was computed there, or where nothing is known of it."""
        match node:
            case ast.Constant(value=bool() | str() | bytes()):
                return None
            case ast.Constant(value=int() | float()):
                return frozenset({f"{shown(place.syntax.filename)}:{node.lineno}:{node.col_offset + 1}"})
            case ast.Constant(value=None):
                # A name that is given its number later.
                return frozenset()
            case ast.Name(id=name):
                return frozenset({name}) | self._bound(name, place)
            case ast.Attribute(value=owner, attr=name) if (dotted := _dotted(node)) is not None:
                return frozenset({name, dotted}) | self._bound_attribute(owner, name, place)
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))):
                return _entry(owner, key)
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *_]):
                return _entry(owner, key)
            case ast.NamedExpr(target=ast.Name(id=name)):
                return frozenset({name}) | self._bound(name, place)
        inner = same_number(node)
        return None if inner is None else self.of(inner, place)

    def _bound(self, name: str, place: Place) -> frozenset[str]:
        """What a name was bound to elsewhere."""
        if self._names_alone:
            return frozenset()
        place, found = _home(place, name)
        if found is None or (id(found), name) in self._seen:
            return frozenset()
        self._seen.add((id(found), name))
        self.depth = max(self.depth, place.depth)
        own = self._all_of(names_bound(place.syntax, found, name), place)
        if own is None or isinstance(found, ast.Module) or not is_parameter(found, name):
            return own or frozenset()
        return own | (self._passed(name, found, place) or frozenset())

    def _bound_attribute(self, owner: ast.expr, name: str, place: Place) -> frozenset[str]:
        """What a method's own object has under a name."""
        if self._names_alone or not isinstance(owner, ast.Name):
            return frozenset()
        scope = owner_of(place.syntax, place.scope, owner.id)
        cls = place.syntax.class_of(scope) if scope is not None else None
        if scope is None or cls is None or isinstance(scope, ast.Module):
            return frozenset()
        own = parameters(scope)
        if not own or own[0].arg != owner.id or (id(cls), name) in self._seen:
            return frozenset()
        self._seen.add((id(cls), name))
        found = attributes_bound(cls, place.syntax.scope_of(cls), name)
        return self._all_of(found, replace(place, frame=None)) or frozenset()

    def _all_of(self, bindings: Iterable[Binding], place: Place) -> frozenset[str] | None:
        """The origins of all that is assigned, None where one of them is a number of which nothing is known."""
        found: frozenset[str] = frozenset()
        for binding in bindings:
            if isinstance(binding.node, ast.alias):
                found |= {binding.node.name.rpartition(".")[2]}
                continue
            frame = place.frame if binding.scope is place.scope else None
            inner = replace(place, scope=binding.scope, frame=frame)
            own = None if binding.value is None else self.of(binding.value, inner)
            if own is None:
                return None
            found |= own
        return found

    def _passed(self, name: str, function: Function, place: Place) -> frozenset[str] | None:
        """What the caller of the function that a frame runs gave for a parameter."""
        called, frame, depth = place.frame, place.frame, place.depth
        while called is not None and frame is not None and depth < MOST_FRAMES:
            frame, depth = frame.f_back, depth + 1
            if frame is None or not is_followed(frame):
                return None
            self.depth = max(self.depth, depth)
            syntax = syntax_of(frame)
            call = None if syntax is None else syntax.at(frame, _is_call)
            if syntax is None or not isinstance(call, ast.Call):
                return None
            scope = syntax.scope_of(call)
            if is_passed_on(call, scope):
                continue
            if not may_call(call, frame, called.f_code, place.syntax.class_of(function)):
                return None
            given = _argument(call, function, name, place.syntax)
            if given is None:
                default = _default(function, name)
                defined = Place(place.syntax, place.syntax.scope_of(function), None, depth)
                return self.of(default, defined) if default is not None and not _is_open(call) else None
            return self.of(given, Place(syntax, scope, _of_scope(frame, scope), depth))
        return None


def same_number(node: ast.expr) -> ast.expr | None:
    """What ``node`` hands on as it is, or as 1 over it: ``float(K)``, ``max(K, 1)``, ``1 / K``; None if it computes."""
    match node:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Div(), right=inner):
            return inner
        case ast.Call(func=ast.Name(id="float" | "int"), args=[inner], keywords=[]):
            return inner
        case ast.Call(func=ast.Name(id="max"), args=[inner, ast.Constant()] | [ast.Constant(), inner], keywords=[]):
            return inner
        case ast.BoolOp(op=ast.Or(), values=[inner, ast.Constant()]):
            return inner
    return None


def place_of(frame: FrameType, node: ast.AST, syntax: Syntax) -> Place:
    """Where ``node`` stands that a frame is at."""
    scope = syntax.scope_of(node)
    return Place(syntax, scope, _of_scope(frame, scope))


def _of_scope(frame: FrameType, scope: Scope) -> FrameType | None:
    """The frame of a whole function that ``frame`` is of, a comprehension's say."""
    own = own_frame(frame)
    name = "<module>" if isinstance(scope, ast.Module) else getattr(scope, "name", "<lambda>")
    return own if own is not None and own.f_code.co_name in (name, "<module>") else None


def _home(place: Place, name: str) -> tuple[Place, Scope | None]:
    """The scope that a name belongs to, and the place with the frame that runs it."""
    found = owner_of(place.syntax, place.scope, name)
    scope, frame, depth = place.scope, place.frame, place.depth
    while found is not None and scope is not found:
        scope = place.syntax.scope_of(scope)
        outer = None if frame is None else frame_around(frame)
        depth += _distance(frame, outer)
        frame = outer
    return replace(place, scope=scope, frame=frame, depth=depth), found


def _distance(frame: FrameType | None, outer: FrameType | None) -> int:
    steps = 0
    while frame is not outer and frame is not None and outer is not None:
        frame, steps = frame.f_back, steps + 1
    return steps


def _dotted(node: ast.expr) -> str | None:
    """``config.training.accum``, where it is names alone."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            inner = _dotted(owner)
            return None if inner is None else f"{inner}.{name}"
    return None


def _entry(owner: ast.expr, key: str) -> frozenset[str]:
    return frozenset({key, f"{ast.unparse(owner)}[{key!r}]"})


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


def _is_open(call: ast.Call) -> bool:
    """Whether a call gives more than is written in it."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def _argument(call: ast.Call, function: Function, name: str, syntax: Syntax) -> ast.expr | None:
    """What a call gives for a parameter."""
    named = next((k.value for k in call.keywords if k.arg == name), None)
    if named is not None:
        return named
    positions = [own.arg for own in parameters(function)][_bound_first(call, function, syntax) :]
    given = call.args[: positions.index(name) + 1] if name in positions else []
    complete = given and len(given) == positions.index(name) + 1
    return given[-1] if complete and not any(isinstance(a, ast.Starred) for a in given) else None


def _bound_first(call: ast.Call, function: Function, syntax: Syntax) -> int:
    """How many of a method's parameters are not in its calls: the object, or the class."""
    cls = syntax.class_of(function)
    decorators = {d.id for d in getattr(function, "decorator_list", ()) if isinstance(d, ast.Name)}
    if cls is None or "staticmethod" in decorators:
        return 0
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner)) if owner == cls.name and "classmethod" not in decorators:
            return 0
    return 1


def _default(function: Function, name: str) -> ast.expr | None:
    own, arguments = parameters(function), function.args
    pairs = list(zip(reversed(own), reversed(arguments.defaults), strict=False))
    by_name = [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return next((default for arg, default in (*pairs, *by_name) if arg.arg == name), None)

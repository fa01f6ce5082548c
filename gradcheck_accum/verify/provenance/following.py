"""Follows a name to its values: what is assigned to it, and what the caller of a running function passed for it.

The argument for a parameter of ``__init__`` is read from the only place of the file that creates such an object.

Where each binding of a name is a plain assignment, its value is what was assigned. Where one is not (a loop's target,
an augmented assignment, a context manager's target), the value is not known. No user code is run: everything is read
from the syntax of the file and of the callers on the stack.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType

from gradcheck_accum.verify.provenance.bindings import (
    Binding,
    attributes_bound,
    is_default,
    is_parameter,
    names_bound,
    owner_of,
    parameters,
)
from gradcheck_accum.verify.provenance.calls import argument_of, default_of, is_open, is_passed_on, may_call
from gradcheck_accum.verify.provenance.syntax import Function, Scope, Syntax, frame_around, own_frame, syntax_of
from gradcheck_accum.verify.stack.frames import is_followed

MOST_FRAMES = 8
"""The most callers that a number is followed to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression is: in a function of a file, with the frame that runs it, if that is on the stack.

    ``depth`` is the number of frames between it and the first one.
    """

    syntax: Syntax
    scope: Scope
    frame: FrameType | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Sources:
    """The values of a name: expressions, each with its place, and ``imported`` names of other files.

    ``known`` says whether these are all; ``depth`` is how far up the stack they were searched.
    """

    values: tuple[tuple[ast.expr, Place], ...] = ()
    imported: frozenset[str] = frozenset()
    known: bool = True
    depth: int = 0


def place_of(frame: FrameType, node: ast.AST, syntax: Syntax) -> Place:
    """The place of ``node``, which a frame is executing."""
    scope = syntax.scope_of(node)
    own = _of_scope(frame, scope)
    return Place(syntax, scope, own, _distance(frame, own))


def sources_of(node: ast.expr, place: Place) -> Sources:
    """The values of a name, or of an attribute of an object of a class of this file."""
    match node:
        case ast.Name(id=name):
            return _of_name(name, place)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            own = class_of_own(owner, place)
            if own is not None:
                return _of_attribute(own, name, place)
            made = class_of_object(owner, place)
            if made is None or is_default(place.syntax, made, name):
                # What a class's body binds is a default: the object may have been given something else.
                return Sources()
            return _of_attribute(made, name, place)
    return Sources(known=False)


def class_of_own(name: str, place: Place) -> ast.ClassDef | None:
    """The class of the method that a name is the ``self`` of, None if it is not one."""
    scope = owner_of(place.syntax, place.scope, name)
    if scope is None or isinstance(scope, ast.Module):
        return None
    cls, own = place.syntax.class_of(scope), parameters(scope)
    return cls if own and own[0].arg == name else None


def class_of_object(name: str, place: Place) -> ast.ClassDef | None:
    """The class, in the same file, of the object that a name is: a method's ``self``, or what a call of it made."""
    own = class_of_own(name, place)
    if own is not None:
        return own
    made = _of_name(name, place)
    match [value for value, _ in made.values] if made.known else []:
        case [ast.Call(func=ast.Name(id=kind))]:
            found = [node for node in place.syntax.tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
            return found[0] if len(found) == 1 else None
    return None


def _of_name(name: str, place: Place) -> Sources:
    owner = owner_of(place.syntax, place.scope, name)
    if owner is None:
        return Sources()
    home = _home(place, owner)
    found = _of_bindings(names_bound(place.syntax, owner, name), home)
    if isinstance(owner, ast.Module) or not is_parameter(owner, name):
        return found
    given, depth = _given(name, owner, home)
    if given is None:
        return replace(found, known=False, depth=max(home.depth, depth))
    return replace(found, values=(*found.values, given), depth=max(home.depth, depth))


def _of_attribute(cls: ast.ClassDef, name: str, place: Place) -> Sources:
    return _of_bindings(attributes_bound(place.syntax, cls, name), replace(place, frame=None))


def _of_bindings(bindings: Iterable[Binding], place: Place) -> Sources:
    values: list[tuple[ast.expr, Place]] = []
    imported: set[str] = set()
    known = True
    for binding in bindings:
        if isinstance(binding.node, ast.alias):
            imported.add(binding.node.name.rpartition(".")[2])
        elif binding.value is None:
            known = False
        else:
            frame = place.frame if binding.scope is place.scope else None
            values.append((binding.value, replace(place, scope=binding.scope, frame=frame)))
    return Sources(tuple(values), frozenset(imported), known, place.depth)


def _given(name: str, function: Function, place: Place) -> tuple[tuple[ast.expr, Place] | None, int]:
    """What the caller of a frame's function passed for a parameter, and how far up the stack it was searched."""
    called, frame, depth = place.frame, place.frame, place.depth
    cls = place.syntax.class_of(function)
    if frame is None and (cls is None or getattr(function, "name", "") == "__init__"):
        return _passed_once(name, function, cls, place), depth
    while called is not None and frame is not None and depth < MOST_FRAMES:
        frame, depth = frame.f_back, depth + 1
        if frame is None or not is_followed(frame):
            break
        syntax = syntax_of(frame)
        call = None if syntax is None else syntax.at(frame, partial(_enters, frame, called.f_code, syntax, cls))
        if syntax is None or not isinstance(call, ast.Call):
            break
        scope = syntax.scope_of(call)
        if is_passed_on(call, scope):
            continue
        given = argument_of(call, function, name, cls)
        if given is not None:
            own = _of_scope(frame, scope)
            return (given, Place(syntax, scope, own, depth + _distance(frame, own))), depth
        default = default_of(function, name)
        if default is None or is_open(call):
            break
        return (default, Place(place.syntax, place.syntax.scope_of(function), None, depth)), depth
    return None, depth


def _passed_once(
    name: str, function: Function, cls: ast.ClassDef | None, place: Place
) -> tuple[ast.expr, Place] | None:
    """What was passed for a parameter of a function that has ended, if only one place of the file calls it.

    An object's ``__init__`` is called where its class, ``cls``, is.
    """
    called = getattr(function if cls is None else cls, "name", "")
    calls = [
        node
        for node in place.syntax.walk(place.syntax.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called
    ]
    if len(calls) != 1:
        return None
    (call,) = calls
    given = argument_of(call, function, name, cls)
    if given is not None:
        return given, Place(place.syntax, place.syntax.scope_of(call), None, place.depth)
    default = default_of(function, name)
    if default is None or is_open(call):
        return None
    return default, Place(place.syntax, place.syntax.scope_of(function), None, place.depth)


def _enters(caller: FrameType, code: CodeType, syntax: Syntax, cls: ast.ClassDef | None, node: ast.AST) -> bool:
    """Whether ``node``, which the caller is executing, is the call that entered the function of ``code``."""
    if not isinstance(node, ast.Call):
        return False
    return is_passed_on(node, syntax.scope_of(node)) or may_call(node, caller, code, cls)


def _of_scope(frame: FrameType, scope: Scope) -> FrameType | None:
    """The frame of the function ``scope`` that ``frame``, a comprehension's say, belongs to."""
    own = own_frame(frame)
    name = "<module>" if isinstance(scope, ast.Module) else getattr(scope, "name", "<lambda>")
    return own if own is not None and own.f_code.co_name == name else None


def _home(place: Place, owner: Scope) -> Place:
    """The place of bindings in ``owner``, the scope of this place or one around it."""
    scope, frame, depth = place.scope, place.frame, place.depth
    if isinstance(owner, ast.Module):
        return replace(place, scope=owner, frame=frame if scope is owner else None)
    while scope is not owner:
        scope = place.syntax.scope_of(scope)
        outer = None if frame is None else frame_around(frame)
        frame, depth = outer, depth + _distance(frame, outer)
    return replace(place, scope=scope, frame=frame, depth=depth)


def _distance(frame: FrameType | None, outer: FrameType | None) -> int:
    """The number of calls between two frames of the stack."""
    steps = 0
    while outer is not None and frame is not None and frame is not outer:
        frame, steps = frame.f_back, steps + 1
    return steps

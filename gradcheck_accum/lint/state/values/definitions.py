"""Functions and classes of the file itself, their objects, and the names that are bound in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradcheck_accum.lint import syntax


@dataclass(slots=True, eq=False)
class Function:
    """A function of this file, with the scope that it closes over and the object that it is bound to."""

    node: syntax.FunctionDef | syntax.Lambda
    scope: Scope
    owner: object | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    """What was put into it (``turn.left = K``)."""


@dataclass(slots=True, eq=False)
class Paused:
    """A generator of this file that is a context, with its names: the block of a ``with`` runs where it yields."""

    node: syntax.FunctionDef
    scope: Scope


@dataclass(slots=True, eq=False)
class Driver:
    """An object that calls a function of this file with every batch of data (Ignite's Engine)."""

    function: Function


@dataclass(slots=True, eq=False)
class Class:
    """A class of this file."""

    node: syntax.ClassDef
    scope: Scope
    methods: dict[str, syntax.FunctionDef] = field(default_factory=dict)
    complete: bool = True
    """Whether every base class is in this file, so that a missing method does not exist."""
    is_model: bool = False
    origins: dict[str, Scope] = field(default_factory=dict)
    """The scopes of the methods that another class of another module has defined."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What was assigned to the class since."""

    def bound(self, name: str, instance: object) -> Function | None:
        """A method of this class, of an object of it."""
        node = self.methods.get(name)
        return None if node is None else Function(node, self.origins.get(name, self.scope), instance)


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class of this file."""

    cls: Class
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Scope:
    """The names of one function, with the scope around it."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    shared: set[str] = field(default_factory=set)
    """Names declared ``global`` or ``nonlocal`` here."""

    def find(self, name: str) -> Scope | None:
        """The scope that holds ``name``, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and name not in scope.shared:
                return scope
            scope = scope.outer
        return None

    def assign(self, name: str, value: Any) -> None:
        """Bind ``name`` here, or where ``global`` or ``nonlocal`` says."""
        holder = self.outer.find(name) if name in self.shared and self.outer else self
        (holder or self).names[name] = value


@dataclass(frozen=True, slots=True, eq=False)
class BoundMethod:
    """``optimizer.zero_grad``, not called: a callable that was written as ``node``."""

    owner: Any
    node: syntax.Attribute

    def called(self, at: syntax.Call) -> syntax.Call:
        """The call of it that a call by another name is."""
        return syntax.Call(at.where, at.origin, self.node, at.args, at.keywords)


@dataclass(slots=True, eq=False)
class Partial:
    """``functools.partial``: a callable with some of its arguments."""

    callee: Any
    args: list[Any]
    kwargs: dict[str, Any]

"""What every piece of syntax is: frozen, compared by identity, with a place in its file and the tree that it comes of.

Its classes are made by a metaclass of few lines, and not by `dataclasses`: sixty of those would cost a third of what
loading LibCST costs, every time that a script is linted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from gradcheck_accum.ledger.location import Location

if TYPE_CHECKING:
    from libcst import CSTNode
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Only type checkers look at what this says."""
        return lambda cls: cls


NOWHERE = Location("", 1)

_NO_NODES = frozenset(
    {"Any", "str", "str | None", "int", "bool", "tuple[str, ...]"}
    | {"Operator", "UnaryOperator", "Junction", "tuple[Comparison, ...]", "tuple[Comment, ...]"}
)
"""The types of fields that hold names, numbers and signs only."""


@dataclass_transform(frozen_default=True, eq_default=False)
class Kind(type):
    """Makes the constructor of a kind of node, which takes its fields in the order of their declaration."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Kind:
        types = {n: kind for n, kind in namespace.get("__annotations__", {}).items() if not kind.startswith("ClassVar")}
        namespace["__slots__"] = (*types, *namespace.get("__slots__", ()))
        inherited: tuple[str, ...] = getattr(bases[0], "FIELDS", ()) if bases else ()
        fields = namespace["FIELDS"] = (*inherited, *types)
        namespace["PARTS"] = tuple(n for n, kind in types.items() if kind not in _NO_NODES) if inherited else ()
        made = super().__new__(cls, name, bases, namespace)
        made.__init__ = _constructor(made, fields)  # type: ignore[misc]
        return made


def _constructor(made: Kind, fields: tuple[str, ...]) -> Any:
    """``__init__`` of a kind of node; it goes past `__setattr__`, which refuses every change."""
    scope = {f"_set_{field}": getattr(made, field).__set__ for field in fields}
    body = "\n".join(f" _set_{field}(self, {field})" for field in fields)
    exec(f"def __init__(self, {', '.join(fields)}):\n{body}", scope)
    return scope["__init__"]


class Node(metaclass=Kind):
    """A piece of syntax; all fields but the two here are its own."""

    where: Location
    origin: CSTNode | None

    FIELDS: ClassVar[tuple[str, ...]]
    """All fields."""
    PARTS: ClassVar[tuple[str, ...]]
    """The fields in which other nodes stand, alone or several."""

    __slots__ = ("_text", "_walked")
    _text: ClassVar[str]
    """How it is written, once that has been asked for (`gradcheck_accum.lint.syntax.text`)."""
    _walked: ClassVar[tuple[Node, ...]]
    """It and all below it, once that has been asked for (`gradcheck_accum.lint.syntax.walking`)."""

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

"""Where a number comes from: the names that it was bound to, and the places of the constants that it began as.

A number keeps its identity while it is passed on: assigned to another name, passed to a function, converted to a float.
What is computed from several others is a new number, and does not have their names. The length of something is the
batch's size if that is a tensor, and a constant if the source writes the container out; otherwise it has the names of
what it is the length of.
"""

from __future__ import annotations

import ast

import torch

from gradcheck_accum.ledger.stated_names import (
    LOSSES,
    NAME_OF_SIZE,
    WHAT_REMAINS,
    name_of_parameter,
    origin_of_extent,
    origin_of_length,
    origin_of_total,
)
from gradcheck_accum.verify.provenance.bindings import is_parameter, owner_of
from gradcheck_accum.verify.provenance.counters import is_length
from gradcheck_accum.verify.provenance.following import Place, sources_of
from gradcheck_accum.verify.provenance.options import other_names
from gradcheck_accum.verify.provenance.readable import value_of
from gradcheck_accum.verify.stack.frames import shown

_MOST_NAMES = 4
"""The number of names that a list is followed through."""

_AS_LONG = frozenset({"list", "tuple", "reversed", "sorted"})
"""Functions that give as many items as they are given."""


_AS_TENSOR = frozenset({"torch.tensor", "torch.as_tensor", "torch.stack", "torch.cat", "list", "tuple"})
"""Functions that make a tensor of the items of a list."""


class Origins:
    """Reads the origins of one expression; ``depth`` is how many callers were searched for them."""

    def __init__(self, *, names_alone: bool = False) -> None:
        self.depth = 0
        self._names_alone = names_alone
        """Whether to use only the names in the expression itself: a framework's code is not followed."""
        self._seen: set[ast.expr] = set()

    def of(self, node: ast.expr, place: Place) -> frozenset[str] | None:
        """The origins of a number, None where it is computed there, or where nothing is known about it."""
        match node:
            case ast.Constant(value=bool() | str() | bytes()):
                return None
            case ast.Constant(value=int() | float()):
                return frozenset({_place_of(node, place)})
            case ast.Constant(value=None):
                # A name that is given its number later.
                return frozenset()
            case ast.Name(id=name):
                found = self._followed(node, place)
                owner = owner_of(place.syntax, place.scope, name)
                is_passed = owner is not None and is_parameter(owner, name)
                return found | {name_of_parameter(name, found) if is_passed else name}
            case ast.Attribute(attr=name) if (dotted := _dotted(node)) is not None:
                return frozenset({name, dotted}) | other_names(name, place.syntax) | self._followed(node, place)
            case ast.NamedExpr(target=ast.Name() as target):
                return self.of(target, place)
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))):
                return _entry(owner, key)
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *_]):
                return _entry(owner, key)
            case ast.Subscript(value=owner) if place.frame is not None and type(value_of(owner, place.frame)) is dict:
                return frozenset({ast.unparse(node)})
            case ast.Call(func=ast.Name(id="len"), args=[owner], keywords=[]):
                return self._of_length(owner, place)
            case ast.Call(func=ast.Name(id="min"), args=[_, _, *_] as several, keywords=[]):
                return self._of_one_of(several, place)
            case ast.IfExp(body=one, orelse=other) if any(self._of_what_remains(own, place) for own in (one, other)):
                return self._of_one_of([one, other], place)
        size = size_asked(node)
        if size is not None:
            return self._of_size(*size, place)
        summed = _summed_over(node)
        if summed is not None:
            return frozenset(map(origin_of_total, self.of_length(summed, place)))
        inner = passed_through(node)
        return None if inner is None else self.of(inner, place)

    def _of_one_of(self, several: list[ast.expr], place: Place) -> frozenset[str] | None:
        """The origins of a number that is one of several: the names of all; a literal counts where none has one."""
        literal = [one for one in several if isinstance(one, ast.Constant)]
        named = [one for one in several if one not in literal]
        known = [own for own in (self.of(one, place) for one in named) if own]
        known = known or [own for own in (self.of(one, place) for one in literal) if own]
        remains = (self._of_what_remains(one, place) for one in named)
        return frozenset[str]().union(*remains, *known) or None

    def _of_size(self, owner: ast.expr, dimension: ast.expr, place: Place) -> frozenset[str] | None:
        """The origins of the size of a tensor along one dimension."""
        held = None if place.frame is None else value_of(owner, place.frame)
        match dimension:
            case ast.Constant(value=int(number)):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(back))) if isinstance(held, torch.Tensor):
                number = held.ndim - back
            case _:
                return None
        if number == 0:
            return self._of_length(owner, place)
        if not isinstance(held, torch.Tensor):
            return None
        return frozenset({origin_of_extent(f"{ast.unparse(owner)}.shape[{number}] in {_home_of(owner, place)}")})

    def _of_length(self, owner: ast.expr, place: Place) -> frozenset[str] | None:
        """The origins of a tensor's number of rows, of the length of a display in the source, or of another list."""
        held = None if place.frame is None else value_of(owner, place.frame)
        if isinstance(held, torch.Tensor):
            return frozenset({NAME_OF_SIZE})
        found = self._of_items(owner, place)
        return found | {LOSSES} if _holds_losses(held) else found or None

    def _of_items(self, owner: ast.expr, place: Place) -> frozenset[str]:
        displays = [(owner, place)] if _is_display(owner) else sources_of(owner, place).values
        if not displays or not all(_is_display(value) for value, _ in displays):
            return self.of_length(owner, place)
        name = _dotted(owner)
        return frozenset(_place_of(value, at) for value, at in displays) | ({f"len({name})"} if name else set())

    def of_length(self, node: ast.expr, place: Place, names: int = _MOST_NAMES) -> frozenset[str]:
        """The origins of the length of a list: the variables that hold it, and the places where it is made."""
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _AS_LONG and node.args:
            return self.of_length(node.args[0], place, names)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return frozenset({origin_of_length(_place_of(node, place))})
        found = frozenset({origin_of_length(f"{ast.unparse(node)} in {_home_of(node, place)}")})
        if not names or self._names_alone:
            return found
        sources = sources_of(node, place)
        self.depth = max(self.depth, sources.depth)
        return found.union(*(self.of_length(value, at, names - 1) for value, at in sources.values))

    def _of_what_remains(self, node: ast.expr, place: Place) -> frozenset[str]:
        """The origin of what remains of a length, by subtraction or modulo; of rows if it is the length of a tensor."""
        match node:
            case ast.BinOp(left=length, op=ast.Sub() | ast.Mod()) if is_length(length, place):
                return frozenset({NAME_OF_SIZE if NAME_OF_SIZE in (self.of(length, place) or ()) else WHAT_REMAINS})
            case ast.BinOp():
                return frozenset()
        sources = sources_of(node, place)
        self.depth = max(self.depth, sources.depth)
        every = {
            self._of_what_remains(own, at) if isinstance(own, ast.BinOp) else frozenset[str]()
            for own, at in sources.values
        }
        return every.pop() if len(every) == 1 and sources.known else frozenset()

    def _followed(self, node: ast.expr, place: Place) -> frozenset[str]:
        """The origins of all values of a name; empty where nothing is known about one of them."""
        if self._names_alone:
            return frozenset()
        sources = sources_of(node, place)
        self.depth = max(self.depth, sources.depth)
        found = sources.imported
        for value, at in sources.values:
            if value in self._seen:
                continue
            self._seen.add(value)
            own = self.of(value, at)
            if own is None:
                return frozenset()
            found |= own
        return found if sources.known else frozenset()


def _home_of(node: ast.expr, place: Place) -> str:
    """Where the scope begins that a name belongs to."""
    own = owner_of(place.syntax, place.scope, node.id) if isinstance(node, ast.Name) else None
    return f"{shown(place.syntax.filename)}:{getattr(own or place.scope, 'lineno', 0)}"


def _place_of(node: ast.expr, place: Place) -> str:
    return f"{shown(place.syntax.filename)}:{node.lineno}:{node.col_offset + 1}"


def _holds_losses(value: object) -> bool:
    """Whether the items of a list, or the values of a dictionary, are losses: numbers that gradients flow through."""
    if type(value) is dict:
        value = [*value.values()]
    items = value if type(value) is list or type(value) is tuple else ()
    return bool(items) and all(type(one) is torch.Tensor and one.numel() == 1 and one.requires_grad for one in items)


def _is_display(node: ast.expr) -> bool:
    """Whether an expression writes out the items of a container; an empty one may be filled later."""
    match node:
        case ast.List(elts=own) | ast.Tuple(elts=own) | ast.Set(elts=own):
            return bool(own) and not any(isinstance(element, ast.Starred) for element in own)
        case ast.Dict(keys=keys):
            return bool(keys) and None not in keys
    return False


def size_asked(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The tensor and the dimension whose size an expression is: ``x.shape[1]``, ``x.size(1)``; None if it is none."""
    match node:
        case (
            ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[dimension], keywords=[])
            | ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=dimension)
            | ast.Subscript(value=ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[]), slice=dimension)
        ):
            return owner, dimension
    return None


def _summed_over(node: ast.expr) -> ast.expr | None:
    """The list over whose items a number is summed: ``sum(len(x) for x in window)``, ``sum(map(len, window))``."""
    match node:
        case ast.Call(func=ast.Name(id="sum"), args=[items, *_]):
            return _gone_through(items)
        case ast.Call(func=ast.Attribute(value=items, attr="sum"), args=[]):
            while isinstance(items, ast.Call) and ast.unparse(items.func) in _AS_TENSOR and items.args:
                items = items.args[0]
                if (listed := _gone_through(items)) is not None:
                    return listed
    return None


def _gone_through(items: ast.expr) -> ast.expr | None:
    match items:
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return first.iter
        case ast.Call(func=ast.Name(id="map"), args=[_, listed]):
            return listed
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner]):
            return _gone_through(inner)
    return None


def passed_through(node: ast.expr) -> ast.expr | None:
    """The number that ``node`` passes on, or 1 over it: ``float(K)``, ``max(K, 1)``, ``1 / K``; None if it computes."""
    match node:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Div(), right=inner):
            return inner
        case ast.Call(func=ast.Name(id="float" | "int"), args=[inner], keywords=[]):
            return inner
        case ast.Call(func=ast.Attribute(value=inner, attr="item" | "float" | "double"), args=[], keywords=[]):
            return inner
        case ast.Call(func=ast.Attribute(value=inner, attr="clamp"), args=[], keywords=[ast.keyword(arg="min")]):
            return inner
        case ast.Call(func=ast.Name(id="max"), args=[inner, ast.Constant()] | [ast.Constant(), inner], keywords=[]):
            return inner
        case ast.BoolOp(op=ast.Or(), values=[inner, ast.Constant()]):
            return inner
    return None


def _dotted(node: ast.expr) -> str | None:
    """``config.training.accum``, if it consists of names alone."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            inner = _dotted(owner)
            return None if inner is None else f"{inner}.{name}"
    return None


def _entry(owner: ast.expr, key: str) -> frozenset[str]:
    return frozenset({key, f"{ast.unparse(owner)}[{key!r}]"})

"""What holds tensors: lists, tuples, dictionaries, and objects of any plain class.

A call depends on the tensors that it was given, whatever holds them: a named tuple, a dataclass, a batch object of a
library. An object is taken apart into its attributes and items, and rebuilt without running any code of its
class, so that the loop's own objects are neither changed nor asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import MemberDescriptorType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

_DEEPEST = 6
"""How many containers, one inside another, are looked into. Objects may refer to each other in a circle."""

_PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size})
"""Types that hold no tensor, and are most of what calls are given."""


_OF_PYTHON_CLASSES: Any = object.__new__
"""How an object is made whose class is written in Python, and says nothing else: all that it holds is stored later."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What a packed sequence holds, in order."""

    fields: tuple[Any, ...]

    def mapped(self, change: Callable[[Any], Any]) -> Packed:
        """The same with each of its fields changed."""
        return Packed(tuple(map(change, self.fields)))

    def rebuilt(self) -> PackedSequence:
        """A packed sequence of these fields."""
        return PackedSequence(*self.fields)


@dataclass(frozen=True, slots=True)
class Held:
    """What an object holds: its ``attributes``, the ``items`` of a tuple, the ``entries`` of a dictionary."""

    kind: type
    attributes: dict[str, Any]
    items: tuple[Any, ...] = ()
    entries: tuple[tuple[Any, Any], ...] = ()

    @classmethod
    def of(cls, value: Any) -> Held | None:
        """What an object holds; None if its type does not say how to rebuild it, or if it holds what trains."""
        kind = type(value)
        if isinstance(value, (nn.Module, type)):
            return None
        attributes = attributes_of(value)
        if any(isinstance(held, (nn.Module, torch.optim.Optimizer)) for held in attributes.values()):
            # A trainer, which counts its micro-batches, is no data.
            return None
        if isinstance(value, tuple):
            return cls(kind, attributes, items=tuple(value))
        if isinstance(value, dict):
            return cls(kind, attributes, entries=tuple(value.items()))
        is_made_so = kind.__new__ in (_OF_PYTHON_CLASSES, SimpleNamespace.__new__)
        return cls(kind, attributes) if attributes and is_made_so else None

    @property
    def values(self) -> Iterator[Any]:
        """What it holds, in a fixed order."""
        yield from self.items
        yield from (value for _, value in self.entries)
        yield from self.attributes.values()

    def mapped(self, change: Callable[[Any], Any]) -> Held:
        """The same object with each of its values changed."""
        return replace(
            self,
            attributes={name: change(value) for name, value in self.attributes.items()},
            items=tuple(change(item) for item in self.items),
            entries=tuple((key, change(value)) for key, value in self.entries),
        )

    def rebuilt(self) -> Any:
        """A new object of this kind. Raises TypeError if there can be none without the code of its class."""
        kind: Any = self.kind
        if issubclass(kind, tuple):
            # The results of PyTorch's functions are tuples of a kind that only they themselves can make.
            made = kind(self.items) if hasattr(kind, "n_fields") else tuple.__new__(kind, self.items)
        else:
            made = kind.__new__(kind)
        store: Any = OrderedDict if issubclass(kind, OrderedDict) else dict
        for key, value in self.entries:
            store.__setitem__(made, key, value)
        slots = _slots(self.kind)
        for name, value in self.attributes.items():
            if name in slots:
                slots[name].__set__(made, value)
            else:
                made.__dict__[name] = value
        return made


_known: WeakKeyDictionary[type, dict[str, MemberDescriptorType]] = WeakKeyDictionary()


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    """The attributes that objects of a class in Python keep without a dictionary, by name."""
    if kind not in _known:
        every = ((name, own) for base in kind.__mro__ for name, own in vars(base).items())
        is_own = kind.__new__ is _OF_PYTHON_CLASSES
        _known[kind] = {name: own for name, own in every if is_own and isinstance(own, MemberDescriptorType)}
    return _known[kind]


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object itself has, without those of its class, by name."""
    found = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(type(value)).items():
        try:
            found[name] = slot.__get__(value)
        except AttributeError:
            continue  # Nothing has been stored in it.
    return found


def taken_apart(value: Any, change: Callable[[torch.Tensor], Any], depth: int = 0) -> Any:
    """The same value in new containers, with each tensor changed; an object that holds tensors becomes a `Held`."""
    if isinstance(value, torch.Tensor):
        return change(value)
    kind = type(value)
    if kind in _PLAIN or depth > _DEEPEST:
        return value

    def part(item: Any) -> Any:
        return taken_apart(item, change, depth + 1)

    if kind is dict:
        return {key: part(item) for key, item in value.items()}
    if isinstance(value, list):
        return [part(item) for item in value]
    if kind is tuple:
        return tuple(map(part, value))
    if isinstance(value, PackedSequence):
        return Packed(tuple(map(part, value)))
    if isinstance(value, (Packed, Held)):
        return value.mapped(part)
    held = Held.of(value) if next(tensors_in(value, depth), None) is not None else None
    return value if held is None else held.mapped(part)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: what is taken apart with it holds the same tensors, whatever is stored in it later."""
    return tensor


def rebuilt(value: Any, found: Callable[[Any], Any]) -> Any:
    """What was taken apart, with ``found`` of everything that is no container."""
    return _with_each(value, found, is_rebuilt=True)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """What was taken apart, still so, with a ``change`` of everything in it that is no container."""
    return _with_each(value, change, is_rebuilt=False)


def _with_each(value: Any, change: Callable[[Any], Any], *, is_rebuilt: bool) -> Any:
    def part(item: Any) -> Any:
        return _with_each(item, change, is_rebuilt=is_rebuilt)

    match value:
        case Held() | Packed():
            own = value.mapped(part)
            return own.rebuilt() if is_rebuilt else own
        case dict():
            return {key: part(item) for key, item in value.items()}
        case list():
            return [part(item) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(map(part, value))
    return change(value)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in nested containers and objects, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth > _DEEPEST or type(value) in _PLAIN:
        return
    if isinstance(value, (nn.Module, type)):
        return
    held: Iterable[Any]
    if isinstance(value, Packed):
        held = value.fields
    elif isinstance(value, Held):
        held = value.values
    elif isinstance(value, dict):
        held = value.values() if type(value) is dict else (*value.values(), *attributes_of(value).values())
    elif isinstance(value, (list, tuple)):
        held = value if type(value) in (list, tuple) else (*value, *attributes_of(value).values())
    else:
        held = attributes_of(value).values()
    for item in held:
        yield from tensors_in(item, depth + 1)


def leaves_of(value: Any) -> Iterator[Any]:
    """The values in what was taken apart, including keys of dictionaries and bounds of slices, in a fixed order."""
    if isinstance(value, slice):
        yield from leaves_of((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        yield from leaves_of(list(value.items()))
    elif isinstance(value, Held):
        yield from leaves_of([*value.values])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value

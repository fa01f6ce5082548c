"""Values like others, of which every run of a loop makes thousands."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def changed(value: _Value, **fields_: Any) -> _Value:
    """``dataclasses.replace`` in a third of its time, for dataclasses with slots that only keep what they are given."""
    kind: Any = value.__class__
    made: _Value = object.__new__(kind)
    for name, get, put in _slots(kind):
        put(made, fields_[name] if name in fields_ else get(value))
    return made


@cache
def _slots(kind: type[Any]) -> tuple[tuple[str, Any, Any], ...]:
    """The fields of a dataclass, each with what reads and what writes its slot, however frozen it is."""
    slots = ((field.name, getattr(kind, field.name)) for field in fields(kind))
    return tuple((name, slot.__get__, slot.__set__) for name, slot in slots)

"""Values like others, of which every run of a loop makes thousands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def changed(value: _Value, **fields_: Any) -> _Value:
    """``dataclasses.replace`` in a fifth of its time, for dataclasses with slots that only keep what they are given.

    They are those of `gradcheck_accum.quick_dataclass`.
    """
    kind: Any = value.__class__
    made: _Value = _copier(kind)(value)
    for name, own in fields_.items():
        setattr(made, name, own)
    return made


@cache
def _copier(kind: type[Any]) -> Callable[[Any], Any]:
    """What makes a copy of a dataclass, field by field, as if the fields were written out."""
    scope: dict[str, Any] = {"new": object.__new__, "kind": kind}
    copies = "".join(f" made.{field.name} = value.{field.name}\n" for field in fields(kind))
    exec(f"def copied(value):\n made = new(kind)\n{copies} return made", scope)
    copier: Callable[[Any], Any] = scope["copied"]
    return copier

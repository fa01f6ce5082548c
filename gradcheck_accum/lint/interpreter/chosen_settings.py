"""One of several objects or dictionaries of settings, which a key that the source does not show chooses.

``config = CONFIGS[args.model]``: what is the same in all of them is known, and anything else is a setting.
"""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.values import Num, Symbol


def one_of(items: dict[Any, Any], name: str) -> Any:
    """What stands for each of the items of a dictionary; None where they are not all settings of one kind."""
    several = list(items.values())
    if not several or not v.shows_its_keys(items):
        return None
    first = several[0]
    if isinstance(first, v.Instance) and all(isinstance(one, v.Instance) and one.cls is first.cls for one in several):
        merged = _merged([one.attributes for one in several], name)
        return None if merged is None else v.Instance(first.cls, merged)
    if all(type(one) is dict and v.shows_its_keys(one) for one in several):
        return _merged(several, name)
    return None


def _merged(several: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The settings that all have, each a setting of its own where they differ; None where any is more than that."""
    common = [key for key in several[0] if all(key in one for one in several)]
    if not common or not all(_is_setting(value) for one in several for value in one.values()):
        return None
    chosen: dict[str, Any] = {}
    for key in common:
        values = [one[key] for one in several]
        same = all(_equal(values[0], other) for other in values[1:])
        chosen[key] = values[0] if same else Symbol(f"{name}.{key}")
    return chosen


def _is_setting(value: Any) -> bool:
    """Whether a value is nothing that trains, or is trained on."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_setting, value))
    if isinstance(value, dict):
        return all(map(_is_setting, value.values()))
    plain = (Num, bool, str, v.Reference, v.Function, v.Class)
    return value is None or isinstance(value, plain) or type(value) is Symbol


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Num) and isinstance(other, Num):
        return one.value == other.value
    return one is other or (isinstance(one, (bool, str, v.Reference)) and one == other)

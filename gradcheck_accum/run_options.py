"""What a run under ``verify`` may be told, and which values make sense: on the command line and in settings alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

REFERENCES = ("ledger", "replay", "both")
DTYPES = ("float64", "float32", "bfloat16", "float16")


class OptionError(ValueError):
    """A value, or values together, that make no sense; the message says what they must be."""


def positive_int(value: int) -> int:
    """The value where it is a count of something. Raises OptionError."""
    if value < 1:
        raise OptionError("must be 1 or more")
    return value


def positive(value: float) -> float:
    """The value where there is some of it. Raises OptionError."""
    if not value > 0:
        raise OptionError("must be more than 0")
    return value


def not_negative(value: float) -> float:
    """The value where it is no less than nothing. Raises OptionError."""
    if not value >= 0:
        raise OptionError("must be 0 or more")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError("must be a whole number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise OptionError("must be a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError("must be a string")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError("must be true or false")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise OptionError(f"must be one of {', '.join(choices)}")
        return str(value)

    return read


SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "max-windows": lambda value: positive_int(_whole(value)),
    "reference": _one_of(*REFERENCES),
    "dtype": _one_of(*DTYPES),
    "device": _text,
    "timeout": lambda value: positive(_number(value)),
    "loss-coefficient": _number,
    "rtol": lambda value: not_negative(_number(value)),
    "atol": lambda value: not_negative(_number(value)),
    "trajectory": _truth,
    "verbose": _truth,
}
"""Reads the values that stand in a project's settings, by the name of the option. Each raises OptionError."""


def refuse_clashes(given: Mapping[str, Any], called: Callable[[str], str]) -> None:
    """Raise OptionError where options do not fit together; ``called`` is how they are named where they were given."""
    if (given.get("rtol") is None) != (given.get("atol") is None):
        raise OptionError(f"{called('rtol')} and {called('atol')} are given both or neither")
    if given.get("trajectory") and given.get("reference") == "ledger":
        raise OptionError(f"{called('trajectory')} needs the replay: leave {called('reference')} out, or give both")

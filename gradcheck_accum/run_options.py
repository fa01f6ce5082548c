"""The options of a run under ``verify``, and their valid values: on the command line and in settings alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REFERENCES = ("ledger", "replay", "both", "sketch")
DTYPES = ("float64", "float32", "bfloat16", "float16")


class OptionError(ValueError):
    """A value, or a combination of values, that is invalid; the message says what is required."""


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that may be used in addition to the loop's: ``bytes``, or a ``share`` of what is free if not None."""

    bytes: float = 0.0
    share: float | None = None


def memory_budget(value: object) -> MemoryBudget:
    """The budget given in bytes, with a unit (800MB, 1.5 GiB), or as a share of free memory (50%).

    Raises OptionError.
    """
    text = str(value).strip().upper() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?I?B|%|)", text)
    if found is None or found[2] == "IB":
        raise OptionError("must be a number of bytes (800MB, 1.5GiB) or a share of free memory (50%)")
    number = float(found[1])
    if found[2] != "%":
        return MemoryBudget(number * _UNITS[found[2]])
    if number > 100:
        raise OptionError("must be at most 100% of free memory")
    return MemoryBudget(share=number / 100)


def positive_int(value: int) -> int:
    """The value if it is at least 1. Raises OptionError."""
    if value < 1:
        raise OptionError("must be 1 or more")
    return value


def positive(value: float) -> float:
    """The value if it is above 0. Raises OptionError."""
    if not value > 0:
        raise OptionError("must be more than 0")
    return value


def not_negative(value: float) -> float:
    """The value if it is at least 0. Raises OptionError."""
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
    "memory-budget": memory_budget,
    "timeout": lambda value: positive(_number(value)),
    "loss-coefficient": _number,
    "rtol": lambda value: not_negative(_number(value)),
    "atol": lambda value: not_negative(_number(value)),
    "trajectory": _truth,
    "verbose": _truth,
}
"""Reads the values of a project's settings, by the name of the option. Each raises OptionError."""


def refuse_clashes(given: Mapping[str, Any], called: Callable[[str], str]) -> None:
    """Raise OptionError if options conflict; ``called`` returns the name of an option where it was given."""
    if (given.get("rtol") is None) != (given.get("atol") is None):
        raise OptionError(f"{called('rtol')} and {called('atol')} are given both or neither")
    if given.get("trajectory") and given.get("reference") in ("ledger", "sketch"):
        raise OptionError(f"{called('trajectory')} needs the replay: leave {called('reference')} out, or give both")

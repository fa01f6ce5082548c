"""Settings that the source writes as a text of another language: ``json.loads('{"accum_steps": 4}')``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.state.values import UNKNOWN, Num, bounded


def settings_of_json(text: str, where: Location) -> Any:
    """What ``json.loads(text)`` gives; ``UNKNOWN`` where that is an error. Each number is a constant of its own."""
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return UNKNOWN
    return _values(written, f"{where.line}:{where.column}", itertools.count())


def _values(written: Any, where: str, numbers: Iterator[int]) -> Any:
    match written:
        case dict():
            return {key: _values(value, where, numbers) for key, value in written.items()}
        case list():
            return [_values(value, where, numbers) for value in written]
        case bool() | str() | None:
            return written
        case int() | float():
            return bounded(Num(written, origins=frozenset({f"{where}:{next(numbers)}"})))
    return UNKNOWN

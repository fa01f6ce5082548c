"""The budget for searching repairs in one file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """How many evaluations may still be spent on searching for repairs in one file."""

    left: int

"""How much may be spent on looking for repairs in one file."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_EVALUATIONS = 500_000
"""Evaluations after which no more repairs are tried in one file: what is left then has no fix, and says so."""


@dataclass(slots=True)
class Budget:
    """How many evaluations may still be spent on looking for repairs in one file."""

    left: int = _MOST_EVALUATIONS

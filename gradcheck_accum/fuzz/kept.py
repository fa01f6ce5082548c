"""The cases that a loop failed on before, kept in Hypothesis's database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from hypothesis import settings

from gradcheck_accum.fuzz.cases import AccumCase


class KeptCases:
    """The failing cases of one loop in the active profile's database; none if the profile has no database."""

    def __init__(self, name: str) -> None:
        self._database = settings.default.database if settings.default else None
        self._key = f"gradcheck-accum {name}".encode()

    def cases(self) -> list[AccumCase]:
        """The cases that failed in the last run, in a fixed order."""
        if self._database is None:
            return []
        read = (_case(saved) for saved in sorted(self._database.fetch(self._key)))
        return [case for case in read if case is not None]

    def replace(self, cases: Sequence[AccumCase]) -> None:
        """Keep ``cases`` and discard all others."""
        if self._database is None:
            return
        wanted = {json.dumps(asdict(case)).encode() for case in cases}
        for saved in set(self._database.fetch(self._key)) - wanted:
            self._database.delete(self._key, saved)
        for saved in sorted(wanted):
            self._database.save(self._key, saved)


def _case(saved: bytes) -> AccumCase | None:
    """A kept case; None if another version wrote it."""
    try:
        values = json.loads(saved)
        return AccumCase(**{**values, "ignored": tuple(values["ignored"])})
    except (ValueError, TypeError, KeyError):
        return None

"""How control leaves a statement early: as in the interpreted program, or because the interpretation must stop."""

from __future__ import annotations

from typing import Any


class Restart(Exception):
    """A number became known that earlier statements should have used."""


class OutOfBudget(Exception):
    """The file needs more interpretation than its budget allows; nothing is concluded from it."""


class Doubted(Exception):
    """Something that could not be followed preceded a step: nothing can be concluded from this run."""


class Broke(Exception):
    """``break``"""


class Continued(Exception):
    """``continue``"""


class Returned(Exception):
    """``return value``"""

    def __init__(self, value: Any) -> None:
        self.value = value


class Raised(Exception):
    """``raise``"""


class Exhausted(Exception):
    """``next`` met the end of its iterator where the program waits for it."""

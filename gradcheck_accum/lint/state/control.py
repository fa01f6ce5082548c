"""How control leaves a statement before its end: as in the program that is interpreted, and where that must stop."""

from __future__ import annotations

from typing import Any


class Restart(Exception):
    """A number became known that earlier statements should have used."""


class OutOfBudget(Exception):
    """The file needs more interpretation than it is allowed; nothing is concluded from it."""


class Doubted(Exception):
    """Something that could not be followed came before a step: nothing of this run can be concluded from."""


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

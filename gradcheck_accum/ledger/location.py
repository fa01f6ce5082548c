"""A place in a source file: what every event, finding and report points to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a source file; lines and columns count from 1, and 0 in the end fields means "not known".

    ``cell`` is 0 except in a notebook: there it is the number of the cell, from 1, and lines count from the cell's
    first. ``through`` is the package, with its version, that the line called into, if what is located happened inside
    one: the framework behind ``trainer.train()``.
    """

    path: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    cell: int = 0
    through: str = field(default="", compare=False)

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line."""
        return self.path, self.line

    def __str__(self) -> str:
        return f"{self.path}:cell {self.cell}:{self.line}" if self.cell else f"{self.path}:{self.line}"

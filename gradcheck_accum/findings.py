"""What ``lint`` reports: values that every report renders and that know neither engine."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.events import Location
from gradcheck_accum.mistakes import Mistake


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the text from (``line``, ``column``) up to (``end_line``, ``end_column``) by ``content``; 1-based."""

    line: int
    column: int
    end_line: int
    end_column: int
    content: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A repair: ``safe`` keeps every other meaning of the program, an unsafe one may not."""

    safe: bool
    message: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake at one place in a source file. ``help`` says what to do about it."""

    mistake: Mistake
    where: Location
    message: str
    help: str = ""
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that could not be analysed, and the one line that says why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """All that one run of ``lint`` found, in order of path and line."""

    findings: tuple[Finding, ...]
    unreadable: tuple[Unreadable, ...]
    files: int
    suppressed: int = 0
    fixed: tuple[Finding, ...] = ()
    """What was found and has been fixed: none of ``findings``."""

    @property
    def exit_status(self) -> int:
        """0 nothing found, 1 findings, 2 if any path could not be analysed."""
        if self.unreadable:
            return 2
        return 1 if self.findings else 0

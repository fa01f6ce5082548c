"""What ``lint`` reports: values that every report renders and that know neither engine."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.location import Location
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
    """One mistake at one place in a source file. ``help`` says what to do about it.

    ``text`` is the line at that place, by which a baseline knows the finding again.
    """

    mistake: Mistake
    where: Location
    message: str
    help: str = ""
    fix: Fix | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A comment that switches off what is not there."""

    where: Location
    message: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that could not be analysed, and the one line that says why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """All that one run of ``lint`` found, in order of path and line.

    ``in_baseline`` counts the findings that a baseline took out, and ``unused`` are the suppressions without use: both
    are None where nobody asked.
    """

    findings: tuple[Finding, ...]
    unreadable: tuple[Unreadable, ...]
    files: int
    suppressed: int = 0
    in_baseline: int | None = None
    unused: tuple[UnusedSuppression, ...] | None = None
    fixed: tuple[Finding, ...] = ()
    """What was found and has been fixed: none of ``findings``."""

    @property
    def exit_status(self) -> int:
        """0 nothing found, 1 findings or suppressions without use, 2 if any path could not be analysed."""
        if self.unreadable:
            return 2
        return 1 if self.findings or self.unused else 0

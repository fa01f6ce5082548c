"""What ``lint`` reports: values that every report renders and that depend on neither engine."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import Mistake, Severity
from gradcheck_accum.wording import Said, in_words


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the text from (``line``, ``column``) up to (``end_line``, ``end_column``) by ``content``; 1-based.

    In a notebook lines count from the first of the ``cell``, as in a `Location`.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    content: str
    cell: int = 0


@dataclass(frozen=True, slots=True)
class Fix:
    """A repair: a ``safe`` one preserves everything else that the program does, an unsafe one may not."""

    safe: bool
    message: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake at one place in a source file. ``said`` states it, ``help`` what to do about it.

    ``text`` is the line at that place, by which a baseline recognizes the finding; ``fix_left_out`` says that no fix
    was looked for, because those before it in the file took all the time that there is. ``likely`` says that it is a
    mistake with data as they mostly are, which the source does not show.
    """

    mistake: Mistake
    where: Location
    said: Said
    help: str = ""
    fix: Fix | None = None
    text: str = ""
    fix_left_out: bool = False
    likely: bool = False

    @property
    def message(self) -> str:
        """The message, as it is shown at the place of the mistake."""
        return in_words(self.said, self.where)

    @property
    def severity(self) -> Severity:
        """The severity: a mistake that is only likely is a warning."""
        return Severity.WARNING if self.likely else self.mistake.severity


def in_order(finding: Finding) -> tuple[str, int, int, int, str]:
    """The sort key of findings: their places, cell by cell in a notebook."""
    where = finding.where
    return where.path, where.cell, where.line, where.column, finding.mistake.code


@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A comment that suppresses nothing."""

    where: Location
    message: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that could not be analyzed, and the one line that says why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A text before and after its fixes: a script's, or that of one ``cell`` of a notebook."""

    before: str
    after: str
    cell: int = 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What fixing makes of a file: its content before and after, what of it differs, what is fixed, what remains."""

    path: str
    before: bytes
    after: bytes
    pieces: tuple[Piece, ...]
    fixed: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class LintResult:
    """All that one run of ``lint`` found, in order of path and line.

    ``in_baseline`` counts the findings that a baseline excluded, and ``unused`` are the unused suppressions; both are
    None unless requested.
    """

    findings: tuple[Finding, ...]
    unreadable: tuple[Unreadable, ...]
    files: int
    suppressed: int = 0
    in_baseline: int | None = None
    unused: tuple[UnusedSuppression, ...] | None = None
    fixed: tuple[Finding, ...] = ()
    """What was found and has been fixed, which is not among ``findings``."""
    not_followed: int = 0
    """Loops that took more than the budget to follow: nothing is known about them."""
    unread: tuple[str, ...] = ()
    """Modules that the linted files import and that were not read for lack of budget: what they do is unknown."""
    rewrites: tuple[Rewrite, ...] = ()
    """What fixing would make of the files that it changes, where that was asked for."""

    @property
    def exit_status(self) -> int:
        """0 nothing found, 1 findings or suppressions without use, 2 if any path could not be analyzed."""
        if self.unreadable:
            return 2
        return 1 if self.findings or self.unused else 0

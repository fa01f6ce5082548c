"""The result of analyzing one file, before any setting is applied to it."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.results.findings import Finding, Rewrite, UnusedSuppression


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings that no comment suppresses, the codes of those that one does, and the unused comments.

    ``problem`` is a line that says why there was no analysis, if there was none; ``not_followed`` counts the loops that
    exceeded the budget, of which nothing is known. ``rewrite`` is the fixed file if that was requested; otherwise every
    finding has its fix. ``read`` are the other files that it depends on, each with a digest of its content, and
    ``unread`` those that the budget left out (`gradcheck_accum.lint.program.imported_modules`).
    """

    findings: tuple[Finding, ...] = ()
    suppressed: tuple[str, ...] = ()
    unused: tuple[UnusedSuppression, ...] = ()
    problem: str = ""
    not_followed: int = 0
    rewrite: Rewrite | None = None
    read: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

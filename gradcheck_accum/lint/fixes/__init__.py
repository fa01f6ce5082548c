"""Repairs for what ``lint`` finds.

A fix starts from a finding and the ledger that shows it, and is judged by the ledger of the repaired script: it counts
only if its finding is gone, no other has come, and everything that was known of the loop still is. A repair that
uncovers another mistake (a remainder, once the loss is divided by K) is completed by that one's repair, or not made.
One that leaves its own mistake in any scenario is not completed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradcheck_accum.lint.examination.document import CannotHold, Document, open_document
from gradcheck_accum.lint.examination.examine import Examination, examine
from gradcheck_accum.lint.fixes.judging import Search
from gradcheck_accum.results.findings import Finding, Fix, in_order

if TYPE_CHECKING:
    from gradcheck_accum.lint.fixes.repairing import Repaired

__all__ = ["REPAIRED", "FixResult", "fix_source", "fixed", "offer_fixes", "offered"]

REPAIRED = frozenset(
    {"GA101", "GA102", "GA103", "GA201", "GA202", "GA203", "GA204"}
    | {"GA301", "GA302", "GA401", "GA402", "GA501", "GA801"}
)
"""The mistakes that there are repairs for: asked before LibCST and the repairs themselves are loaded."""

_MOST_FIXES = 50
"""How many findings of one file are fixed at most: far more than a file has."""
_MOST_EVALUATIONS = 500_000
"""Evaluations after which no more repairs are tried in one file: what is left then has no fix, and says so."""


@dataclass(frozen=True, slots=True)
class FixResult:
    """A file after its fixes: what was fixed, and what remains, with the fix that each would have."""

    document: Document
    fixed: tuple[Finding, ...]
    remaining: tuple[Finding, ...]

    @property
    def source(self) -> str:
        """The file as text."""
        return self.document.text()


@dataclass(frozen=True, slots=True)
class _Offer:
    """A finding as it is reported, with its fix, and the file after that fix if there is one."""

    finding: Finding
    document: Document | None = None
    examination: Examination | None = None


def fix_source(source: str, path: str, *, unsafe: bool, codes: Collection[str] | None = None) -> FixResult:
    """Fix the findings in ``source``, those of ``codes`` only where given; a ``path`` to an .ipynb makes it a notebook.

    Raises LintError as `gradcheck_accum.lint.lint_source` does.
    """
    document = open_document(source, path)
    return fixed(document, examine(document.source, path, document.words, thorough=True), unsafe=unsafe, codes=codes)


def offer_fixes(source: str, path: str, *, codes: Collection[str] | None = None) -> tuple[Finding, ...]:
    """The findings in ``source``, each with the fix that it would have on its own; raises LintError as `fix_source`."""
    document = open_document(source, path)
    return offered(document, examine(document.source, path, document.words, thorough=True), codes=codes)


def fixed(
    document: Document, examination: Examination, *, unsafe: bool, codes: Collection[str] | None = None
) -> FixResult:
    """Fix what the examination of a file has found, those of ``codes`` only where given, until none can be fixed."""
    done: list[Finding] = []
    search = Search(_MOST_EVALUATIONS)
    while True:
        remaining: list[Finding] = []
        for offer in _offers(document, examination, codes, search):
            fix = offer.finding.fix
            if fix and offer.document and offer.examination and (fix.safe or unsafe) and len(done) < _MOST_FIXES:
                document, examination = offer.document, offer.examination
                done.append(offer.finding)
                break
            remaining.append(offer.finding)
        else:
            return FixResult(document, tuple(done), _in_order(remaining))


def offered(
    document: Document, examination: Examination, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """What the examination of a file has found, each with the fix that it would have on its own."""
    search = Search(_MOST_EVALUATIONS)
    return _in_order(offer.finding for offer in _offers(document, examination, codes, search))


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=in_order))


def _offers(
    document: Document, examination: Examination, codes: Collection[str] | None, search: Search
) -> Iterator[_Offer]:
    """The findings, each with its fix if there is one, in the order in which they are best fixed."""
    found = [(f, ledger) for f, ledger in examination.evidence if codes is None or f.mistake.code in codes]
    wanted = [(f, ledger) for f, ledger in found if _is_repairable(f, document)]
    yield from (_Offer(document.in_document(finding)) for finding, _ in found if not _is_repairable(finding, document))
    if not wanted:
        return
    from gradcheck_accum.lint.fixes.repairing import repairs  # and LibCST, where there is something to repair only

    if not examination.is_thorough:
        examination = examine(document.source, document.path, thorough=True)
    for finding, repaired in repairs(document, examination, wanted, search):
        if repaired is None and search.left <= 0:
            yield _Offer(replace(document.in_document(finding), fix_left_out=True))
        else:
            yield _offer(document, finding, repaired)


def _is_repairable(finding: Finding, document: Document) -> bool:
    """Whether there are repairs for a finding, and it is in the file that is fixed, not in an imported one."""
    return finding.mistake.code in REPAIRED and finding.where.path == document.path


def _offer(document: Document, finding: Finding, repaired: Repaired | None) -> _Offer:
    in_document = document.in_document(finding)
    if repaired is None:
        return _Offer(in_document)
    try:
        after = document.with_source(repaired.text)
    except CannotHold:
        return _Offer(in_document)
    fix = Fix(repaired.safe, "; ".join(dict.fromkeys(repaired.messages)), document.edits(after))
    return _Offer(replace(in_document, fix=fix), after, repaired.examination)

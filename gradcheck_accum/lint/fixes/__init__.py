"""Repairs for what ``lint`` finds.

A fix starts from a finding and the ledger that shows it, and is judged by the ledger of the repaired script: it counts
only if its finding is gone, no other has come, and everything that was known of the loop still is. A repair that
uncovers another mistake (a remainder, once the loss is divided by K) is completed by that one's repair, or not made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.findings import Finding, Fix, in_order
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.lint import Examination, LintError, examine
from gradcheck_accum.lint.document import CannotHold, Document, open_document
from gradcheck_accum.lint.fixes.boundary import count_from_one, step_for_remainder
from gradcheck_accum.lint.fixes.case import Case, Repair, is_readable
from gradcheck_accum.lint.fixes.clipping import clip_complete_window, clip_what_is_used, unscale_first
from gradcheck_accum.lint.fixes.graphs import detach
from gradcheck_accum.lint.fixes.scaling import divide, divide_by_window, undivide
from gradcheck_accum.lint.fixes.script import CannotEdit, Script, changed
from gradcheck_accum.lint.fixes.zeroing import add_clearing, clear_after_step, clear_other

__all__ = ["FixResult", "fix_source", "fixed", "offer_fixes", "offered"]

_REPAIRS: dict[str, Callable[[Case], Iterator[Repair]]] = {
    "GA201": clear_after_step,
    "GA202": clear_after_step,
    "GA203": add_clearing,
    "GA204": clear_other,
    "GA302": count_from_one,
    "GA401": clip_complete_window,
    "GA402": clip_what_is_used,
    "GA501": unscale_first,
    "GA102": undivide,
    "GA101": divide,
    "GA103": divide_by_window,
    "GA301": step_for_remainder,
    "GA801": detach,
}
"""What repairs each mistake, in the order of repairing: what stands in a window first, how much it weighs after that,
and last the remainder, which needs windows that are right."""

_MOST_FIXES = 50
"""How many findings of one file are fixed at most: far more than a file has."""
_DEEPEST = 4
"""How many repairs one fix may be made of: a clearing, a boundary, its remainder, and the remainder's divisor."""
_WIDEST = 2
"""How many incomplete repairs of one finding are tried to be completed."""
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


@dataclass(slots=True)
class _Budget:
    """How many evaluations may still be spent on looking for repairs in one file."""

    left: int


@dataclass(frozen=True, slots=True)
class _Repaired:
    text: str
    messages: tuple[str, ...]
    safe: bool
    examination: Examination


@dataclass(frozen=True, slots=True)
class _Offer:
    """A finding as it is told, with its fix, and the file after that fix if there is one."""

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
    budget = _Budget(_MOST_EVALUATIONS)
    while True:
        remaining: list[Finding] = []
        for offer in _offers(document, examination, codes, budget):
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
    budget = _Budget(_MOST_EVALUATIONS)
    return _in_order(offer.finding for offer in _offers(document, examination, codes, budget))


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=in_order))


def _offers(
    document: Document, examination: Examination, codes: Collection[str] | None, budget: _Budget
) -> Iterator[_Offer]:
    """The findings, each with its fix if there is one, in the order in which they are best fixed."""
    found = [(f, ledger) for f, ledger in examination.evidence if codes is None or f.mistake.code in codes]
    wanted = [(f, ledger) for f, ledger in found if _is_repairable(f, document)]
    script = _parse(document.source) if wanted else None
    if script is None:
        yield from (_Offer(document.told(finding)) for finding, _ in found)
        return
    yield from (_Offer(document.told(finding)) for finding, _ in found if not _is_repairable(finding, document))
    if not examination.is_thorough:
        examination = examine(document.source, document.path, thorough=True)
    order = list(_REPAIRS)
    for finding, ledger in sorted(wanted, key=lambda item: order.index(item[0].mistake.code)):
        goal = _Goal.of(examination, finding)
        repaired = _repair(script, document, examination, finding, ledger, goal, budget, _DEEPEST)
        if repaired is None and budget.left <= 0:
            yield _Offer(replace(document.told(finding), fix_left_out=True))
        else:
            yield _offer(document, finding, repaired)


def _is_repairable(finding: Finding, document: Document) -> bool:
    """Whether there are repairs for a finding, in the file that is fixed and not in one beside it."""
    return finding.mistake.code in _REPAIRS and finding.where.path == document.path


def _offer(document: Document, finding: Finding, repaired: _Repaired | None) -> _Offer:
    told = document.told(finding)
    if repaired is None:
        return _Offer(told)
    try:
        after = document.with_source(repaired.text)
    except CannotHold:
        return _Offer(told)
    fix = Fix(repaired.safe, "; ".join(dict.fromkeys(repaired.messages)), document.edits(after))
    return _Offer(replace(told, fix=fix), after, repaired.examination)


def _parse(text: str) -> Script | None:
    try:
        return Script(text)
    except CannotEdit:
        return None


@dataclass(frozen=True, slots=True)
class _Goal:
    """What may still be found once a finding is fixed: by all scenarios in agreement, and by each of them."""

    found: Counter[str]
    shown: Counter[str]

    @classmethod
    def of(cls, examination: Examination, finding: Finding) -> _Goal:
        code, line = finding.mistake.code, finding.where.line
        here = sum(any(d.mistake.code == code and d.where.line == line for d in found) for found in _shown(examination))
        return cls(_codes(examination) - Counter([code]), _shown_codes(examination) - Counter({code: here}))

    def missed(self, examination: Examination) -> Counter[str]:
        """The findings that are in the way."""
        return _codes(examination) - self.found

    def is_met(self, examination: Examination) -> bool:
        """Whether nothing is, in no scenario: a repair that is right under one flag and wrong under another is none."""
        return not self.missed(examination) and not _shown_codes(examination) - self.shown


def _repair(
    script: Script,
    document: Document,
    examination: Examination,
    finding: Finding,
    ledger: Ledger,
    goal: _Goal,
    budget: _Budget,
    depth: int,
) -> _Repaired | None:
    """The first repair that meets the goal: one alone if possible, else completed by another."""
    beside = {f.mistake.code for f, _ in examination.evidence if f.where.line == finding.where.line}
    case = Case(finding, ledger, script, frozenset(beside))
    incomplete: list[_Repaired] = []
    for repaired in _attempts(case, document, examination, budget):
        if goal.is_met(repaired.examination):
            return repaired
        if finding.mistake.code not in goal.missed(repaired.examination):
            incomplete.append(repaired)
    for repaired in incomplete[:_WIDEST] if depth > 1 else ():
        missed = goal.missed(repaired.examination)
        first = next((code for code in _REPAIRS if code in missed), None)
        repaired_script = _parse(repaired.text) if first is not None else None
        if repaired_script is None:
            continue
        for other, evidence in repaired.examination.evidence:
            if other.mistake.code == first:
                rest = _repair(
                    repaired_script, document, repaired.examination, other, evidence, goal, budget, depth - 1
                )
                if rest is not None:
                    return replace(
                        rest, messages=(*repaired.messages, *rest.messages), safe=repaired.safe and rest.safe
                    )
    return None


def _attempts(case: Case, document: Document, examination: Examination, budget: _Budget) -> Iterator[_Repaired]:
    """The script after each repair that leaves its ledgers as readable as they were."""
    make = _REPAIRS.get(case.finding.mistake.code)
    if make is None:
        return
    blind, readable = _readability(examination)
    repairs = make(case)
    while budget.left > 0:
        try:
            repair = next(repairs, None)
            if repair is None:
                return
            text = changed(case.script.text, repair.changes)
            after = examine(text, document.path, thorough=True)
        except (CannotEdit, LintError):
            budget.left -= examination.cost
            continue
        budget.left -= after.cost
        still_blind, still_readable = _readability(after)
        if text != case.script.text and still_blind <= blind and still_readable >= readable:
            yield _Repaired(text, (repair.message,), repair.safe, after)


def _codes(examination: Examination) -> Counter[str]:
    return Counter(finding.mistake.code for finding, _ in examination.evidence)


def _shown(examination: Examination) -> list[tuple[Diagnosis, ...]]:
    """The diagnoses of every scenario, agreed on or not."""
    return [scenario.diagnoses for scenario in examination.scenarios]


def _shown_codes(examination: Examination) -> Counter[str]:
    """How often each code is shown in all scenarios together."""
    return Counter(diagnosis.mistake.code for found in _shown(examination) for diagnosis in found)


def _readability(examination: Examination) -> tuple[int, int]:
    """How many ledgers hold something unknown, and how many do not and have a step."""
    ledgers = [(scenario.ledger, scenario.readings) for scenario in examination.scenarios]
    known = [is_readable(readings, (*ledger.windows, *ledger.abandoned)) for ledger, readings in ledgers]
    stepping = [bool(ledger.windows) for ledger, _ in ledgers]
    return known.count(False), sum(readable and steps for readable, steps in zip(known, stepping, strict=True))

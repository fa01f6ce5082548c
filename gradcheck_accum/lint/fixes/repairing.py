"""The search for the repair of one finding: what is tried, and how the script that it makes is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.lint.examination.document import Document, LintError
from gradcheck_accum.lint.examination.examine import Examination, examine
from gradcheck_accum.lint.fixes.boundary import count_from_one, step_for_remainder
from gradcheck_accum.lint.fixes.budget import Budget
from gradcheck_accum.lint.fixes.case import Case, Repair, is_readable
from gradcheck_accum.lint.fixes.clipping import clip_complete_window, clip_what_is_used, unscale_first
from gradcheck_accum.lint.fixes.graphs import detach
from gradcheck_accum.lint.fixes.scaling import divide, divide_by_window, undivide
from gradcheck_accum.lint.fixes.script import CannotEdit, Script
from gradcheck_accum.lint.fixes.zeroing import add_clearing, clear_after_step, clear_other
from gradcheck_accum.results.findings import Finding

REPAIRS: dict[str, Callable[[Case], Iterator[Repair]]] = {
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
"""The repairs of each mistake, in order: first what is in a window, then its weights, and last the remainder, which
needs windows that are right."""

_DEEPEST = 4
"""How many repairs one fix may be made of: a clearing, a boundary, its remainder, and the remainder's divisor."""
_WIDEST = 2
"""How many incomplete repairs of one finding are tried to be completed."""


def repairs(
    document: Document, examination: Examination, wanted: Sequence[tuple[Finding, Ledger]], budget: Budget
) -> Iterator[tuple[Finding, Repaired | None]]:
    """The findings with their repairs, in the order in which they are best made; none where the script is not read."""
    script = _script(document.source, examination)
    order = list(REPAIRS)
    for finding, ledger in sorted(wanted, key=lambda item: order.index(item[0].mistake.code)):
        goal = _Goal.of(examination, finding)
        if script is None:
            yield finding, None
        else:
            yield finding, _repair(script, document, examination, finding, ledger, goal, budget, _DEEPEST)


def _script(text: str, examination: Examination) -> Script | None:
    """What was examined, as a script to be changed; None where it cannot be."""
    if examination.module is None:
        return None
    try:
        return Script(text, examination.module)
    except CannotEdit:
        return None


@dataclass(frozen=True, slots=True)
class Repaired:
    """A script after the repairs that one fix is made of, and what is found in it then."""

    text: str
    messages: tuple[str, ...]
    safe: bool
    examination: Examination


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
    budget: Budget,
    depth: int,
) -> Repaired | None:
    """The first repair that meets the goal: one alone if possible, else completed by another."""
    others = {f.mistake.code for f, _ in examination.evidence if f.where.line == finding.where.line}
    case = Case(finding, ledger, script, frozenset(others))
    incomplete: list[Repaired] = []
    for repaired in _attempts(case, document, examination, budget):
        if goal.is_met(repaired.examination):
            return repaired
        if finding.mistake.code not in goal.missed(repaired.examination):
            incomplete.append(repaired)
    for repaired in incomplete[:_WIDEST] if depth > 1 else ():
        missed = goal.missed(repaired.examination)
        first = next((code for code in REPAIRS if code in missed), None)
        repaired_script = _script(repaired.text, repaired.examination) if first is not None else None
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


def _attempts(case: Case, document: Document, examination: Examination, budget: Budget) -> Iterator[Repaired]:
    """The script after each repair that leaves its ledgers as readable as they were."""
    make = REPAIRS.get(case.finding.mistake.code)
    if make is None:
        return
    blind, readable = _readability(examination)
    repairs = make(case)
    while budget.left > 0:
        try:
            repair = next(repairs, None)
            if repair is None:
                return
            text = repair.edits.applied()
            after = examine(text, document.path, thorough=True)
        except (CannotEdit, LintError):
            budget.left -= examination.cost
            continue
        budget.left -= after.cost
        still_blind, still_readable = _readability(after)
        if text != case.script.text and still_blind <= blind and still_readable >= readable:
            yield Repaired(text, (repair.message,), repair.safe, after)


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

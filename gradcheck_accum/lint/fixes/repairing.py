"""The search for the repair of one finding: what is tried, and how the script that it makes is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.examination.document import Document
from gradcheck_accum.lint.examination.examine import Examination
from gradcheck_accum.lint.examination.scenario import Scenario
from gradcheck_accum.lint.fixes.boundary import count_from_one, step_for_remainder
from gradcheck_accum.lint.fixes.case import Case, Repair
from gradcheck_accum.lint.fixes.clipping import clip_complete_window, clip_what_is_used, unscale_first
from gradcheck_accum.lint.fixes.graphs import detach
from gradcheck_accum.lint.fixes.judging import Judgement, Search
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
    document: Document, examination: Examination, wanted: Sequence[tuple[Finding, Ledger]], search: Search
) -> Iterator[tuple[Finding, Repaired | None]]:
    """The findings with their repairs, in the order in which they are best made; none where the script is not read."""
    script = _script(document.source, document.path, examination)
    order = list(REPAIRS)
    for finding, ledger in sorted(wanted, key=lambda item: order.index(item[0].mistake.code)):
        goal = _Goal.of(examination, finding)
        if script is None:
            yield finding, None
        else:
            yield finding, _repair(script, document, examination, finding, ledger, goal, search, _DEEPEST)


def _script(text: str, path: str, examination: Examination) -> Script | None:
    """What was examined, as a script to be changed; None where it cannot be."""
    try:
        return Script(text, examination.module or syntax.parse(text, path))
    except (CannotEdit, syntax.CannotParse, syntax.NestedTooDeeply):
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
        every = examination.scenarios
        here = sum(any(d.mistake.code == code and d.where.line == line for d in s.diagnoses) for s in every)
        return cls(_codes(examination) - Counter([code]), _shown_codes(every) - Counter({code: here}))

    def missed(self, examination: Examination) -> Counter[str]:
        """The findings that are in the way."""
        return _codes(examination) - self.found

    def may_be_met(self, scenarios: Iterable[Scenario]) -> bool:
        """Whether the scenarios so far leave it open; what they show stays, whatever others do."""
        return not _shown_codes(scenarios) - self.shown

    def may_lack(self, code: str, scenarios: Iterable[Scenario]) -> bool:
        """Whether the scenarios so far leave open that a mistake is gone: one that is there is not repaired."""
        return _shown_codes(scenarios)[code] <= self.shown[code]

    def is_met(self, examination: Examination) -> bool:
        """Whether nothing is, in no scenario: a repair that is right under one flag and wrong under another is none."""
        return not self.missed(examination) and self.may_be_met(examination.scenarios)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One repair, and what is known of the script that it makes; ``before`` is how readable that was without it."""

    repair: Repair
    judgement: Judgement
    before: _Readability

    def meets(self, goal: _Goal) -> Repaired | None:
        """What it makes, if that is all that is needed; it is judged no further than to the scenario that denies it."""
        while goal.may_be_met(self.judgement.scenarios) and self.may_be_readable():
            if not self.judgement.goes_on():
                made = self.result()
                return made if made is not None and goal.is_met(made.examination) else None
        return None

    def may_be_readable(self) -> bool:
        """Whether no more is unknown in the scenarios so far than was before."""
        return _Readability.of(self.judgement.scenarios).blind <= self.before.blind

    def may_be_completed(self, goal: _Goal, code: str) -> bool:
        """Whether it may have repaired the mistake that it is for, as far as the scenarios so far show."""
        return self.may_be_readable() and goal.may_lack(code, self.judgement.scenarios)

    def result(self) -> Repaired | None:
        """What it makes, if its ledgers are as readable as they were."""
        while self.may_be_readable() and self.judgement.goes_on():
            pass
        if not self.may_be_readable():
            return None
        examination = self.judgement.complete()
        if examination is None or _Readability.of(examination.scenarios).readable < self.before.readable:
            return None
        return Repaired(self.judgement.text, (self.repair.message,), self.repair.safe, examination)


class _Readability(NamedTuple):
    """How many ledgers hold something unknown, and how many do not and have a step."""

    blind: int
    readable: int

    @classmethod
    def of(cls, scenarios: Sequence[Scenario]) -> _Readability:
        known = [scenario.is_readable for scenario in scenarios]
        stepping = [bool(scenario.ledger.windows) for scenario in scenarios]
        return cls(known.count(False), sum(map(all, zip(known, stepping, strict=True))))


def _repair(
    script: Script,
    document: Document,
    examination: Examination,
    finding: Finding,
    ledger: Ledger,
    goal: _Goal,
    search: Search,
    depth: int,
) -> Repaired | None:
    """The first repair that meets the goal: one alone if possible, else completed by another."""
    others = {f.mistake.code for f, _ in examination.evidence if f.where.line == finding.where.line}
    case = Case(finding, ledger, script, frozenset(others))
    failed: list[_Attempt] = []
    for attempt in _attempts(case, document, examination, search):
        if (repaired := attempt.meets(goal)) is not None:
            return repaired
        if depth > 1 and attempt.may_be_completed(goal, finding.mistake.code):
            failed.append(attempt)
    for repaired in _incomplete(failed, goal, finding, search):
        missed = goal.missed(repaired.examination)
        first = next((code for code in REPAIRS if code in missed), None)
        if first is None:
            continue
        repaired_script = _script(repaired.text, document.path, repaired.examination)
        if repaired_script is None:
            continue
        for other, evidence in repaired.examination.evidence:
            if other.mistake.code == first:
                rest = _repair(
                    repaired_script, document, repaired.examination, other, evidence, goal, search, depth - 1
                )
                if rest is not None:
                    return replace(
                        rest, messages=(*repaired.messages, *rest.messages), safe=repaired.safe and rest.safe
                    )
    return None


def _incomplete(attempts: Sequence[_Attempt], goal: _Goal, finding: Finding, search: Search) -> Iterator[Repaired]:
    """The first of the attempts that have repaired the finding itself, and nothing else that is in the way."""
    code = finding.mistake.code
    found = 0
    for attempt in attempts:
        if found == _WIDEST or search.left <= 0:
            return
        while attempt.may_be_completed(goal, code) and attempt.judgement.goes_on():
            pass
        repaired = attempt.result() if attempt.may_be_completed(goal, code) else None
        if repaired is not None and code not in goal.missed(repaired.examination):
            found += 1
            yield repaired


def _attempts(case: Case, document: Document, examination: Examination, search: Search) -> Iterator[_Attempt]:
    """The repairs of a finding that change its script."""
    make = REPAIRS.get(case.finding.mistake.code)
    if make is None:
        return
    before = _Readability.of(examination.scenarios)
    repairs = make(case)
    while search.left > 0:
        try:
            repair = next(repairs, None)
            if repair is None:
                return
            text = repair.edits.applied()
            if text == case.script.text:
                continue
        except CannotEdit:
            search.left -= examination.cost
            continue
        yield _Attempt(repair, Judgement(text, document.path, search), before)


def _codes(examination: Examination) -> Counter[str]:
    return Counter(finding.mistake.code for finding, _ in examination.evidence)


def _shown_codes(scenarios: Iterable[Scenario]) -> Counter[str]:
    """How often each code is shown in scenarios, agreed on or not."""
    return Counter(diagnosis.mistake.code for scenario in scenarios for diagnosis in scenario.diagnoses)

"""Repairs for what ``lint`` finds.

A fix starts from a finding and the ledger that shows it, and is judged by the ledger of the repaired script: it counts
only if its finding is gone, no other has come, and everything that was known of the loop still is. A repair that
uncovers another mistake (a remainder, once the loss is divided by K) is completed by that one's repair, or not made.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.findings import Edit, Finding, Fix
from gradcheck_accum.ledger import Ledger
from gradcheck_accum.lint import Examination, LintError, examine
from gradcheck_accum.lint.fixes.boundary import count_from_one, step_for_remainder
from gradcheck_accum.lint.fixes.case import Case, Repair, is_readable
from gradcheck_accum.lint.fixes.clipping import clip_complete_window, clip_what_is_used, unscale_first
from gradcheck_accum.lint.fixes.graphs import detach
from gradcheck_accum.lint.fixes.scaling import divide, divide_by_window, undivide
from gradcheck_accum.lint.fixes.script import CannotEdit, Script, changed
from gradcheck_accum.lint.fixes.zeroing import add_clearing, clear_after_step, clear_other

__all__ = ["FixResult", "fix_source", "offer_fixes"]

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


@dataclass(frozen=True, slots=True)
class FixResult:
    """A source after its fixes: what was fixed, and what remains, with the fix that each would have."""

    source: str
    fixed: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Repaired:
    text: str
    messages: tuple[str, ...]
    safe: bool
    examination: Examination


def fix_source(source: str, path: str, *, unsafe: bool, codes: Collection[str] | None = None) -> FixResult:
    """Fix the findings in ``source``, those of ``codes`` only where given, one after the other until none can be.

    Raises LintError as `gradcheck_accum.lint.lint_source` does.
    """
    fixed: list[Finding] = []
    examination = examine(source, path, thorough=True)
    text = source
    while True:
        remaining: list[Finding] = []
        done: _Repaired | None = None
        for finding, repaired in _offers(text, path, examination, codes):
            offered = finding if repaired is None else replace(finding, fix=_fix(text, repaired))
            if repaired is not None and (repaired.safe or unsafe) and len(fixed) < _MOST_FIXES:
                done = repaired
                fixed.append(offered)
                break
            remaining.append(offered)
        if done is None:
            return FixResult(text, tuple(fixed), _in_order(remaining))
        text, examination = done.text, done.examination


def offer_fixes(source: str, path: str, *, codes: Collection[str] | None = None) -> tuple[Finding, ...]:
    """The findings in ``source``, each with the fix that it would have on its own; raises LintError as `fix_source`."""
    return _in_order(
        finding if repaired is None else replace(finding, fix=_fix(source, repaired))
        for finding, repaired in _offers(source, path, examine(source, path, thorough=True), codes)
    )


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: (finding.where, finding.mistake.code)))


def _offers(
    text: str, path: str, examination: Examination, codes: Collection[str] | None
) -> Iterator[tuple[Finding, _Repaired | None]]:
    """The findings, each with its repair if there is one, in the order in which they are best fixed."""
    found = [(f, ledger) for f, ledger in examination.evidence if codes is None or f.mistake.code in codes]
    wanted = [(f, ledger) for f, ledger in found if f.mistake.code in _REPAIRS]
    script = _parse(text) if wanted else None
    if script is None:
        yield from ((finding, None) for finding, _ in found)
        return
    yield from ((finding, None) for finding, _ in found if finding.mistake.code not in _REPAIRS)
    order = list(_REPAIRS)
    for finding, ledger in sorted(wanted, key=lambda item: order.index(item[0].mistake.code)):
        goal = _Goal.of(examination, finding)
        yield finding, _repair(script, path, examination, finding, ledger, goal, _DEEPEST)


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
    path: str,
    examination: Examination,
    finding: Finding,
    ledger: Ledger,
    goal: _Goal,
    depth: int,
) -> _Repaired | None:
    """The first repair that meets the goal: one alone if possible, else completed by another."""
    beside = {f.mistake.code for f, _ in examination.evidence if f.where.line == finding.where.line}
    case = Case(finding, ledger, script, frozenset(beside))
    incomplete: list[_Repaired] = []
    for repaired in _attempts(case, path, examination):
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
                rest = _repair(repaired_script, path, repaired.examination, other, evidence, goal, depth - 1)
                if rest is not None:
                    return replace(
                        rest, messages=(*repaired.messages, *rest.messages), safe=repaired.safe and rest.safe
                    )
    return None


def _attempts(case: Case, path: str, examination: Examination) -> Iterator[_Repaired]:
    """The script after each repair that leaves its ledgers as readable as they were."""
    make = _REPAIRS.get(case.finding.mistake.code)
    if make is None:
        return
    blind, readable = _readability(examination)
    repairs = make(case)
    while True:
        try:
            repair = next(repairs, None)
            if repair is None:
                return
            text = changed(case.script.text, repair.changes)
            after = examine(text, path, thorough=True)
        except (CannotEdit, LintError):
            continue
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
    ledgers = [scenario.ledger for scenario in examination.scenarios]
    known = [is_readable(ledger, (*ledger.windows, *ledger.abandoned)) for ledger in ledgers]
    stepping = [bool(ledger.windows) for ledger in ledgers]
    return known.count(False), sum(readable and steps for readable, steps in zip(known, stepping, strict=True))


def _fix(text: str, repaired: _Repaired) -> Fix:
    return Fix(repaired.safe, "; ".join(dict.fromkeys(repaired.messages)), tuple(_edits(text, repaired.text)))


def _edits(before: str, after: str) -> Iterator[Edit]:
    """What has to be replaced in ``before``, in whole lines."""
    old, new = split_lines(before), split_lines(after)
    for kind, start, end, from_, to in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            at_end = end == len(old) and end > 0 and not old[-1].endswith(("\n", "\r"))
            last = (end, len(old[end - 1]) + 1) if at_end and end > start else (end + 1, 1)
            yield Edit(start + 1, 1, *last, "".join(new[from_:to]))


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` with their ends, as Python reads them (form feeds end none)."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)

"""The results as a JUnit report: the format that CI servers show as tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.report.lint_text import summary
from gradcheck_accum.report.repository import repository_path
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.results.findings import Finding, LintResult, Unreadable, UnusedSuppression
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def lint_junit(result: LintResult) -> str:
    """What ``lint`` found: a suite for each file with a case for each finding.

    A run without findings is one case that passes, because some servers reject an empty report.
    """
    cases: dict[str, list[ElementTree.Element]] = {}
    for item in _items(result):
        path = repository_path(item.path if isinstance(item, Unreadable) else item.where.path)
        cases.setdefault(path, []).append(_lint_case(item, path))
    if not cases:
        passed = _case("lint", "gradcheck-accum")
        ElementTree.SubElement(passed, "system-out").text = _xml(summary(result))
        cases["gradcheck-accum lint"] = [passed]
    return _report([_suite(name, of_file) for name, of_file in cases.items()])


def verify_junit(result: VerifyResult) -> str:
    """What ``verify`` measured: a case for the verdict, and one for each cause.

    What was not decided, or was accepted, is skipped: neither a pass nor a failure.
    """
    verdict = _case("gradients of every step", result.script)
    if result.error:
        _outcome(verdict, "error", "error", result.error)
    elif result.verdict is Verdict.DEVIATES:
        _outcome(verdict, "failure", result.verdict.value, result.reason, result.help)
    elif result.verdict is not Verdict.EQUIVALENT:
        _outcome(verdict, "skipped", result.verdict.value, f"{result.verdict.value}: {result.reason}", result.help)
    ElementTree.SubElement(verdict, "system-out").text = _xml(verify_text(result))
    cases = [_diagnosis_case(diagnosis) for diagnosis in result.diagnosis]
    cases += [_accepted_case(one) for one in result.accepted]
    return _report([_suite(result.script, [verdict, *cases])])


def _items(result: LintResult) -> Iterator[Finding | UnusedSuppression | Unreadable]:
    yield from result.findings
    yield from result.unused or ()
    yield from result.unreadable


def _lint_case(item: Finding | UnusedSuppression | Unreadable, path: str) -> ElementTree.Element:
    if isinstance(item, Unreadable):
        case = _case("could not be analyzed", path)
        _outcome(case, "error", "unreadable", item.reason)
        return case
    if isinstance(item, UnusedSuppression):
        case = _case(f"unused suppression at {_place(item.where)}", path, item.where)
        _outcome(case, "failure", "unused suppression", item.message)
        return case
    case = _case(f"{item.mistake.code} [{item.mistake.name}] at {_place(item.where)}", path, item.where)
    _outcome(case, "failure", item.severity.value, item.message, item.help)
    return case


def _diagnosis_case(diagnosis: Diagnosis) -> ElementTree.Element:
    mistake, where = diagnosis.mistake, diagnosis.where
    case = _case(f"{mistake.code} [{mistake.name}] at line {where.line}", repository_path(where.path), where)
    kind = "skipped" if mistake.by_construction else "failure"
    _outcome(case, kind, mistake.severity.value, diagnosis.message, diagnosis.help)
    return case


def _accepted_case(one: Accepted) -> ElementTree.Element:
    mistake, where = one.diagnosis.mistake, one.diagnosis.where
    case = _case(f"{mistake.code} [{mistake.name}] at line {where.line}", repository_path(where.path), where)
    _outcome(case, "skipped", "accepted", f"accepted by the {one.by}: {one.diagnosis.message}")
    return case


def _place(where: Location) -> str:
    cell = f"cell {where.cell}, " if where.cell else ""
    return f"{cell}{where.line}:{where.column}"


def _case(name: str, of: str, where: Location | None = None) -> ElementTree.Element:
    place = {} if where is None else {"file": _xml(repository_path(where.path)), "line": str(where.line)}
    return ElementTree.Element("testcase", {"classname": _xml(of), "name": _xml(name), "time": "0", **place})


def _outcome(case: ElementTree.Element, kind: str, type_of: str, message: str, help: str = "") -> None:
    outcome = ElementTree.SubElement(case, kind, {"type": type_of, "message": _xml(message)})
    outcome.text = _xml(f"{message}\nhelp: {help}" if help else message)


def _suite(name: str, cases: Iterable[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": _xml(name)})
    suite.extend(cases)
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    return suite


def _report(suites: Iterable[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites", {"name": "gradcheck-accum"})
    root.extend(suites)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}'


def _xml(text: str) -> str:
    """``text`` without the characters that no XML document may hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)

"""What ``lint`` found as SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for code scanning.

A place in a notebook is its file and the cell: lines of a cell are not those of the file, nor are its fixes
edits of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gradcheck_accum import __version__
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import Mistake
from gradcheck_accum.report.repository import repository_path, repository_root
from gradcheck_accum.results.findings import Edit, Finding, Fix, LintResult, Unreadable

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_FINGERPRINT = "gradcheckAccum/v1"


def lint_sarif(result: LintResult, page: Callable[[Mistake], str | None]) -> str:
    """The findings, with the rules that they are of; ``page`` gives the text on one of them."""
    mistakes = sorted({f.mistake.code: f.mistake for f in result.findings}.values(), key=lambda m: m.code)
    numbers = {mistake.code: number for number, mistake in enumerate(mistakes)}
    fingerprints = _fingerprints(result.findings)
    run = {
        "tool": {
            "driver": {
                "name": "gradcheck-accum",
                "version": __version__,
                "rules": [_rule(mistake, page(mistake)) for mistake in mistakes],
            }
        },
        "invocations": [_invocation(result)],
        "originalUriBaseIds": {_ROOT: {"uri": f"{repository_root().as_uri().rstrip('/')}/"}},
        "columnKind": "unicodeCodePoints",
        "results": [
            _result(finding, numbers[finding.mistake.code], fingerprint)
            for finding, fingerprint in zip(result.findings, fingerprints, strict=True)
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _fingerprints(findings: Iterable[Finding]) -> list[str]:
    """The fingerprint of each finding: its file, its code and the text of its line, as in a baseline.

    Of several that are alike, their order. Edits elsewhere in the file change none of it.
    """
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for finding in findings:
        key = repository_path(finding.where.path), finding.mistake.code, finding.text.strip()
        content = "\0".join([*key, str(seen[key])])
        seen[key] += 1
        found.append(hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest())
    return found


def _rule(mistake: Mistake, page: str | None) -> dict[str, Any]:
    help = {"help": {"text": page, "markdown": page}} if page else {}
    return {
        "id": mistake.code,
        "name": mistake.name,
        "shortDescription": {"text": mistake.summary},
        "defaultConfiguration": {"level": mistake.severity.value},
        **help,
    }


def _invocation(result: LintResult) -> dict[str, Any]:
    return {
        "executionSuccessful": not result.unreadable,
        "toolExecutionNotifications": [_notification(item) for item in result.unreadable],
    }


def _notification(item: Unreadable) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": _artifact(item.path)}}
    return {"level": "error", "message": {"text": item.reason}, "locations": [place]}


def _result(finding: Finding, rule: int, fingerprint: str) -> dict[str, Any]:
    text = f"{finding.message}\nhelp: {finding.help}" if finding.help else finding.message
    in_file = not finding.where.cell
    return {
        "ruleId": finding.mistake.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": text},
        "locations": [_location(finding.where)],
        "partialFingerprints": {_FINGERPRINT: fingerprint},
        **({"fixes": [_fix(finding.fix, finding.where.path)]} if finding.fix and in_file else {}),
    }


def _location(where: Location) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": _artifact(where.path)}
    if where.cell:
        cell = f"cell {where.cell}, line {where.line}"
        return {"physicalLocation": place, "logicalLocations": [{"name": cell, "kind": "cell"}]}
    place["region"] = _region(where.line, where.column, where.end_line, where.end_column)
    return {"physicalLocation": place}


def _region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    region = {"startLine": line, "startColumn": column}
    return {**region, "endLine": end_line, "endColumn": end_column} if end_line and end_column else region


def _fix(fix: Fix, path: str) -> dict[str, Any]:
    change = {"artifactLocation": _artifact(path), "replacements": [_replacement(edit) for edit in fix.edits]}
    applicability = "safe" if fix.safe else "unsafe"
    return {
        "description": {"text": fix.message},
        "artifactChanges": [change],
        "properties": {"applicability": applicability},
    }


def _replacement(edit: Edit) -> dict[str, Any]:
    region = _region(edit.line, edit.column, edit.end_line, edit.end_column)
    return {"deletedRegion": region, "insertedContent": {"text": edit.content}}


def _artifact(path: str) -> dict[str, str]:
    """Where a file is: from the repository's root, or on this machine."""
    found = repository_path(path)
    if os.path.isabs(found):
        return {"uri": Path(found).as_uri()}
    return {"uri": urllib.parse.quote(found, errors="surrogateescape"), "uriBaseId": _ROOT}

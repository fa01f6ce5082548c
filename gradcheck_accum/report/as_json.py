"""The results for programs. The shape is a contract: ``version`` changes when it does.

Numbers that JSON cannot represent (inf, nan) are null.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import Mistake
from gradcheck_accum.report.kinds import kinds
from gradcheck_accum.report.words import fixable
from gradcheck_accum.results.comparison import CompareResult, Configuration
from gradcheck_accum.results.findings import Edit, Finding, Fix, LintResult, UnusedSuppression
from gradcheck_accum.results.verdict import (
    Accepted,
    ByParameter,
    CostReport,
    PassCost,
    ReferenceReport,
    VerifyResult,
    WindowReport,
)

VERSION = 1

MOST_WINDOWS = 1000
"""Windows that a report lists."""

_KINDS = 250
"""Up to this many kinds of windows are distinguished by their numbers, where not all are listed."""


def lint_json(result: LintResult) -> str:
    """What ``lint`` found.

    ``cell`` is included for places in notebooks, ``unused_suppressions`` and ``in_baseline`` where they were requested.
    """
    by_code = Counter(finding.mistake.code for finding in result.findings)
    report: dict[str, Any] = {
        "version": VERSION,
        "findings": [_finding(finding) for finding in result.findings],
        "summary": {
            "files": result.files,
            "findings": len(result.findings),
            "by_code": dict(sorted(by_code.items())),
            "suppressed": result.suppressed,
            "fixed": len(result.fixed),
            "fixable": dict(zip(("safe", "unsafe"), fixable(result), strict=True)),
            "not_followed": result.not_followed,
            "unread": list(result.unread),
            "fixes_left_out": sum(finding.fix_left_out for finding in result.findings),
            "unreadable": [{"path": item.path, "reason": item.reason} for item in result.unreadable],
        },
    }
    if result.in_baseline is not None:
        report["summary"]["in_baseline"] = result.in_baseline
    if result.unused is not None:
        report["unused_suppressions"] = [_unused(unused) for unused in result.unused]
    return _dump(report)


def verify_json(result: VerifyResult) -> str:
    """What ``verify`` measured.

    Where something was accepted, ``accepted`` lists it: what was diagnosed and does not count, with the fields of
    ``diagnosis`` and ``by``, which is "settings" or "comment". A window whose ``verdict`` decides nothing for that has
    an ``accepted`` of its own, with the codes that explain it. ``cost``, and ``by_parameter`` of a window, are included
    where they were measured. Of a run of more than MOST_WINDOWS windows the first ones of every kind are listed
    (`gradcheck_accum.report.kinds`), the first of a kind with the number of ``more_like_it``.
    """
    return _dump(
        {
            "version": VERSION,
            "script": result.script,
            "verdict": result.verdict.value,
            "reason": result.reason,
            "device": result.device,
            **({"ranks": result.ranks} if result.ranks > 1 else {}),
            "reference": _reference(result.reference),
            **_windows(result.windows),
            "diagnosis": [_diagnosis(diagnosis) for diagnosis in result.diagnosis],
            **({"accepted": [_accepted(one) for one in result.accepted]} if result.accepted else {}),
            "notes": list(result.notes),
            **({"cost": _cost(result.cost)} if result.cost is not None else {}),
            "help": result.help or None,
            **({"settled_by": result.settled_by} if result.settled_by else {}),
            "error": result.error or None,
        }
    )


def compare_json(result: CompareResult) -> str:
    """What ``compare`` measured; ``verify`` is what ``verify`` says of the same run, with the fields of `verify_json`.

    A step's ``rows`` are those that it was made of; its ``index`` counts the steps of its own configuration.
    """
    return _dump(
        {
            "version": VERSION,
            "script": result.script,
            "verdict": result.verdict.value,
            "reason": result.reason,
            "reference": _configuration(result.reference) if result.reference is not None else None,
            "compared": [
                {
                    **_configuration(one.configuration),
                    "verdict": one.verdict.value,
                    "reason": one.reason,
                    "windows": [{**_window(step), "rows": step.units} for step in one.steps],
                    "differences": [
                        {
                            "kind": d.kind,
                            "message": d.message,
                            "path": d.path or None,
                            "line": d.line or None,
                            **({"accepted": d.accepted} if d.accepted else {}),
                        }
                        for d in one.differences
                    ],
                    **({"accepted": [_accepted(each) for each in one.accepted]} if one.accepted else {}),
                    "notes": list(one.notes),
                    "verify": None if one.watched is None else json.loads(verify_json(one.watched)),
                }
                for one in result.compared
            ],
            "help": result.help or None,
            "error": result.error or None,
        }
    )


def _configuration(configuration: Configuration) -> dict[str, Any]:
    return {
        "arguments": configuration.name,
        "micro_batches": configuration.micro_batches,
        "rows": configuration.rows,
        "steps": configuration.steps,
        **({"ranks": configuration.ranks} if configuration.ranks > 1 else {}),
        **({"steps_by_epoch": list(configuration.steps_by_epoch)} if configuration.steps_by_epoch else {}),
    }


def rules_json(mistakes: Iterable[Mistake]) -> str:
    """The catalogue."""
    return _dump(
        {
            "version": VERSION,
            "rules": [
                {
                    "code": mistake.code,
                    "rule": mistake.name,
                    "severity": mistake.severity.value,
                    "summary": mistake.summary,
                    "lint": mistake.static,
                    "verify": mistake.dynamic,
                }
                for mistake in mistakes
            ],
        }
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.mistake.code,
        "rule": finding.mistake.name,
        "severity": finding.severity.value,
        **_place(finding.where),
        "message": finding.message,
        "help": finding.help or None,
        "fix": _fix(finding.fix) if finding.fix else None,
    }


def _unused(unused: UnusedSuppression) -> dict[str, Any]:
    return {**_place(unused.where), "message": unused.message}


def _place(where: Location) -> dict[str, Any]:
    return {
        "path": where.path,
        **({"cell": where.cell} if where.cell else {}),
        "line": where.line,
        "column": where.column,
        "end_line": where.end_line or None,
        "end_column": where.end_column or None,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "applicability": "safe" if fix.safe else "unsafe",
        "message": fix.message,
        "edits": [_edit(edit) for edit in fix.edits],
    }


def _edit(edit: Edit) -> dict[str, Any]:
    return {
        "line": edit.line,
        "column": edit.column,
        "end_line": edit.end_line,
        "end_column": edit.end_column,
        "content": edit.content,
        **({"cell": edit.cell} if edit.cell else {}),
    }


def _reference(reference: ReferenceReport) -> dict[str, Any]:
    return {
        "kind": reference.kind,
        "dtype": reference.dtype,
        "device": reference.device,
        "settings": reference.settings or None,
        "mode": reference.mode or None,
        "why": reference.why or None,
        "confidence": reference.confidence,
    }


def _window(window: WindowReport) -> dict[str, Any]:
    return {
        "index": window.index,
        "optimizer": window.optimizer,
        "path": window.path or None,
        "line": window.line or None,
        "micro_batches": window.micro_batches,
        "units": _number(window.units),
        "weights": [_number(weight) for weight in window.weights],
        "grad_rel_error": _number(window.grad_rel_error),
        **({"grad_rel_error_within": [_number(n) for n in window.within]} if window.within is not None else {}),
        "grad_norm_ratio": _number(window.grad_norm_ratio),
        "tolerance": _number(window.tolerance),
        "param_rel_error": _number(window.param_rel_error),
        "drift": _number(window.drift),
        "verdict": window.verdict.value,
        "reason": window.reason or None,
        **({"accepted": list(window.accepted)} if window.accepted else {}),
        **({"by_parameter": _by_parameter(window.by_parameter)} if window.by_parameter is not None else {}),
    }


def _by_parameter(found: ByParameter) -> dict[str, Any]:
    return {
        "parameters": found.parameters,
        "worst": [
            {"name": one.name, "shape": list(one.shape), "error": _number(one.error), "share": _number(one.share)}
            for one in found.worst
        ],
    }


def _cost(cost: CostReport) -> dict[str, Any]:
    return {
        "micro_batches": cost.micro_batches,
        "accumulated": _pass_cost(cost.accumulated),
        "large_batch": _pass_cost(cost.large_batch),
    }


def _pass_cost(cost: PassCost) -> dict[str, Any]:
    return {"kept_bytes": cost.kept_bytes, "seconds": _number(cost.seconds)}


def _windows(windows: Sequence[WindowReport]) -> dict[str, Any]:
    """The windows, and where not all are listed how many there are."""
    if len(windows) <= MOST_WINDOWS:
        return {"windows": [_window(window) for window in windows]}
    alike = kinds(windows, _KINDS)
    each = max(1, MOST_WINDOWS // len(alike))
    more = {group[0].index: len(group) - each for group in alike if len(group) > each}
    listed = sorted((window for group in alike for window in group[:each]), key=lambda window: window.index)
    rows = [
        {**_window(window), **({"more_like_it": more[window.index]} if window.index in more else {})}
        for window in listed
    ]
    return {"windows": rows, "windows_in_all": len(windows)}


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """``window`` is the first that shows the mistake: null for gradients that no step ever consumed."""
    return {
        "code": diagnosis.mistake.code,
        "rule": diagnosis.mistake.name,
        "severity": diagnosis.mistake.severity.value,
        "path": diagnosis.where.path,
        "line": diagnosis.where.line,
        "framework": diagnosis.framework or None,
        "window": diagnosis.windows[0] if diagnosis.windows else None,
        "windows": list(diagnosis.windows[:MOST_WINDOWS]),
        **({"windows_in_all": len(diagnosis.windows)} if len(diagnosis.windows) > MOST_WINDOWS else {}),
        "message": diagnosis.message,
        "help": diagnosis.help or None,
    }


def _accepted(one: Accepted) -> dict[str, Any]:
    return {**_diagnosis(one.diagnosis), "by": one.by}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False)

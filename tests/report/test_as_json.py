"""The JSON reports: the contract that programs rely on."""

from __future__ import annotations

import json
import math

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.as_json import lint_json, rules_json, verify_json
from gradcheck_accum.results.findings import Edit, Finding, Fix, LintResult, Unreadable
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport


def test_lint() -> None:
    fix = Fix(True, "divide it", (Edit(4, 5, 4, 9, "(loss / 4)"),))
    where = Location("train.py", 4, 5, 4, 20)
    found = (
        Finding(CATALOGUE["GA101"], where, "not divided", "divide", fix),
        Finding(CATALOGUE["GA301"], Location("train.py", 9), "dropped"),
    )
    result = LintResult(found, (Unreadable("x.py", "no such file or directory"),), files=2, suppressed=1)
    assert json.loads(lint_json(result)) == {
        "version": 1,
        "findings": [
            {
                "code": "GA101",
                "rule": "missing-loss-scaling",
                "severity": "error",
                "path": "train.py",
                "line": 4,
                "column": 5,
                "end_line": 4,
                "end_column": 20,
                "message": "not divided",
                "help": "divide",
                "fix": {
                    "applicability": "safe",
                    "message": "divide it",
                    "edits": [{"line": 4, "column": 5, "end_line": 4, "end_column": 9, "content": "(loss / 4)"}],
                },
            },
            {
                "code": "GA301",
                "rule": "remainder-dropped",
                "severity": "warning",
                "path": "train.py",
                "line": 9,
                "column": 1,
                "end_line": None,
                "end_column": None,
                "message": "dropped",
                "help": None,
                "fix": None,
            },
        ],
        "summary": {
            "files": 2,
            "findings": 2,
            "by_code": {"GA101": 1, "GA301": 1},
            "suppressed": 1,
            "fixed": 0,
            "fixable": {"safe": 1, "unsafe": 0},
            "not_followed": 0,
            "unread": [],
            "fixes_left_out": 0,
            "unreadable": [{"path": "x.py", "reason": "no such file or directory"}],
        },
    }


def test_verify() -> None:
    window = WindowReport(
        0, "SGD", 2, 16.0, (2.0, None), 1.0, math.inf, 1e-6, None, Verdict.DEVIATES, path="train.py", line=7
    )
    diagnosis = Diagnosis(CATALOGUE["GA101"], Location("train.py", 5), "not divided", "divide", (0,))
    left = Diagnosis(CATALOGUE["GA301"], Location("train.py", 5), "dropped", "flush")
    result = VerifyResult(
        "train.py",
        Verdict.DEVIATES,
        "1 of 1 windows",
        "cpu",
        ReferenceReport("ledger", "float32", "cpu"),
        (window,),
        (diagnosis, left),
        ("a note",),
    )
    assert json.loads(verify_json(result)) == {
        "version": 1,
        "script": "train.py",
        "verdict": "deviates",
        "reason": "1 of 1 windows",
        "device": "cpu",
        "reference": {
            "kind": "ledger",
            "dtype": "float32",
            "device": "cpu",
            "settings": None,
            "mode": None,
            "why": None,
            "confidence": None,
        },
        "windows": [
            {
                "index": 0,
                "optimizer": "SGD",
                "path": "train.py",
                "line": 7,
                "micro_batches": 2,
                "units": 16.0,
                "weights": [2.0, None],
                "grad_rel_error": 1.0,
                "grad_norm_ratio": None,
                "tolerance": 1e-6,
                "param_rel_error": None,
                "drift": None,
                "verdict": "deviates",
                "reason": None,
            }
        ],
        "diagnosis": [
            {
                "code": "GA101",
                "rule": "missing-loss-scaling",
                "severity": "error",
                "path": "train.py",
                "line": 5,
                "framework": None,
                "window": 0,
                "windows": [0],
                "message": "not divided",
                "help": "divide",
            },
            {
                "code": "GA301",
                "rule": "remainder-dropped",
                "severity": "warning",
                "path": "train.py",
                "line": 5,
                "framework": None,
                "window": None,
                "windows": [],
                "message": "dropped",
                "help": "flush",
            },
        ],
        "notes": ["a note"],
        "help": None,
        "error": None,
    }


def test_rules() -> None:
    rules = json.loads(rules_json(CATALOGUE.values()))
    assert rules["version"] == 1
    assert [rule["code"] for rule in rules["rules"]] == list(CATALOGUE)
    assert rules["rules"][0] == {
        "code": "GA101",
        "rule": "missing-loss-scaling",
        "severity": "error",
        "summary": CATALOGUE["GA101"].summary,
        "lint": True,
        "verify": True,
    }

"""The section at the end of a pytest run: ledgers of failing windows, and what was accepted in tests that passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.pytest_plugin.failing import writable
from gradcheck_accum.report.paint import PLAIN
from gradcheck_accum.report.verify_table import table
from gradcheck_accum.report.words import shown_path
from gradcheck_accum.report.wrap import WIDTH
from gradcheck_accum.results.fuzzing import LoopTrial
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult

_ACCEPTED = pytest.StashKey[dict[str, None]]()
"""What was accepted in the running test, line by line."""


def remember(config: pytest.Config, accepted: Sequence[Accepted]) -> None:
    """Keep what was accepted in a result until its test is reported."""
    lines = config.stash.setdefault(_ACCEPTED, dict[str, None]())
    lines.update((f"accepted: {_cause(one.diagnosis)}", None) for one in accepted)


def lines_of(report: pytest.TestReport, item: pytest.Item, call: pytest.CallInfo[Any]) -> list[str]:
    """The lines that the summary shows of a test, if any."""
    accepted = item.config.stash.setdefault(_ACCEPTED, dict[str, None]())
    item.config.stash[_ACCEPTED] = {}
    lines: list[str] = []
    if report.failed and call.excinfo is not None:
        failed = list(_failed(getattr(call.excinfo.value, "result", None)))
        lines = [line for case, result in failed for line in _lines(f"{item.nodeid}{case}", result)]
    elif report.passed and accepted:
        lines = [f"{item.nodeid}:", *(f"  {line}" for line in accepted)]
    return [writable(line) for line in lines]


def _failed(result: object) -> Iterator[tuple[str, VerifyResult]]:
    """The results behind a failure, each with its case."""
    if isinstance(result, VerifyResult):
        yield "", result
    elif isinstance(result, LoopTrial):
        for failure in result.failures:
            if failure.result is not None:
                yield f" ({failure.case})", failure.result


def _lines(name: str, result: VerifyResult) -> Iterator[str]:
    yield f"{name}: {f'error: {result.error}' if result.error else f'{result.verdict.value}: {result.reason}'}"
    failing = [w for w in result.windows if w.verdict is not Verdict.EQUIVALENT and not w.accepted]
    if failing:
        yield from (f"  {line}" for line in table(failing, PLAIN, WIDTH - 2))
    yield from (f"  {_cause(diagnosis)}" for diagnosis in result.diagnosis)


def _cause(diagnosis: Diagnosis) -> str:
    where, mistake = diagnosis.where, diagnosis.mistake
    return f"{mistake.code} [{mistake.name}] at {shown_path(where.path)}:{where.line}"

"""A run's result as the process of the run returns it to the one that started it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import Mistake, Severity
from gradcheck_accum.portable import NotPortable, Portable
from gradcheck_accum.results import verdict
from gradcheck_accum.wording import Message

_RESULTS = Portable(
    [
        Diagnosis,
        Location,
        Message,
        Mistake,
        Severity,
        verdict.Accepted,
        verdict.ByParameter,
        verdict.CostReport,
        verdict.ParameterError,
        verdict.PassCost,
        verdict.ReferenceReport,
        verdict.Verdict,
        verdict.VerifyResult,
        verdict.WindowReport,
    ]
)


def written(result: verdict.VerifyResult) -> bytes:
    """A result as bytes."""
    return _RESULTS.dumps(result)


def leave(result: verdict.VerifyResult, answer: Path) -> None:
    """Write a result to the file ``answer`` atomically. Raises OSError."""
    temporary = answer.with_suffix(".part")
    temporary.write_bytes(written(result))
    temporary.replace(answer)


def read_result(content: bytes) -> verdict.VerifyResult:
    """The result that was written. Raises NotPortable for anything else."""
    found = _RESULTS.loads(content)
    if not isinstance(found, verdict.VerifyResult):
        raise NotPortable("not the result of a run")
    return found

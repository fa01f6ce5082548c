"""What `verify` says of loops on which other tools were tried: each an unmodified script of `fixtures/`.

    python benchmarks/verify_peers.py

The first seven are those of which TrainCheck 0.2 found two and torch-audit 0.3 none; the other columns say what the
three tools made of the same loops when they were tried by hand. Only the last column is measured here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import verify_script

FIXTURES = Path(__file__).parents[1] / "fixtures"


class Row(NamedTuple):
    """A loop, its script, what three peers made of it, and the codes that are right (none for a right loop)."""

    loop: str
    script: str
    traincheck: str
    torch_audit: str
    pytest_torch: str
    causes: frozenset[str]


ROWS = (
    Row("no loss scaling", "unscaled.py", "missed", "missed", "caught", frozenset({"GA101"})),
    Row("cleared every micro-batch", "zeroed_every_batch.py", "caught", "missed", "wrong hint", frozenset({"GA201"})),
    Row("never cleared", "never_zeroed.py", "caught", "missed", "caught", frozenset({"GA203"})),
    Row("step every micro-batch", "stepped_every_batch.py", "missed", "missed", "caught", frozenset({"GA304"})),
    Row(
        "off by one, tail lost",
        "class_trainer_off_by_one.py",
        "missed",
        "missed",
        "caught",
        frozenset({"GA301", "GA302"}),
    ),
    Row("clip every micro-batch", "clip_every_batch.py", "missed", "missed", "wrong hint", frozenset({"GA401"})),
    Row("tail dropped", "basic_no_flush.py", "missed", "missed", "not expressible", frozenset({"GA301"})),
    Row("no scaling, active clip", "clipped_unscaled.py", "-", "-", "passes", frozenset({"GA101"})),
    Row("right", "basic_flushed.py", "16 alarms", "clean", "pass", frozenset()),
    Row("right, bfloat16, K = 64", "bfloat16_weights.py", "-", "-", "fails", frozenset()),
    Row("right, unequal splits", "unequal_splits.py", "-", "-", "fails", frozenset()),
)


def judged(row: Row) -> VerifyResult:
    """What `verify` says of a row's script, run as a user runs it."""
    return verify_script(str(FIXTURES / row.script))


def main() -> None:
    """Print the table."""
    print("| loop | TrainCheck 0.2 | torch-audit 0.3 | pytest-torch 1.1.1 | verify |")
    print("| --- | --- | --- | --- | --- |")
    for row in ROWS:
        result = judged(row)
        causes = ", ".join(sorted({d.mistake.code for d in result.diagnosis}))
        said = f"{result.verdict.value}{': ' if causes else ''}{causes}"
        print(f"| {row.loop} | {row.traincheck} | {row.torch_audit} | {row.pytest_torch} | {said} |", flush=True)


if __name__ == "__main__":
    main()

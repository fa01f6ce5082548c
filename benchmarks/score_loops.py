"""Precision and recall of `lint` on the loops next to this file.

    python benchmarks/score_loops.py

Every loop says in `# error: [name]` comments what is wrong with it, and on which line. The loops were written before
the linter ran on them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gradcheck_accum.lint import lint_source

LOOPS = Path(__file__).parent / "loops"
_ERROR = re.compile(r"# error: \[([a-z0-9, -]+)\]")


def expected(source: str) -> set[tuple[int, str]]:
    """The (line, rule name) pairs that a loop's own comments declare."""
    return {
        (number, name.strip())
        for number, line in enumerate(source.splitlines(), 1)
        for found in _ERROR.findall(line)
        for name in found.split(",")
    }


def main() -> int:
    """Print what was missed and what was flagged wrongly, then both ratios; 1 if either is below 1."""
    hits = misses = alarms = 0
    for path in sorted(LOOPS.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        wanted = expected(source)
        got = {(f.where.line, f.mistake.name) for f in lint_source(source, path.name)}
        hits += len(wanted & got)
        misses += len(wanted - got)
        alarms += len(got - wanted)
        for line, name in sorted(wanted - got):
            print(f"missed       {path.name}:{line} {name}")
        for line, name in sorted(got - wanted):
            print(f"false alarm  {path.name}:{line} {name}")
    print(f"{hits} found, {misses} missed, {alarms} false alarms")
    print(f"precision {hits / max(hits + alarms, 1):.3f}, recall {hits / max(hits + misses, 1):.3f}")
    return int(bool(misses or alarms))


if __name__ == "__main__":
    sys.exit(main())

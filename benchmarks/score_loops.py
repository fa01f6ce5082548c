"""Precision and recall of `lint` on the labelled loops in ``tests/loops``.

    python benchmarks/score_loops.py

Every loop says in `# error: [name]` comments what is wrong with it, and on which line. The loops were written before
the linter ran on them.
"""

from __future__ import annotations

import sys

from programs import marked_errors, written_loops

from gradcheck_accum.lint import lint_source


def main() -> int:
    """Print what was missed and what was flagged wrongly, then both ratios; 1 if either is below 1."""
    hits = misses = alarms = 0
    for name, source in written_loops().items():
        wanted = marked_errors(source)
        got = {(f.where.line, f.mistake.name) for f in lint_source(source, f"{name}.py")}
        hits += len(wanted & got)
        misses += len(wanted - got)
        alarms += len(got - wanted)
        for line, mistake in sorted(wanted - got):
            print(f"missed       {name}:{line} {mistake}")
        for line, mistake in sorted(got - wanted):
            print(f"false alarm  {name}:{line} {mistake}")
    print(f"{hits} found, {misses} missed, {alarms} false alarms")
    print(f"precision {hits / max(hits + alarms, 1):.3f}, recall {hits / max(hits + misses, 1):.3f}")
    return int(bool(misses or alarms))


if __name__ == "__main__":
    sys.exit(main())

"""The catalogue as a table."""

from __future__ import annotations

from collections.abc import Iterable

from gradcheck_accum.mistakes import Mistake

_WHERE_VISIBLE = "(lint)"


def rules_text(mistakes: Iterable[Mistake]) -> str:
    """One line for each mistake: code, name, which command sees it, and what it is; and what a mark means."""
    mistakes = list(mistakes)
    rows = [(mistake.code, mistake.name, _seen_by(mistake), mistake.summary) for mistake in mistakes]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    if any(mistake.where_visible for mistake in mistakes):
        lines += ["", f"{_WHERE_VISIBLE}: only where the source shows the numbers"]
    return "\n".join(lines)


def _seen_by(mistake: Mistake) -> str:
    lint = _WHERE_VISIBLE if mistake.where_visible else "lint"
    return " ".join(name for name, sees in ((lint, mistake.static), ("verify", mistake.dynamic)) if sees)

"""What the analysis of one file comes to, before any setting chooses from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gradcheck_accum.findings import Finding, UnusedSuppression
from gradcheck_accum.location import Location
from gradcheck_accum.notebooks import Notebook

_LINE = re.compile(r"\bline (\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings that no comment hides, the codes of those that one does, and the comments that hide nothing.

    ``problem`` is the line that says why there was no analysis, if there was none.
    """

    findings: tuple[Finding, ...] = ()
    suppressed: tuple[str, ...] = ()
    unused: tuple[UnusedSuppression, ...] = ()
    problem: str = ""


def in_cells(outcome: Outcome, notebook: Notebook) -> Outcome:
    """The outcome of a notebook's source with its places, and the lines that its messages name, in the cells.

    The edits of a fix stay in lines of the source: `Notebook.place` tells where they go.
    """

    def moved(where: Location) -> Location:
        cell, line = notebook.place(where.line)
        end = where.end_line and where.end_line - where.line + line
        return replace(where, line=line, end_line=end, cell=cell)

    def told(text: str) -> str:
        return _LINE.sub(lambda match: notebook.words(int(match.group(1))), text)

    return replace(
        outcome,
        findings=tuple(
            replace(f, where=moved(f.where), message=told(f.message), help=told(f.help)) for f in outcome.findings
        ),
        unused=tuple(replace(u, where=moved(u.where)) for u in outcome.unused),
    )

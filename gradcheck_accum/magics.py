"""``%load_ext gradcheck_accum``: the cell magic ``%%accum`` judges what a cell trains."""

from __future__ import annotations

import os
from typing import Any

from gradcheck_accum.results.acceptance import accepted
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.session import acceptance_at
from gradcheck_accum.verify.stack.frames import running_cell


def load(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def accum(line: str, cell: str) -> VerifyResult | None:
        """Run the cell, and show whether every optimizer step in it got the gradient of the true large batch.

        What the project's settings and comments accept is accepted here too. Takes no options: `gradcheck_accum.check`
        and `gradcheck_accum.watch` do.
        """
        if line.strip():
            raise ValueError(f"%%accum takes no options, not '{line.strip()}': see gradcheck_accum.check")
        acceptance = acceptance_at(os.curdir, select=None, ignore=None)
        with observe(script="the cell") as observation:
            ran = _run(shell, cell)
        # The cell's exception has already been shown.
        return accepted(observation.result(), acceptance) if ran.success else None

    shell.register_magic_function(accum, magic_kind="cell", magic_name="accum")


def _run(shell: Any, cell: str) -> Any:
    """Run a cell under the execution count, and with the line numbers, that its reader sees: line 1 is the magic."""
    before = shell.execution_count
    shell.execution_count = running_cell() or before
    try:
        return shell.run_cell(f"#\n{cell}")
    finally:
        shell.execution_count = before

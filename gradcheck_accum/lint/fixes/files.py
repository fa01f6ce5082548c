"""Fixes for files: what is left to report once they are made, and the writing of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gradcheck_accum.files import write_atomically
from gradcheck_accum.results.findings import LintResult, Unreadable, in_order


def fixed_result(result: LintResult) -> LintResult:
    """What ``result`` is after its rewrites."""
    changed = {rewrite.path for rewrite in result.rewrites}
    remaining = [finding for finding in result.findings if finding.where.path not in changed]
    remaining += [finding for rewrite in result.rewrites for finding in rewrite.remaining]
    return replace(
        result,
        findings=tuple(sorted(remaining, key=in_order)),
        fixed=tuple(finding for rewrite in result.rewrites for finding in rewrite.fixed),
    )


def write_all(result: LintResult) -> LintResult:
    """Write every changed file, and what is left then. Where one cannot be, its findings stay and it is reported."""
    failed: list[Unreadable] = []
    written = []
    for rewrite in result.rewrites:
        try:
            if not os.access(rewrite.path, os.W_OK):
                raise PermissionError(0, "permission denied", rewrite.path)
            if Path(rewrite.path).read_bytes() != rewrite.before:
                raise OSError(0, "changed while it was being analyzed")
            write_atomically(Path(rewrite.path), rewrite.after)
            written.append(rewrite)
        except OSError as error:
            failed.append(Unreadable(rewrite.path, f"cannot be written: {error.strerror or error}"))
    done = replace(result, rewrites=tuple(written), unreadable=(*result.unreadable, *failed))
    return fixed_result(done)

"""The static engine: reads a training script without running it, and reports what its gradient ledger would show.

The loop's skeleton is interpreted (`gradcheck_accum.lint.interpreter`) on a small syntax of our own
(`gradcheck_accum.lint.syntax`), to which LibCST's tree is lowered; fixes are made on LibCST's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from gradcheck_accum.lint.examination.document import LintError, open_document
from gradcheck_accum.lint.examination.examine import examine
from gradcheck_accum.results.findings import Finding, LintResult
from gradcheck_accum.settings import Settings

__all__ = ["LintError", "lint_paths", "lint_source"]


def lint_source(source: str | bytes, path: str) -> list[Finding]:
    """The findings in ``source``, in order of line; a ``path`` to an .ipynb makes it a notebook.

    Raises LintError if the source is too large, cannot be decoded, or is not valid in the running Python.
    """
    document = open_document(source, path)
    return list(document.outcome(examine(document.source, path, document.words).outcome()).findings)


def lint_paths(
    paths: Iterable[str],
    settings: Settings | None = None,
    *,
    jobs: int = 1,
    cache_in: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    report_unused: bool = False,
    fixes: Literal["safe", "unsafe"] | None = None,
    given: Mapping[str, bytes] | None = None,
) -> LintResult:
    """Lint files, and every Python file and notebook below directories, as ``settings`` say.

    A path that cannot be analyzed is reported, not raised. Many files are analyzed in up to ``jobs`` processes, and
    results are cached in the directory ``cache_in``; ``progress`` is called with the number of finished files and the
    total. With ``fixes``, the result includes the fixed text of each file; only the cache is written. ``given`` holds
    the contents of paths that could be read only once, and have been.
    """
    from gradcheck_accum.lint.project.run import lint_files  # runs over many files need more modules

    return lint_files(
        paths,
        settings or Settings(),
        jobs=jobs,
        cache_in=cache_in,
        progress=progress,
        report_unused=report_unused,
        fixes=fixes,
        given=given or {},
    )

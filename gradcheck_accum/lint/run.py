"""A run of lint over many files: which of them can matter, what is known already, and several at a time.

A file that never calls ``backward``, or never steps, holds no loop. Where it was found in a directory, its bytes are
all that is looked at; where it was given by name it is parsed, so that what is no Python is said to be so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_accum.errors import internal_error, wants_tracebacks
from gradcheck_accum.findings import Finding, LintResult, Unreadable, UnusedSuppression
from gradcheck_accum.gate import may_train
from gradcheck_accum.lint import LintError, analyse
from gradcheck_accum.lint.discovery import SourceFile, source_files
from gradcheck_accum.lint.outcome import Outcome
from gradcheck_accum.lint.settings import Settings
from gradcheck_accum.lint.suppressions import MAY_NAME_CODES

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from gradcheck_accum.lint.cache import Cache

ENOUGH_FOR_WORKERS = 32
"""Files to analyse from which on several processes take less time than one."""

_MOST_WORKERS = 61
"""As many as Windows can wait for."""

Progress = Callable[[int, int], None]
"""Told how many files are done, of how many."""


def lint_files(
    paths: Iterable[str],
    settings: Settings,
    *,
    jobs: int,
    cache_in: Path | None,
    progress: Progress | None,
    report_unused: bool,
) -> LintResult:
    """Lint files, and those below directories; see `gradcheck_accum.lint.lint_paths`."""
    found = list(source_files(paths, settings))
    files = [item for item in found if isinstance(item, SourceFile)]
    mattering = [file.path for file in files if file.named or _can_matter(file.path, report_unused)]
    outcomes = _outcomes(mattering, jobs, cache_in, progress)
    unreadable = [item for item in found if isinstance(item, Unreadable)]
    return chosen(outcomes, settings, unreadable, len(files), report_unused)


def lint_given(source: bytes, path: str, settings: Settings, *, report_unused: bool) -> LintResult:
    """Lint a source that is on no disk as if it stood at ``path``."""
    return chosen([(path, _guarded(source, path))], settings, [], 1, report_unused)


def chosen(
    outcomes: Sequence[tuple[str, Outcome]],
    settings: Settings,
    unreadable: Sequence[Unreadable],
    files: int,
    report_unused: bool,
) -> LintResult:
    """What the settings leave of the outcomes of all files."""
    findings: list[Finding] = []
    unused: list[UnusedSuppression] = []
    suppressed = 0
    for path, outcome in outcomes:
        findings += [f for f in outcome.findings if settings.reports(f.mistake.code, path)]
        suppressed += sum(settings.reports(code, path) for code in outcome.suppressed)
        unused += outcome.unused
    kept = findings
    if settings.baseline is not None:
        from gradcheck_accum.lint.baseline import Baseline

        baseline = Baseline(settings.baseline)
        kept = [finding for finding in findings if not baseline.takes(finding)]
    return LintResult(
        tuple(kept),
        (*unreadable, *(Unreadable(path, outcome.problem) for path, outcome in outcomes if outcome.problem)),
        files,
        suppressed,
        None if settings.baseline is None else len(findings) - len(kept),
        tuple(unused) if report_unused else None,
    )


def _can_matter(path: str, report_unused: bool) -> bool:
    try:
        content = Path(path).read_bytes()
    except OSError:
        return True  # the analysis will say why
    return may_train(content) or (report_unused and bool(MAY_NAME_CODES.search(content)))


def _outcomes(
    paths: Sequence[str], jobs: int, cache_in: Path | None, progress: Progress | None
) -> list[tuple[str, Outcome]]:
    """The outcome of every path, in order."""
    cache: Cache | None = None
    if cache_in is not None and len(paths) > 1:  # for a single file it costs more than it spares
        from gradcheck_accum.lint.cache import Cache

        cache = Cache(cache_in)
    outcomes = dict.fromkeys(paths, Outcome())
    new = []
    for path in paths:
        known = cache and cache.get(_key_of(path), path)
        if known:
            outcomes[path] = known
        else:
            new.append(path)
    try:
        analysed = _map(partial(_analyse_file, keyed=cache is not None), new, jobs)
        for done, (path, (key, outcome)) in enumerate(zip(new, analysed, strict=True), len(paths) - len(new) + 1):
            outcomes[path] = outcome
            if cache and key:
                cache.put(key, outcome)
            if progress:
                progress(done, len(paths))
    finally:
        if cache:
            cache.save()
    return list(outcomes.items())


def _key_of(path: str) -> str:
    try:
        return _key(Path(path).read_bytes(), path)
    except OSError:
        return ""


def _key(content: bytes, path: str) -> str:
    from gradcheck_accum.lint.cache import digest

    return digest(content, os.path.splitext(path)[1])


def _analyse_file(path: str, keyed: bool) -> tuple[str, Outcome]:
    """The outcome of a file, and the key of the very bytes that it is of; no key where it must not be remembered."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return "", Outcome(problem=error.strerror or "cannot be read")
    outcome = _guarded(content, path)
    lasting = keyed and not outcome.problem
    return _key(content, path) if lasting else "", outcome


def _guarded(content: bytes, path: str) -> Outcome:
    """The outcome of a source; what goes wrong is its problem, and no other file's."""
    try:
        return analyse(content, path)
    except LintError as error:
        return Outcome(problem=str(error))
    except Exception as error:
        if wants_tracebacks():
            raise
        return Outcome(problem=internal_error(error))


def _map(
    function: Callable[[str], tuple[str, Outcome]], paths: Sequence[str], jobs: int
) -> Iterator[tuple[str, Outcome]]:
    """``function`` of every path, in order; in several processes where that pays."""
    pool = _pool(jobs) if jobs > 1 and len(paths) >= ENOUGH_FOR_WORKERS else None
    if pool is None:
        yield from map(function, paths)
        return
    try:
        yield from pool.map(function, paths)
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor | None:
    """Worker processes, or None on a system that grants none."""
    with suppress(ImportError, NotImplementedError, OSError):
        from concurrent.futures import ProcessPoolExecutor

        return ProcessPoolExecutor(min(jobs, _MOST_WORKERS), initializer=_leave_interrupts_to_the_parent)
    return None


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

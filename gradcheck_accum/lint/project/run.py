"""A run of lint over many files: which of them can matter, what is known already, and several at a time.

A file that never calls ``backward``, or never steps, holds no loop. Where it was found in a directory, its bytes are
all that is looked at; where it was given by name it is parsed, so that a syntax error is reported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradcheck_accum.errors import internal_error, wants_tracebacks
from gradcheck_accum.lint.examination.collecting import collect_rarely, collecting_rarely
from gradcheck_accum.lint.examination.document import LintError, open_document, read
from gradcheck_accum.lint.examination.examine import examine
from gradcheck_accum.lint.examination.outcome import Outcome
from gradcheck_accum.lint.project.discovery import SourceFile, is_held_back, source_files
from gradcheck_accum.results.findings import Finding, LintResult, Rewrite, Unreadable, UnusedSuppression, in_order
from gradcheck_accum.settings import Settings, SettingsError
from gradcheck_accum.sources.prefilter import may_train, may_train_with_others
from gradcheck_accum.sources.suppressions import MAY_NAME_CODES

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from gradcheck_accum.lint.project.cache import Cache

ENOUGH_FOR_WORKERS = 32
"""The number of files from which several processes are faster than one."""

_MOST_WORKERS = 61
"""As many as Windows can wait for."""

Progress = Callable[[int, int], None]
"""Called with the number of finished files, and the total."""

Fixes = Literal["safe", "unsafe"]
"""Which fixes are to be made: those that change the mistake alone, or the others too."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done with one file, all of it from one look: its findings, and their fixes."""

    settings: Settings
    fixes: Fixes | None
    given: Mapping[str, bytes] = field(default_factory=dict)

    def content(self, path: str) -> bytes:
        """What is in a file. Raises OSError."""
        return self.given[path] if path in self.given else read(path)

    def outcome(self, content: bytes, path: str) -> Outcome:
        """The outcome of a file. Raises LintError, and SettingsError for a baseline that is none."""
        document = open_document(content, path)
        examination = examine(document.source, path, document.words)
        outcome = document.outcome(examination.outcome())
        if not outcome.findings:
            return outcome
        from gradcheck_accum.lint import fixes  # where there is something to fix only

        if self.fixes is None:
            return replace(outcome, findings=fixes.offered(document, examination))
        codes = {finding.mistake.code for finding in self._reported(outcome.findings, path)}
        done = fixes.fixed(document, examination, unsafe=self.fixes == "unsafe", codes=codes)
        if not done.fixed:
            others = [finding for finding in outcome.findings if finding.mistake.code not in codes]
            return replace(outcome, findings=tuple(sorted([*done.remaining, *others], key=in_order)))
        remaining = tuple(self._reported([f for f in done.remaining if f.where.path == path], path))
        pieces = tuple(document.pieces(done.document))
        rewrite = Rewrite(path, content, done.document.content(), pieces, done.fixed, remaining)
        return replace(outcome, rewrite=rewrite)

    def could_fix(self, outcome: Outcome) -> bool:
        """Whether there may be something to fix in a file with this outcome."""
        fixes = [finding.fix for finding in outcome.findings if finding.fix]
        return self.fixes is not None and any(fix.safe or self.fixes == "unsafe" for fix in fixes)

    def _reported(self, findings: Iterable[Finding], path: str) -> Sequence[Finding]:
        return _new(_selected(findings, path, self.settings), self.settings)


def lint_files(
    paths: Iterable[str],
    settings: Settings,
    *,
    jobs: int,
    cache_in: Path | None,
    progress: Progress | None,
    report_unused: bool,
    fixes: Fixes | None,
    given: Mapping[str, bytes],
) -> LintResult:
    """Lint files, and those below directories; see `gradcheck_accum.lint.lint_paths`."""
    found = list(source_files(paths, settings))
    files = [item for item in found if isinstance(item, SourceFile)]
    mattering = [file.path for file in files if file.named or _can_matter(file.path, report_unused)]
    with collecting_rarely():
        outcomes = _outcomes(mattering, _Work(settings, fixes, given), jobs, cache_in, progress)
    unreadable = [item for item in found if isinstance(item, Unreadable)]
    return chosen(outcomes, settings, unreadable, len(files), report_unused)


def lint_given(
    source: bytes, path: str, settings: Settings, *, report_unused: bool, fixes: Fixes | None = None
) -> LintResult:
    """Lint a source that is not on disk as if it were at ``path``."""
    if is_held_back(path, settings):
        return chosen([], settings, [], 0, report_unused)
    outcome = _guarded(source, path, _Work(settings, fixes))
    return chosen([(path, outcome)], settings, [], 1, report_unused)


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
        findings += _selected([f for f in outcome.findings if f.where.path == path], path, settings)
        suppressed += sum(settings.reports(code, path) for code in outcome.suppressed)
        unused += outcome.unused
    elsewhere = list(_found_elsewhere(outcomes, findings, settings))
    findings = sorted([*findings, *elsewhere], key=in_order) if elsewhere else findings
    kept = _new(findings, settings)
    return LintResult(
        tuple(kept),
        (*unreadable, *(Unreadable(path, outcome.problem) for path, outcome in outcomes if outcome.problem)),
        files,
        suppressed,
        None if settings.baseline is None else len(findings) - len(kept),
        tuple(unused) if report_unused else None,
        not_followed=sum(outcome.not_followed for _, outcome in outcomes),
        unread=tuple(sorted({path for _, outcome in outcomes for path in outcome.unread})),
        rewrites=tuple(outcome.rewrite for _, outcome in outcomes if outcome.rewrite),
    )


def _found_elsewhere(
    outcomes: Sequence[tuple[str, Outcome]], findings: Sequence[Finding], settings: Settings
) -> Iterator[Finding]:
    """The findings in other files than those that showed them, each once, without those of their own file."""
    reported = {_place(finding) for finding in findings}
    for path, outcome in outcomes:
        for finding in outcome.findings:
            if finding.where.path == path or _place(finding) in reported or settings.excludes(finding.where.path):
                continue
            reported.add(_place(finding))
            yield from _selected([finding], finding.where.path, settings)


def _place(finding: Finding) -> tuple[str, int, str]:
    return os.path.realpath(finding.where.path), finding.where.line, finding.mistake.code


def _selected(findings: Iterable[Finding], path: str, settings: Settings) -> list[Finding]:
    """The findings in one file that are to be reported."""
    return [finding for finding in findings if settings.reports(finding.mistake.code, path)]


def _new(findings: Sequence[Finding], settings: Settings) -> Sequence[Finding]:
    """The findings that the baseline does not list. Raises SettingsError where it is none."""
    if settings.baseline is None:
        return findings
    from gradcheck_accum.lint.project.baseline import Baseline

    baseline = Baseline(settings.baseline)
    return [finding for finding in findings if not baseline.takes(finding)]


def _can_matter(path: str, report_unused: bool) -> bool:
    try:
        content = read(path)
    except OSError:
        return True  # the analysis will say why
    return may_train_with_others(content, path) or (report_unused and bool(MAY_NAME_CODES.search(content)))


def _outcomes(
    paths: Sequence[str], work: _Work, jobs: int, cache_in: Path | None, progress: Progress | None
) -> list[tuple[str, Outcome]]:
    """The outcome of every path, in order."""
    cache: Cache | None = None
    if cache_in is not None and len(paths) > 1:  # for a single file it costs more than it spares
        from gradcheck_accum.lint.project.cache import Cache

        cache = Cache(cache_in)
    outcomes = dict.fromkeys(paths, Outcome())
    new = []
    for path in paths:
        known = cache and cache.get(_key_of(path, work), path)
        if known and not work.could_fix(known):
            outcomes[path] = known
        else:
            new.append(path)
    try:
        analysed = _map(partial(_analyse_file, work=work, keyed=cache is not None), new, jobs)
        for done, (path, (key, outcome)) in enumerate(zip(new, analysed, strict=True), len(paths) - len(new) + 1):
            outcomes[path] = outcome
            if cache and key and not (work.fixes and outcome.findings):
                cache.put(key, outcome, path)
            if progress:
                progress(done, len(paths))
    finally:
        if cache:
            cache.save()
    return list(outcomes.items())


def _key_of(path: str, work: _Work) -> str:
    try:
        return _key(work.content(path), path)
    except OSError:
        return ""


def _key(content: bytes, path: str) -> str:
    from gradcheck_accum.lint.project.cache import digest

    return digest(content, os.path.splitext(path)[1])


def _analyse_file(path: str, work: _Work, keyed: bool) -> tuple[str, Outcome]:
    """The outcome of a file, and the key of the very bytes that it is of; no key where it must not be remembered."""
    try:
        content = work.content(path)
    except OSError as error:
        return "", Outcome(problem=error.strerror or "cannot be read")
    outcome = _guarded(content, path, work)
    # What makes a file matter may come with another file; looking again at one that does not costs little.
    lasting = keyed and not outcome.problem and (bool(outcome.read) or b"import" not in content or may_train(content))
    return _key(content, path) if lasting else "", outcome


def _guarded(content: bytes, path: str, work: _Work) -> Outcome:
    """The outcome of a source; an error becomes its problem and does not affect other files."""
    try:
        return work.outcome(content, path)
    except LintError as error:
        return Outcome(problem=str(error))
    except SettingsError:
        raise
    except Exception as error:
        if wants_tracebacks():
            raise
        return Outcome(problem=internal_error(error))


def _map(
    function: Callable[[str], tuple[str, Outcome]], paths: Sequence[str], jobs: int
) -> Iterator[tuple[str, Outcome]]:
    """``function`` of every path, in order; in several processes if that is faster."""
    pool = _pool(jobs) if jobs > 1 and len(paths) >= ENOUGH_FOR_WORKERS else None
    if pool is None:
        yield from map(function, paths)
        return
    try:
        yield from pool.map(function, paths)
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor | None:
    """Worker processes, or None on a system that does not support them."""
    with suppress(ImportError, NotImplementedError, OSError):
        from concurrent.futures import ProcessPoolExecutor

        return ProcessPoolExecutor(min(jobs, _MOST_WORKERS), initializer=_begin_worker)
    return None


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts are left to the parent
    collect_rarely()

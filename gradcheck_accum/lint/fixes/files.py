"""Fixes for files: what would change in each, and the writing of it."""

from __future__ import annotations

import codecs
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gradcheck_accum.findings import Finding, LintResult, Unreadable
from gradcheck_accum.lint import LintError, decode
from gradcheck_accum.lint.files import write_atomically
from gradcheck_accum.lint.fixes import FixResult, fix_source, offer_fixes
from gradcheck_accum.notebooks import SUFFIX as NOTEBOOK


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file's content before and after its fixes."""

    path: str
    before: bytes
    after: bytes


def with_offers(result: LintResult, given: Mapping[str, bytes] | None = None) -> LintResult:
    """``result`` with the fix that each finding would have; ``given`` holds contents that are on no disk."""
    findings: list[Finding] = []
    for path, found in _by_path(result).items():
        if path.endswith(NOTEBOOK):
            # The cells of a notebook are repaired by hand.
            findings += found
            continue
        try:
            offers = offer_fixes(decode(_read(path, given)), path, codes=_codes(found))
        except (LintError, OSError):
            offers = ()
        fixes = {_key(offer): offer.fix for offer in offers}
        findings += [replace(finding, fix=fixes.get(_key(finding))) for finding in found]
    return replace(result, findings=tuple(findings))


def with_fixes(
    result: LintResult, given: Mapping[str, bytes] | None = None, *, unsafe: bool
) -> tuple[LintResult, list[Rewrite]]:
    """What ``result`` would be after its fixes, and the files that they change; nothing is written."""
    remaining: list[Finding] = []
    fixed: list[Finding] = []
    rewrites: list[Rewrite] = []
    for path, found in _by_path(result).items():
        if path.endswith(NOTEBOOK):
            remaining += found
            continue
        try:
            before = _read(path, given)
            done = fix_source(decode(before), path, unsafe=unsafe, codes=_codes(found))
        except (LintError, OSError):
            remaining += found
            continue
        remaining += done.remaining
        fixed += done.fixed
        if done.fixed:
            rewrites.append(Rewrite(path, before, _encoded(before, done)))
    return replace(result, findings=tuple(remaining), fixed=tuple(fixed)), rewrites


def write_all(found: LintResult, fixed: LintResult, rewrites: Collection[Rewrite]) -> LintResult:
    """Write every changed file. Where one cannot be, what was ``found`` in it stays found, and the path is reported."""
    failed: dict[str, Unreadable] = {}
    for rewrite in rewrites:
        try:
            if not os.access(rewrite.path, os.W_OK):
                raise PermissionError(0, "permission denied", rewrite.path)
            write_atomically(Path(rewrite.path), rewrite.after)
        except OSError as error:
            failed[rewrite.path] = Unreadable(rewrite.path, f"cannot be written: {error.strerror or error}")
    if not failed:
        return fixed
    findings = [f for f in fixed.findings if f.where.path not in failed]
    findings += [f for f in found.findings if f.where.path in failed]
    return replace(
        fixed,
        findings=tuple(sorted(findings, key=lambda finding: (finding.where, finding.mistake.code))),
        fixed=tuple(f for f in fixed.fixed if f.where.path not in failed),
        unreadable=(*fixed.unreadable, *failed.values()),
    )


def _key(finding: Finding) -> tuple[str, int]:
    return finding.mistake.code, finding.where.line


def _by_path(result: LintResult) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in result.findings:
        found.setdefault(finding.where.path, []).append(finding)
    return found


def _codes(found: Collection[Finding]) -> set[str]:
    """What was asked for and found: codes that were not selected are not fixed either."""
    return {finding.mistake.code for finding in found}


def _read(path: str, given: Mapping[str, bytes] | None) -> bytes:
    return given[path] if given is not None and path in given else Path(path).read_bytes()


def _encoded(before: bytes, done: FixResult) -> bytes:
    mark = codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b""
    return mark + done.source.encode()

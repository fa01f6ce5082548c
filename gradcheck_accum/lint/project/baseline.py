"""Findings that a project accepts for now: listed in a file, and not reported again.

A finding is known by its path, its code and the text of its line, and where several are alike by how many there are:
that outlives edits elsewhere in the file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradcheck_accum.files import write_atomically
from gradcheck_accum.results.findings import Finding
from gradcheck_accum.settings import SettingsError

VERSION = 1

_Key = tuple[str, str, str]


class Baseline:
    """The findings that the file at ``path`` lists; paths in it are relative to its directory."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError where there is no such file, or it is no baseline."""
        self._directory = path.parent
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise SettingsError(f"baseline {path}: is no regular file")
        try:
            stored = json.loads(path.read_bytes())
            if stored["version"] != VERSION:
                raise SettingsError(f"baseline {path}: written by another version (recreate it)")
            self._left = Counter({_read(item): int(item["count"]) for item in stored["findings"]})
        except OSError as error:
            raise SettingsError(f"baseline {path}: {error.strerror} (--write-baseline writes one)") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SettingsError(f"baseline {path}: not a baseline (--write-baseline writes one)") from None

    def takes(self, finding: Finding) -> bool:
        """Whether the baseline lists a finding; each of its entries takes as many as it counts."""
        key = _key(finding, self._directory)
        if not self._left[key]:
            return False
        self._left[key] -= 1
        return True


def write_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write a baseline that takes exactly ``findings``. Raises OSError."""
    counts = Counter(_key(finding, path.parent) for finding in findings)
    listed = [
        {"path": where, "code": code, "text": text, "count": count}
        for (where, code, text), count in sorted(counts.items())
    ]
    content = json.dumps({"version": VERSION, "findings": listed}, indent=2, ensure_ascii=False)
    # A name of a file that is no Unicode: its bytes are escaped as JSON itself escapes them.
    write_atomically(path, f"{content}\n".encode(errors="backslashreplace"))


def _key(finding: Finding, directory: Path) -> _Key:
    # Paths as they are named, links and all: that is how a person finds the entry again.
    path = os.path.abspath(finding.where.path)
    with contextlib.suppress(ValueError):  # another drive
        path = os.path.relpath(path, os.path.abspath(directory))
    return path.replace(os.sep, "/"), finding.mistake.code, finding.text


def _read(item: Any) -> _Key:
    return str(item["path"]), str(item["code"]), str(item["text"])

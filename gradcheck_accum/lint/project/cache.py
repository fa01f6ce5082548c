"""Outcomes of earlier runs, keyed by the bytes of the file and the code that analyzed it.

No setting is part of the key: settings choose among findings only after the analysis. The store is JSON, never
anything that could run; one that cannot be read is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gradcheck_accum.files import write_atomically
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.examination.outcome import Outcome
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.findings import Edit, Finding, Fix, UnusedSuppression
from gradcheck_accum.sources import local_imports
from gradcheck_accum.sources.regular import read_regular
from gradcheck_accum.wording import Said, message, moved

DIRECTORY = ".gradcheck-accum-cache"

PACKAGE = Path(__file__).parents[2]
"""The outcomes depend on this source, including the version in it."""

_FILE = "lint.json"
_MOST_ENTRIES = 20_000
_LARGEST = 256 * 1024 * 1024
"""A larger store, in bytes, is not ours."""


def digest(content: bytes, kind: str) -> str:
    """The key of a file's outcome; ``kind`` tells a notebook from a script of the same bytes."""
    return hashlib.blake2b(content, digest_size=20, person=b"gradcheck", salt=kind.encode()[:16]).hexdigest()


class Cache:
    """The store below ``directory``; `save` writes what was added."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / DIRECTORY
        self._entries: dict[str, Any] = {}
        self._changed = False
        self._stamp = _stamp()
        with contextlib.suppress(ValueError, RecursionError):
            stored = json.loads(read_regular(str(self._directory / _FILE), _LARGEST) or b"")
            if (
                self._stamp
                and isinstance(stored, dict)
                and stored.get("stamp") == self._stamp
                and isinstance(stored.get("files"), dict)
            ):
                self._entries = stored["files"]

    def get(self, key: str, path: str) -> Outcome | None:
        """The outcome for this key, as that of ``path``; None if another file that it depends on has changed."""
        try:
            outcome = _outcome(self._entries[key], path)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        if any(local_imports.digest(local_imports.read(file)) != known for file, known in outcome.read):
            return None
        self._entries[key] = self._entries.pop(key)  # used last: dropped last
        return outcome

    def put(self, key: str, outcome: Outcome, path: str) -> None:
        """Remember the outcome of the file at ``path``."""
        nowhere = replace(
            outcome,
            findings=tuple(_nowhere(finding, path) for finding in outcome.findings),
            unused=tuple(replace(u, where=replace(u.where, path="")) for u in outcome.unused),
            read=tuple((_seen_from(path, file), known) for file, known in outcome.read),
            unread=tuple(_seen_from(path, file) for file in outcome.unread),
        )
        record = asdict(nowhere)
        for finding in record["findings"]:
            finding["mistake"] = finding["mistake"]["code"]
        self._entries[key] = record
        self._changed = True

    def save(self) -> None:
        """Write what was added; a place that cannot be written to costs the next run its time only."""
        if not self._changed or not self._stamp:
            return
        entries = dict(list(self._entries.items())[-_MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            self._directory.mkdir(exist_ok=True)
            ignore = self._directory / ".gitignore"
            if not ignore.exists():
                write_atomically(ignore, b"*\n")
            content = json.dumps({"stamp": self._stamp, "files": entries}, separators=(",", ":"))
            write_atomically(self._directory / _FILE, content.encode())


def _nowhere(finding: Finding, path: str) -> Finding:
    """A finding of the file at ``path``, wherever that is."""

    def seen(place: Location) -> Location:
        return replace(place, path=_seen_from(path, place.path))

    return replace(finding, where=seen(finding.where), said=moved(finding.said, seen))


def _seen_from(path: str, other: str) -> str:
    """Another file's path from the directory of the file at ``path``; nothing for that file itself."""
    return "" if other == path else os.path.relpath(other, os.path.dirname(path) or os.curdir)


def _from_there(path: str, seen: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(path), seen)) if seen else path


def _stamp() -> str:
    """Identifies the code that produced an outcome; empty if its source is not available."""
    files = sorted(PACKAGE.rglob("*.py"))
    if not files:
        return ""
    own = hashlib.blake2b(sys.version.encode(), digest_size=20)
    for file in files:
        own.update(file.read_bytes())
    return own.hexdigest()


def _outcome(record: dict[str, Any], path: str) -> Outcome:
    return Outcome(
        tuple(_finding(found, path) for found in record["findings"]),
        tuple(CATALOGUE[code].code for code in record["suppressed"]),
        tuple(UnusedSuppression(_location(item["where"], path), item["message"]) for item in record["unused"]),
        record["problem"],
        record["not_followed"],
        read=tuple((_from_there(path, str(file)), str(known)) for file, known in record["read"]),
        unread=tuple(_from_there(path, str(file)) for file in record["unread"]),
    )


def _finding(record: dict[str, Any], path: str) -> Finding:
    fix = record["fix"]
    return Finding(
        **{
            **record,
            "mistake": CATALOGUE[record["mistake"]],
            "where": _location(record["where"], path),
            "said": _said(record["said"], path),
            "fix": Fix(**{**fix, "edits": tuple(Edit(**edit) for edit in fix["edits"])}) if fix else None,
        }
    )


def _said(record: Any, path: str) -> Said:
    if isinstance(record, str):
        return record
    return message(*(part if isinstance(part, str) else _location(part, path) for part in record["parts"]))


def _location(record: dict[str, Any], path: str) -> Location:
    numbers = {name: int(value) for name, value in record.items() if name not in ("path", "through")}
    return Location(_from_there(path, str(record["path"])), **numbers, through=str(record["through"]))

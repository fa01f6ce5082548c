"""Paths as a forge knows them: from the root of the repository, whatever the working directory is."""

from __future__ import annotations

import os
from pathlib import Path


def repository_root() -> Path:
    """Where a forge's paths begin: what it says itself (GITHUB_WORKSPACE), else the working directory."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or os.curdir).resolve()


def repository_path(path: str) -> str:
    """``path`` from that root, with slashes; as it is where it does not lie below it."""
    full = Path(os.path.abspath(path))
    for found in (full, full.resolve()):
        if found.is_relative_to(repository_root()):
            return found.relative_to(repository_root()).as_posix()
    return full.as_posix()

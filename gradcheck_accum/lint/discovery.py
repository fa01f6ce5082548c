"""The Python files under the paths that a person names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"})


def python_files(directory: Path) -> Iterator[Path]:
    """Every ``*.py`` below ``directory`` in order, without hidden folders, caches and virtual environments.

    Raises OSError where the directory itself cannot be read.
    """
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith(".") or entry.name in _SKIPPED:
            continue
        try:
            if entry.is_symlink() and entry.is_dir():
                continue
            if entry.is_dir():
                if not (entry / "pyvenv.cfg").exists():
                    yield from python_files(entry)
            elif entry.suffix == ".py":
                yield entry
        except PermissionError:
            continue

"""Finds a project's settings. On lint's fast path, so it imports next to nothing."""

from __future__ import annotations

import os

from gradcheck_accum.sources.regular import read_regular

TYPE_CHECKING = False  # as in `typing`, which takes a third of a bare start of Python to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = "gradcheck-accum"

LARGEST = 1024 * 1024
"""Bytes above which a file holds no settings of ours."""


def settings_files(paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The pyproject.toml files that name us, upward from the directory that ``paths`` share, with their content."""
    directory = _common_directory(paths)
    while True:
        file = os.path.join(directory, "pyproject.toml")
        content = read_regular(file, LARGEST + 1) or b""
        if TABLE.encode() in content:
            yield file, content
        above = os.path.dirname(directory)
        if above == directory:
            return
        directory = above


def _common_directory(paths: Iterable[str]) -> str:
    directories = [path if os.path.isdir(path) else os.path.dirname(path) for path in map(os.path.abspath, paths)]
    try:
        return os.path.commonpath(directories)
    except ValueError:  # no paths, or paths on several drives
        return os.getcwd()

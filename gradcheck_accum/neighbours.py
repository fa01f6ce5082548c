"""Where the modules of a file's own project would stand that it imports: found by path, never imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator

LARGEST = 64 * 1024
"""Bytes above which a neighbour is not read."""
_HIGHEST = 8
"""Packages around a file that are looked at."""


def places(path: str, level: int, name: str) -> Iterator[str]:
    """The files that ``from <level dots><name> import ...`` in the file at ``path`` may mean, the likeliest first.

    Beside a script, below the directory that relative imports start from, or in the packages that the file stands in.
    """
    here = os.path.dirname(path)
    parts = [part for part in name.split(".") if part]
    if level:
        if level > 1:
            here = os.path.normpath(os.path.join(here, *[os.pardir] * (level - 1)))
        yield from _files(here, parts)
        return
    top = os.path.join(here, parts[0]) if parts else here
    # Most absolute imports are of other packages: one place stands for all that are not there then.
    yield from _files(here, parts) if os.path.isdir(top) else [f"{top}.py"]
    for root in _roots(here, parts[0]) if parts else ():
        yield from _files(root, parts)


def _files(directory: str, parts: list[str]) -> Iterator[str]:
    if parts:
        yield os.path.join(directory, *parts) + ".py"
    yield os.path.join(directory, *parts, "__init__.py")


@functools.lru_cache(maxsize=1024)
def _roots(directory: str, package: str) -> tuple[str, ...]:
    """The directories that hold a package of this name, of those that ``directory`` stands in."""
    found = []
    if package in os.path.abspath(directory).split(os.sep):
        for _ in range(_HIGHEST):
            if not os.path.isfile(os.path.join(directory, "__init__.py")):
                break
            above = os.path.join(directory, os.pardir)
            if os.path.basename(os.path.abspath(directory)) == package:
                found.append(os.path.normpath(above) if os.path.isabs(above) else os.path.relpath(above))
            directory = above
    return tuple(found)


def definitions(content: bytes, names: Iterable[str]) -> bytes:
    """The text of the functions and classes of these names that a module defines."""
    import re  # not needed by most runs

    next_statement = re.compile(rb"^[^\s#)]", re.MULTILINE)
    either = "|".join(re.escape(name) for name in names)
    head = rf"^(?:async[ \t]+)?(?:def|class)[ \t]+(?:{either})\b".encode()
    found = []
    for match in re.finditer(head, content, re.MULTILINE):
        end = next_statement.search(content, content.find(b":", match.end()))
        found.append(content[match.start() : end.start() if end else len(content)])
    return b"".join(found)


def digest(content: bytes | None) -> str:
    """What a content is known by; nothing stands for no file."""
    if content is None:
        return ""
    import hashlib  # not needed by most runs

    return hashlib.blake2b(content, digest_size=12).hexdigest()


def read(path: str) -> bytes | None:
    """The bytes of a neighbour, or None where there is none that is worth reading."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _content(path, found.st_mtime_ns, found.st_size) if found.st_size <= LARGEST else None


@functools.lru_cache(maxsize=256)
def _content(path: str, changed: int, size: int) -> bytes | None:
    """What a file holds that was last ``changed`` then: the files of a package import the same ones again and again."""
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST)
    except OSError:
        return None

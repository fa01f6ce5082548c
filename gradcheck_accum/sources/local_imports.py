"""Finds the modules of a file's own project that it imports: by path, without importing them."""

from __future__ import annotations

import functools
import os

from gradcheck_accum.sources.code_alone import code_alone
from gradcheck_accum.sources.regular import read_regular

TYPE_CHECKING = False  # as in `typing`, which takes a third of a bare start of Python to load
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator

LARGEST = 64 * 1024
"""Bytes above which a neighboring module is not read."""
MOST_PASSED_ON = 3
"""How many packages may pass a name on until it is defined."""
_LARGEST_OF_ALL = 1024 * 1024
"""Bytes above which a module is considered generated."""
_FROM = rb"(?m)^from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|(\*|[\w, \t]*))"
_OF_A_PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""Files of the top directory of a project."""
_HIGHEST = 8
"""Packages around a file that are looked at."""


def places(path: str, level: int, name: str) -> Iterator[str]:
    """The files that ``from <level dots><name> import ...`` in the file at ``path`` may mean, the likeliest first.

    Next to a script, below the directory that relative imports start from, or in the packages that contain the file.
    """
    here = os.path.dirname(path)
    parts = [part for part in name.split(".") if part]
    if level:
        if level > 1:
            here = os.path.normpath(os.path.join(here, *[os.pardir] * (level - 1)))
        yield from _files(here, parts)
        return
    top = os.path.join(here, parts[0]) if parts else here
    # Most absolute imports are of other packages: one check then excludes all places.
    yield from _files(here, parts) if os.path.isdir(top) else [f"{top}.py"]
    for root in _roots(here, parts[0]) if parts else ():
        yield from _files(root, parts)


def _files(directory: str, parts: list[str]) -> Iterator[str]:
    if parts:
        yield os.path.join(directory, *parts) + ".py"
    yield os.path.join(directory, *parts, "__init__.py")


@functools.lru_cache(maxsize=1024)
def _roots(directory: str, package: str) -> tuple[str, ...]:
    """The directories that contain a package of this name, of those that ``directory`` is in.

    A package need not have an ``__init__.py``. The top directory of a project, recognized by its files, may contain it
    too: scripts are run from there.
    """
    found = [above for above, name in _around(directory) if name == package]
    top = _top_of_project(directory)
    if top is not None and os.path.isdir(os.path.join(top, package)):
        found.append(top)
    return tuple(os.path.normpath(one) if os.path.isabs(one) else os.path.relpath(one or ".") for one in found)


def _around(directory: str) -> Iterator[tuple[str, str]]:
    """The directory that contains a directory, with the name of that one, and so on up."""
    for _ in range(_HIGHEST):
        above = os.path.join(directory, os.pardir)
        yield above, os.path.basename(os.path.abspath(directory))
        directory = above


@functools.lru_cache(maxsize=256)
def _top_of_project(directory: str) -> str | None:
    """The top directory of the project that a directory is in, or None if nothing shows it."""
    for one in (directory, *(above for above, _ in _around(directory))):
        if any(os.path.exists(os.path.join(one, name)) for name in _OF_A_PROJECT):
            return one
    return None


class Source:
    """The bytes of a module, and the positions of its functions and classes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._definitions: dict[bytes, bytes] | None = None
        self._code: Source | None = None
        """The same without its comments and strings, once that has been asked for."""
        self._held: dict[tuple[re.Pattern[bytes], str], bool] = {}
        """Cache of searches in the definition of a name or, without one, in the whole module."""

    def origins_of(self, name: str) -> list[tuple[int, str]]:
        """Where a module may import a name from that it only passes on: the level, and the module.

        The one that it names it of, or else all of whose names it passes on (``import *``).
        """
        is_named = name.encode() in self.content
        if not is_named and b"*" not in self.content:
            return []
        import re  # not needed by most runs

        passed_on: list[tuple[int, str]] = []
        for dots, module, several, some in re.findall(_FROM, self.content):
            names = re.sub(rb"#[^\r\n]*", b"", several or some).decode("ascii", "replace").split(",")
            origin = len(dots), module.decode("ascii", "replace")
            if (dots or module) and is_named and name in map(str.strip, names):
                return [origin]
            if module and some == b"*":
                passed_on.append(origin)
        return passed_on

    def holds(self, pattern: re.Pattern[bytes], names: Iterable[str]) -> bool:
        """Whether the functions and classes of these names have such text in them; the whole module without names."""
        everywhere = self._holds(pattern, "")
        return everywhere and (not names or any(self._holds(pattern, name) for name in names))

    def calls(self, pattern: re.Pattern[bytes], names: Iterable[str]) -> bool:
        """The same of their code alone: what is shown in comments and strings is no call."""
        names = tuple(names)
        if not self.holds(pattern, names):
            return False
        if self._code is None:
            self._code = Source(code_alone(self.content))
        return self._code.holds(pattern, names)

    def _holds(self, pattern: re.Pattern[bytes], name: str) -> bool:
        known = self._held.get((pattern, name))
        if known is None:
            text = self._definition(name) if name else self.content
            known = self._held[pattern, name] = bool(pattern.search(text))
        return known

    def _definition(self, name: str) -> bytes:
        if self._definitions is None:
            self._definitions = _definitions(self.content)
        return b"".join(self._definitions[one] for one in _with_bases(name.encode(), self._definitions))


def _with_bases(name: bytes, definitions: dict[bytes, bytes]) -> list[bytes]:
    """A name that a module defines, and those of its bases that are defined there too: their methods are its own."""
    import re  # not needed by most runs

    found = [name] if name in definitions else []
    for one in found:  # grows while it is looked through
        bases = re.match(rb"class[ \t]+\w+[ \t]*\(([^)]*)\)", definitions[one])
        named = re.findall(rb"\w+", bases[1]) if bases else []
        found += [base for base in dict.fromkeys(named) if base in definitions and base not in found]
    return found


def _definitions(content: bytes) -> dict[bytes, bytes]:
    """The text of the functions and classes that a module defines, by name."""
    import re  # not needed by most runs

    next_statement = re.compile(rb"^[^\s#)]", re.MULTILINE)
    found: dict[bytes, bytes] = {}
    for match in re.finditer(rb"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", content, re.MULTILINE):
        end = next_statement.search(content, content.find(b":", match.end()))
        text = content[match.start() : end.start() if end else len(content)]
        found[match[1]] = found.get(match[1], b"") + text
    return found


def digest(source: Source | None) -> str:
    """The key of a content; empty if there is no file."""
    if source is None:
        return ""
    import hashlib  # not needed by most runs

    return hashlib.blake2b(source.content, digest_size=12).hexdigest()


def read(path: str) -> Source | None:
    """A neighboring module, None where there is none or it is too large."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _source(path, found.st_mtime_ns, found.st_size) if found.st_size <= LARGEST else None


def too_large(path: str) -> Source | None:
    """A neighboring module that is too large to be read, of which only the bytes are searched."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _source(path, found.st_mtime_ns, found.st_size) if LARGEST < found.st_size <= _LARGEST_OF_ALL else None


@functools.lru_cache(maxsize=256)
def _source(path: str, changed: int, size: int) -> Source | None:
    """What a file holds that was last ``changed`` then: the files of a package import the same ones again and again."""
    content = read_regular(path, size)
    return None if content is None else Source(content)


def is_called(
    call: re.Pattern[bytes],
    path: str,
    level: int,
    module: str,
    names: Iterable[str],
    read: Callable[[str], Source | None],
    passed_on: int = MOST_PASSED_ON,
) -> bool:
    """Whether these names of a module next to ``path`` make a call, wherever they are defined.

    Without names, whether anything in it does. ``read`` gives the modules, the first of which that is there decides.
    """
    for place in places(path, level, module):
        found = read(place)
        if found is not None:
            if found.calls(call, names):
                return True
            origins = ((name, origin) for name in names for origin in found.origins_of(name)) if passed_on else ()
            return any(
                is_called(call, place, level, module, [name], read, passed_on - 1) for name, (level, module) in origins
            )
    return False

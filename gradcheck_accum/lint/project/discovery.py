"""The Python files and notebooks under the paths that a person names."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_accum.results.findings import Unreadable
from gradcheck_accum.sources.regular import read_regular

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from gradcheck_accum.settings import Patterns, Settings

SUFFIXES = (".py", ".ipynb")
USUAL_EXCLUDES = frozenset({"__pycache__", "__pypackages__", "build", "dist", "node_modules", "site-packages", "venv"})
"""Directories that do not contain a project's own source, in addition to those whose names begin with a dot."""

_LARGEST_IGNORE = 1024 * 1024
"""Bytes of a .gitignore that are read."""

_ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to lint; ``named`` if a person gave it by name."""

    path: str
    named: bool


@dataclass(frozen=True, slots=True)
class _Ignore:
    """The patterns of one .gitignore, which hold below its directory."""

    directory: str
    spec: GitIgnoreSpec

    def says(self, path: str, directory: bool) -> bool | None:
        """Whether it ignores ``path``; None if no pattern matches."""
        below = path[len(self.directory.rstrip(os.sep)) + 1 :].replace(os.sep, "/")
        return self.spec.check_file(f"{below}/" if directory else below).include


def source_files(paths: Iterable[str], settings: Settings) -> Iterator[SourceFile | Unreadable]:
    """Every file to read, once, and every path that cannot be.

    Files given by name are always there, unless the settings hold them back too. Directories are walked in order of
    name, without what git ignores, what the settings exclude, and virtual environments; links to directories are not
    followed.
    """
    seen: set[str] = set()
    for name in paths:
        try:
            if is_held_back(name, settings):
                continue
            real = os.path.realpath(name)
            if os.path.isdir(real):
                found = list(_Walk(real, settings).files(str(Path(name))))
                if not found:
                    yield Unreadable(name, "no Python files in this directory")
                for path, at in found:
                    if at not in seen:
                        seen.add(at)
                        yield SourceFile(path, named=False)
            elif os.path.exists(name):  # a pipe has no path without links
                if real not in seen:
                    seen.add(real)
                    yield SourceFile(name, named=True)
            else:
                yield Unreadable(name, "no such file or directory")
        except (OSError, ValueError) as error:
            yield Unreadable(name, getattr(error, "strerror", None) or str(error))


def is_held_back(path: str, settings: Settings) -> bool:
    """Whether a path that was given by name is excluded all the same: its names are those below the settings' root.

    What git ignores is not asked for: who passes names on (a commit hook) has them from git.
    """
    if not settings.force_exclude or not path:
        return False
    real, root = os.path.realpath(path), os.path.realpath(settings.root)
    is_directory = os.path.isdir(real)
    if settings.excludes(path, directory=is_directory):
        return True
    if settings.exclude is not None or not real.startswith(root.rstrip(os.sep) + os.sep):
        return False
    names = os.path.relpath(real, root).split(os.sep)
    directories = names if is_directory else names[:-1]
    return any(name.startswith(".") for name in names) or not USUAL_EXCLUDES.isdisjoint(directories)


_Level = Iterator["tuple[str, str] | _Level"]


class _Walk:
    """A walk below one directory, whose path without links is ``root``."""

    def __init__(self, root: str, settings: Settings) -> None:
        self._root = root
        patterns = [*([settings.exclude] if settings.exclude else []), *settings.extend_exclude]
        # Whoever names a directory wants it: what excludes the directory itself does not count below it.
        self._patterns: list[Patterns] = [p for p in patterns if not p.match(root, directory=True)]
        self._usual = settings.exclude is None
        above = _ignores_above(root)
        self._ignores = [] if _is_ignored(root, True, above) else above

    def files(self, name: str) -> Iterator[tuple[str, str]]:
        """Each file as a person would write it, and without links. Raises OSError if ``root`` cannot be read."""
        shown = "" if name == os.curdir else name
        # Not by recursion: directories can be nested more deeply than calls.
        levels = [self._level(self._root, shown, self._ignores, os.scandir(self._root))]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
            elif isinstance(found, tuple):
                yield found
            else:
                levels.append(found)

    def _level(self, real: str, shown: str, ignores: list[_Ignore], scan: Iterable[os.DirEntry[str]]) -> _Level:
        """The files in one directory, and the levels of the directories in it, in order of name."""
        entries = sorted(scan, key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        if real != self._root and names & _ENVIRONMENT_MARKS:
            return
        if ".gitignore" in names:
            ignores = [*ignores, *_ignore_of(real, os.path.join(real, ".gitignore"))]
        for entry in entries:
            path = entry.path
            try:
                directory = entry.is_dir(follow_symlinks=False)
                if not directory and not (entry.name.endswith(SUFFIXES) and entry.is_file()):
                    continue
                if self._is_excluded(entry.name, path, directory) or _is_ignored(path, directory, ignores):
                    continue
                if directory:
                    yield self._level(path, os.path.join(shown, entry.name), ignores, os.scandir(path))
                else:
                    yield os.path.join(shown, entry.name), os.path.realpath(path) if entry.is_symlink() else path
            except OSError:  # no permission, gone meanwhile, or a link that leads nowhere
                continue

    def _is_excluded(self, name: str, path: str, directory: bool) -> bool:
        if self._usual and (name.startswith(".") or (directory and name in USUAL_EXCLUDES)):
            return True
        return any(patterns.match(path, directory=directory) for patterns in self._patterns)


def _is_ignored(path: str, directory: bool, ignores: list[_Ignore]) -> bool:
    """The verdict of the nearest .gitignore with a matching pattern."""
    for ignore in reversed(ignores):
        answer = ignore.says(path, directory)
        if answer is not None:
            return answer
    return False


def _ignores_above(directory: str) -> list[_Ignore]:
    """The .gitignore files above ``directory``, up to the root of its repository, outermost first."""
    found: list[_Ignore] = []
    at = directory
    while True:
        if at != directory:
            found = [*_ignore_of(at, os.path.join(at, ".gitignore")), *found]
        if os.path.exists(os.path.join(at, ".git")):
            return [*_ignore_of(at, os.path.join(at, ".git", "info", "exclude")), *found]
        if at == os.path.dirname(at):
            return []  # in no repository
        at = os.path.dirname(at)


def _ignore_of(directory: str, file: str) -> list[_Ignore]:
    content = read_regular(file, _LARGEST_IGNORE)
    if content is None:
        return []
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8", "surrogateescape").read().split("\n")
    if not any(line.strip() and not line.startswith("#") for line in lines):
        return []
    # Costs as much as the rest of the start: imported where there is something to ignore only.
    from pathspec import GitIgnoreSpec

    try:
        return [_Ignore(directory, GitIgnoreSpec.from_lines(lines))]
    except ValueError:
        return [_Ignore(directory, GitIgnoreSpec.from_lines(filter(_is_pattern, lines)))]


def _is_pattern(line: str) -> bool:
    """Whether a line is a pattern: git ignores other lines."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True

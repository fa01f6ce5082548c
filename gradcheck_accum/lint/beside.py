"""Modules beside the linted one that its training runs on into: helpers that it calls, classes that it inherits from.

They are read, never imported, and only where they do something to gradients or make the data: as far as a loop needs
them, the nearest first, until a budget is spent. What it leaves unread is counted (`Beside.unread`) and stated. Their
lines are counted from beyond those of any file, so that all of it is one program; `Beside.place` is the way back. The
files of a project import the same few modules: each is parsed once for many of them.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gradcheck_accum import neighbours
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.gate import LARGEST_FILE
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.facts import Facts
from gradcheck_accum.location import Location
from gradcheck_accum.source_text import NotText, text_of
from gradcheck_accum.wording import message, moved

_MATTERS = re.compile(
    rb"backward\s*\(|\.\s*step\s*\(|zero_grad\s*\(|unscale_\s*\(|clip_grad\w*\s*\(|\.grad\b"  # what gradients meet
    rb"|\byield\b|DataLoader\s*\(|__len__"  # how many micro-batches there are
)
"""Is in the text of every function and class that is followed into another module."""
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_MOST_MODULES = 12
_MOST_READ = 300
"""Places that are looked at, at most of which there is nothing, or nothing that does anything to gradients."""
_FIRST_LINES = itertools.count(LARGEST_FILE, LARGEST_FILE)
"""Where the lines of each module that is read along begin: further apart than any has lines."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbour:
    """One such module; its lines count from ``first``."""

    path: str
    text: str
    facts: Facts
    first: int

    @property
    def module(self) -> syntax.Module:
        """Its syntax."""
        return self.facts.module


@dataclass(slots=True)
class Beside:
    """All such modules of the file at ``path``; ``read`` are all files looked at."""

    path: str
    neighbours: list[Neighbour] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    """What was read, or not there, as a digest or nothing: the outcome depends on it."""
    imports: dict[int, Neighbour] = field(default_factory=dict)
    """The modules that statements import names from, by the statement's identity."""
    modules: dict[str, Neighbour] = field(default_factory=dict)
    """The modules that are imported whole, by their dotted path."""
    unread: dict[str, None] = field(default_factory=dict)
    """Where modules stand, or may stand, that the budget left unread."""

    def place(self, where: Location) -> Location:
        """Where a line of the whole program really stands."""
        found = self._of(where.line)
        if found is None:
            return where
        moved = where.end_line and where.end_line - found.first + 1
        return replace(where, path=found.path, line=where.line - found.first + 1, end_line=moved)

    def text_of(self, path: str) -> str:
        """The source of one of the modules."""
        return next(n.text for n in self.neighbours if n.path == path)

    def told(self, diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with the places that it and its message really have."""
        if not self.neighbours:
            return diagnosis
        where, said = self.place(diagnosis.where), moved(diagnosis.said, self.place)
        if where.path != self.path:
            said = message(said, f" (as {os.path.basename(self.path)} runs it)")
        return replace(diagnosis, where=where, said=said)

    def _of(self, line: int) -> Neighbour | None:
        return next((n for n in self.neighbours if n.first <= line < n.first + LARGEST_FILE), None)


def look_beside(facts: Facts, path: str) -> Beside:
    """The modules that training in the file at ``path`` may run on into."""
    beside = Beside(path)
    _Search(beside).follow(facts, path)
    return beside


@dataclass(frozen=True, slots=True)
class _Import:
    """One import: ``names`` of a module by a statement, or of a whole module that is then called ``dotted``."""

    statement: syntax.Node
    level: int
    module: str
    dotted: str
    names: frozenset[str]


def _imports(facts: Facts) -> Iterator[_Import]:
    """What a module imports and then calls, or inherits from."""
    for node in facts.imports:
        for alias in node.names:
            here = alias.asname or alias.name
            members = facts.used_members.get(here)
            if isinstance(node, syntax.Import):
                if members:
                    yield _Import(node, 0, alias.name, alias.name, frozenset(members))
                continue
            name, dots = node.module or "", "." * node.level
            if here in facts.used_names:
                yield _Import(node, node.level, name, "", frozenset({alias.name}))
            if members:
                whole = f"{name}.{alias.name}" if name else alias.name
                yield _Import(node, node.level, whole, f"{dots}{name}.{alias.name}", frozenset(members))


@dataclass(slots=True)
class _Search:
    beside: Beside
    sources: dict[str, neighbours.Source | None] = field(default_factory=dict)
    known: dict[str, Neighbour | None] = field(default_factory=dict)

    def follow(self, facts: Facts, path: str) -> None:
        """Look at what the module at ``path`` imports, then at what those import, and so on."""
        self._look(facts, path)
        for neighbour in self.beside.neighbours:  # grows while it is looked through: the nearest come first
            self._look(neighbour.facts, neighbour.path)

    def _look(self, facts: Facts, path: str) -> None:
        for one in _imports(facts):
            found = self._find(one, path)
            if found is not None and one.dotted:
                self.beside.modules[one.dotted] = found
            elif found is not None:
                self.beside.imports[id(one.statement)] = found

    def _find(self, one: _Import, path: str) -> Neighbour | None:
        for file in neighbours.places(path, one.level, one.module):
            if os.path.normpath(file) == os.path.normpath(self.beside.path):
                return None
            if file not in self.sources:
                if len(self.sources) >= _MOST_READ:
                    self.beside.unread[file] = None
                    return None
                source = self.sources[file] = neighbours.read(file)
                self.beside.read[file] = neighbours.digest(source)
            source = self.sources[file]
            if source is None:
                large = neighbours.too_large(file)
                if large is not None and large.holds(_MATTERS, one.names):
                    self.beside.unread[file] = None
                continue
            if file not in self.known and source.holds(_MATTERS, one.names):
                self.known[file] = self._neighbour(file, source)
            return self.known.get(file)
        return None

    def _neighbour(self, path: str, source: neighbours.Source) -> Neighbour | None:
        others = self.beside.neighbours
        if len(others) >= _MOST_MODULES:
            self.beside.unread[path] = None
            return None
        parsed = _parsed(source)
        if parsed is None:
            return None
        found = replace(parsed, path=path if os.path.isabs(path) else os.path.relpath(path))
        others.append(found)
        return found


@functools.lru_cache(maxsize=16)
def _parsed(source: neighbours.Source) -> Neighbour | None:
    """A module, wherever it is; None for what is no Python."""
    try:
        text, first = text_of(source.content), next(_FIRST_LINES)
        return Neighbour("", text, Facts(syntax.parse(text, first=first)), first)
    except (syntax.CannotParse, syntax.NestedTooDeeply, NotText, RecursionError):
        return None

"""The modules of a project that training runs on into: helpers that it calls, classes that it inherits from.

They are read, never imported, and only where they do something to gradients or make the data: as far as a loop needs
them, the nearest first, until a budget is spent. What it leaves unread is counted (`ImportedModules.unread`) and
stated. Their lines are counted from beyond those of any file, so that all of it is one program; `ImportedModules.place`
is the way back. The files of a project import the same few modules: each is parsed once for many of them.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program import names
from gradcheck_accum.lint.program.facts import Facts
from gradcheck_accum.sources import local_imports
from gradcheck_accum.sources.decoding import NotText, text_of
from gradcheck_accum.sources.prefilter import LARGEST_FILE
from gradcheck_accum.wording import message, moved

_MATTERS = re.compile(
    rb"backward\s*\(|\.\s*step\s*\(|zero_grad\s*\(|unscale_\s*\(|clip_grad\w*\s*\(|\.grad\b"  # what gradients meet
    rb"|\bno_sync\b|require_backward_grad_sync"  # whether they are averaged
    rb"|\byield\b|DataLoader\s*\(|__len__"  # how many micro-batches there are
)
"""Is in the text of every function and class that is followed into another module."""
_BACKWARD = re.compile(rb"backward\s*\(|\b(?:update_grad|need_update)\s*=")
"""Is in the text of every function and class that runs a backward, or has one run."""
_WEIGHS = re.compile(
    rb"\*\s*(?:\w+\.)?(?:bs\b|batch_?size\b|\w+\.shape\s*\[\s*0|\w+\.size\s*\(\s*0)|reduction\s*=\s*[\"']sum"
)
"""Is in the text of what computes a loss that grows with the number of rows: whether it does, reading it shows."""
_SUMS = re.compile(rb"reduction\s*=\s*[\"']sum")
"""Is in the text of a network that computes its own loss, as a sum."""
_SCHEDULES = re.compile(rb"LambdaLR\b|\b_?LRScheduler\b")
"""Is in the text of what makes a schedule of the project's own: for how many moves, reading it shows."""
_MAKES_OPTIMIZERS = re.compile(rb"\b[A-Z]\w*Optim\w*\s*\(")
"""Is in the text of what makes an optimizer of the project's own: what it steps, reading it shows."""
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_MOST_MODULES = 12
_MOST_READ = 300
"""Places that are looked at, at most of which there is nothing, or nothing that does anything to gradients."""
_FIRST_LINES = itertools.count(LARGEST_FILE, LARGEST_FILE)
"""Where the lines of each module that is read along begin: further apart than any has lines."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedModule:
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
class ImportedModules:
    """All such modules of the file at ``path``; ``read`` are all files looked at."""

    path: str
    all: list[ImportedModule] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    """What was read, or not there, as a digest or nothing: the outcome depends on it."""
    by_name: dict[tuple[int, str], ImportedModule] = field(default_factory=dict)
    """The modules that define the names which statements import, by the statement's identity and the name."""
    too_large: set[tuple[int | str, str]] = field(default_factory=set)
    """The names, by statement or by module, of losses in modules too large to be read that may grow with the rows."""
    by_path: dict[str, ImportedModule] = field(default_factory=dict)
    """The modules that are imported whole, by their dotted path."""
    unread: dict[str, None] = field(default_factory=dict)
    """Where modules are, or may be, that the budget left unread."""

    def place(self, where: Location) -> Location:
        """The real place of a line of the whole program."""
        found = self._of(where.line)
        if found is None:
            return where
        moved = where.end_line and where.end_line - found.first + 1
        return replace(where, path=found.path, line=where.line - found.first + 1, end_line=moved)

    def text_of(self, path: str) -> str:
        """The source of one of the modules."""
        return next(n.text for n in self.all if n.path == path)

    def placed(self, diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with the places that it and its message really have."""
        if not self.all:
            return diagnosis
        where, said = self.place(diagnosis.where), moved(diagnosis.said, self.place)
        if where.path != self.path:
            said = message(said, f" (as {os.path.basename(self.path)} runs it)")
        return replace(diagnosis, where=where, said=said)

    def _of(self, line: int) -> ImportedModule | None:
        return next((n for n in self.all if n.first <= line < n.first + LARGEST_FILE), None)


def follow_imports(facts: Facts, path: str) -> ImportedModules:
    """The modules that training in the file at ``path`` may run on into."""
    found = ImportedModules(path)
    _Search(found).follow(facts, path)
    return found


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
    found: ImportedModules
    sources: dict[str, local_imports.Source | None] = field(default_factory=dict)
    known: dict[str, ImportedModule | None] = field(default_factory=dict)

    def follow(self, facts: Facts, path: str) -> None:
        """Look at what the module at ``path`` imports, then at what those import, and so on.

        Unless there is no backward in it, nor in any of what it calls or inherits from: then nothing trains in it.
        """
        if facts.calls_backward or any(self._has_backward(one, path) for one in _imports(facts)):
            self._look(facts, path)
        for module in self.found.all:  # grows while it is looked through: the nearest come first
            self._look(module.facts, module.path)

    def _has_backward(self, one: _Import, path: str) -> bool:
        """Whether there is a backward in the text of what is imported, wherever it is defined."""

        def read(file: str) -> local_imports.Source | None:
            return self._read(file) or local_imports.too_large(file)

        return local_imports.is_called(_BACKWARD, path, one.level, one.module, one.names, read)

    def _read(self, file: str) -> local_imports.Source | None:
        """A module, if it is there, is not too large and the budget allows it."""
        if file not in self.sources:
            if len(self.sources) >= _MOST_READ:
                self.found.unread[file] = None
                return None
            source = self.sources[file] = local_imports.read(file)
            self.found.read[file] = local_imports.digest(source)
        return self.sources[file]

    def _look(self, facts: Facts, path: str) -> None:
        imports = list(_imports(facts))
        for one in imports:
            # A module that one name is worth reading for gives the others too, whichever of them comes first.
            found = self._find(one, path)
            if found is not None and one.dotted:
                self.found.by_path[one.dotted] = found
        for one in imports:
            if one.dotted:
                continue
            defined = self._definition(one, path, local_imports.MOST_PASSED_ON)
            if defined is not None:
                (name,) = one.names
                self.found.by_name[id(one.statement), name] = defined

    def _definition(self, one: _Import, path: str, passed_on: int) -> ImportedModule | None:
        """The module that defines a name: the one that it is imported from, or one that this has it from."""
        found = self._find(one, path)
        if found is not None or not passed_on:
            return found
        (name,) = one.names
        for file in self._places(one, path):
            source = self.sources.get(file)
            for level, module in source.origins_of(name) if source is not None else ():
                found = self._definition(replace(one, level=level, module=module), file, passed_on - 1)
                if found is not None:
                    return found
        return None

    def _places(self, one: _Import, path: str) -> Iterator[str]:
        """The files that an import in the file at ``path`` may mean, but for that one: also those next to the script.

        Whatever a script imports finds what is next to the script, wherever it is itself.
        """
        own = os.path.normpath(path)
        yield from (file for file in local_imports.places(path, one.level, one.module) if os.path.normpath(file) != own)
        if not one.level and os.path.dirname(own) != os.path.dirname(os.path.normpath(self.found.path)):
            yield from local_imports.places(self.found.path, 0, one.module)

    def _find(self, one: _Import, path: str) -> ImportedModule | None:
        for file in self._places(one, path):
            if os.path.normpath(file) == os.path.normpath(self.found.path):
                return None
            source = self._read(file)
            if source is None:
                if file not in self.sources:
                    return None
                large = local_imports.too_large(file)
                if large is not None and _is_worth_reading(large, one.names):
                    self.found.unread[file] = None
                    key = one.dotted or id(one.statement)
                    self.found.too_large |= {(key, name) for name in one.names if _weights_losses(large, {name})}
                continue
            if file not in self.known and _is_worth_reading(source, one.names):
                self.known[file] = self._module(file, source)
            return self.known.get(file)
        return None

    def _module(self, path: str, source: local_imports.Source) -> ImportedModule | None:
        others = self.found.all
        if len(others) >= _MOST_MODULES:
            self.found.unread[path] = None
            return None
        parsed = _parsed(source)
        if parsed is None:
            return None
        found = replace(parsed, path=path if os.path.isabs(path) else os.path.relpath(path))
        others.append(found)
        return found


def _is_worth_reading(source: local_imports.Source, wanted: Collection[str]) -> bool:
    held = any(source.holds(pattern, wanted) for pattern in (_MATTERS, _SUMS, _SCHEDULES, _MAKES_OPTIMIZERS))
    return held or _weights_losses(source, wanted)


def _weights_losses(source: local_imports.Source, wanted: Collection[str]) -> bool:
    losses = [name for name in wanted if names.LOSS.fits(name)]
    return bool(losses) and source.holds(_WEIGHS, losses)


@functools.lru_cache(maxsize=16)
def _parsed(source: local_imports.Source) -> ImportedModule | None:
    """A module, wherever it is; None for what is no Python."""
    try:
        text, first = text_of(source.content), next(_FIRST_LINES)
        return ImportedModule("", text, Facts(syntax.parse(text, first=first)), first)
    except (syntax.CannotParse, syntax.NestedTooDeeply, NotText, RecursionError):
        return None

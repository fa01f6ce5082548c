"""One finding with all that a fix may start from: the ledger that shows it, and the script that it stands in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from gradcheck_accum.events import Location
from gradcheck_accum.findings import Finding
from gradcheck_accum.ledger import Ledger, Window, nominal_steps
from gradcheck_accum.lint.fixes.script import CannotEdit, Change, Script

SIMPLE = (cst.Name, cst.Attribute, cst.Integer, cst.Subscript)
"""Expressions that can be written again anywhere: they do nothing, and bind tighter than any operator."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A change that may repair a finding; whether it does is for the ledger of the changed script to say."""

    message: str
    safe: bool
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Case:
    """A finding, its evidence, and its script."""

    finding: Finding
    ledger: Ledger
    script: Script
    beside: frozenset[str] = frozenset()
    """The codes of the other findings at the same line."""

    def windows(self) -> list[Window]:
        """The windows in which something happened at the finding's place."""
        where = self.finding.where
        known = (*self.ledger.windows, *self.ledger.abandoned)
        return [w for w in known if any(event.where == where for event in w.events)]

    def account(self) -> tuple[Window, ...]:
        """The closed windows of the optimizer and store that the finding is about."""
        for window in self.windows():
            if window.step is not None:
                return self.ledger.account(window.optimizer, window.store)
        raise CannotEdit("no step")

    def steps(self) -> int:
        """K, as the ledger shows it."""
        return nominal_steps(self.account()) or 1

    def step_places(self) -> list[Location]:
        """Where the optimizer of the finding steps."""
        return list(dict.fromkeys(w.step.where for w in self.account() if w.step is not None))

    def call(self, where: Location) -> cst.Call:
        """The call that an event happened at."""
        found = self.script.find(where, cst.Call)
        if found is None:
            raise CannotEdit("not a call")
        return found

    def names_of_steps(self, at: cst.CSTNode) -> list[str]:
        """How the source names K where that name can be read at ``at`` too, names before bare numbers."""
        named: dict[str, bool] = {}
        for count in self.ledger.trace.counts:
            node = self.script.expression(count.where)
            if count.value == self.steps() and isinstance(node, SIMPLE) and is_visible(self.script, node, at):
                named.setdefault(self.script.code(node), isinstance(node, cst.Integer))
        return sorted(named, key=lambda name: named[name])


def is_visible(script: Script, node: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether the names in an expression mean the same at another place of the script."""
    functions = [script.function_of(at), *(p for p in script.parents(at) if isinstance(p, cst.FunctionDef)), None]
    own = script.function_of(node)
    if own in functions:
        return True
    roots = _roots(node)
    if roots == {"self"}:
        return script.enclosing(node, cst.ClassDef) is script.enclosing(at, cst.ClassDef)
    # What a function does not bind itself it reads from the module, as every other function can.
    return not any(_binds(own, root) for root in roots)


def _roots(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.Attribute):
        return _roots(node.value)
    if isinstance(node, cst.Name):
        return {node.value}
    return set[str]().union(*(_roots(child) for child in node.children))


def _binds(function: cst.CSTNode | None, name: str) -> bool:
    pending = list(function.children) if function else []
    while pending:
        node = pending.pop()
        target = node.name if isinstance(node, (cst.Param, cst.FunctionDef)) else getattr(node, "target", None)
        if isinstance(target, cst.CSTNode) and any(isinstance(n, cst.Name) and n.value == name for n in _nodes(target)):
            return True
        pending += node.children
    return False


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _nodes(child)

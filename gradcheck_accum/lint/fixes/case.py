"""One finding with all that a fix may start from: the ledger that shows it, and the script that it stands in."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from gradcheck_accum.findings import Finding
from gradcheck_accum.ledger import Ledger, Window, nominal_steps
from gradcheck_accum.lint.fixes.script import FUNCTIONS, LOOPS, CannotEdit, Change, Script, is_simple
from gradcheck_accum.lint.source import walk
from gradcheck_accum.location import Location
from gradcheck_accum.weights import Readings, read_weights


def is_repeatable(node: ast.expr) -> bool:
    """Whether an expression can be written again anywhere: it does nothing, and binds tighter than any operator."""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or integer(node) is not None


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
        # What follows the last step is in no window.
        events = [event for event in self.ledger.trace.events if event.where == self.finding.where]
        touched = frozenset[str]().union(*(getattr(event, "stores", ()) for event in events))
        own = (self.ledger.account(*names) for names in self.ledger.accounts() if names[1] in touched)
        account = next((windows for windows in own if windows), None)
        if account is None:
            raise CannotEdit("no step")
        return account

    def steps(self) -> int:
        """K, as the ledger shows it."""
        return nominal_steps(self.account()) or 1

    def step_places(self) -> list[Location]:
        """Where the optimizer of the finding steps."""
        return list(dict.fromkeys(w.step.where for w in self.account() if w.step is not None))

    def knows_weights(self) -> bool:
        """Whether the ledger knows what every entry of the account weighs."""
        return is_readable(read_weights(self.ledger), self.account())

    def steps_near(self, statement: ast.stmt) -> list[list[Location]]:
        """The steps that a statement may belong to: those in its own block, and else all of them."""
        places = self.step_places()
        block = self.script.block(statement)
        own = [p for p in places if self.script.block(self.script.statement(self.call(p))) is block]
        return [own, places] if own and own != places else [places]

    def call(self, where: Location) -> ast.Call:
        """The call that an event happened at."""
        found = self.script.find(where, ast.Call)
        if found is None:
            raise CannotEdit("not a call")
        return found

    def names_of_steps(self, at: ast.AST) -> list[str]:
        """How the source names K where that name can be read at ``at`` too, the likeliest first."""
        nodes = [node for node in self.places_of_steps() if is_repeatable(node)]
        return list(dict.fromkeys(self.script.code(node) for node in nodes if is_visible(self.script, node, at)))

    def places_of_steps(self) -> list[ast.expr]:
        """Where the source names K: a number that the windows are counted by, not one that merely equals it."""
        ranked: list[tuple[int, ast.expr]] = []
        for count in self.ledger.trace.counts:
            node = self.script.expression(count.where) if count.value == self.steps() else None
            rank = self._rank(node) if node is not None else None
            if node is not None and rank is not None:
                ranked.append((rank, node))
        return [node for _, node in sorted(ranked, key=lambda item: item[0])]

    def _rank(self, count: ast.expr) -> int | None:
        """How surely a number counts windows: 0 where it decides on the step, None where it decides on others."""
        script = self.script
        steps = [self.call(place) for place in self.step_places()]
        for parent in script.parents(count):
            if isinstance(parent, ast.stmt) and is_simple(parent):
                return 1
            if isinstance(parent, ast.If):
                if any(parent in script.parents(step) for step in steps):
                    return 0
                # A guard that leaves (`if (i + 1) % K: continue`) decides on all that follows, and a call of a function
                # of this file may reach the step; a log line decides on nothing.
                inside = [node for statement in parent.body for node in walk(statement)]
                leaves = any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in inside)
                return 1 if leaves or script.calls_own_function(parent.body) else None
            if isinstance(parent, LOOPS):
                # A loop that holds the backward and not the step is the window; one that holds both is a pass.
                return 0 if not any(parent in script.parents(step) for step in steps) else None
        return 1


def is_readable(readings: Readings, windows: Iterable[Window]) -> bool:
    """Whether nothing in the windows is unknown: what happened, and what each entry weighs."""
    return not any(
        window.unknown
        or any(
            weight.relative is None
            for series in readings.series_of(window)
            for weight in readings.weights(window, series)
        )
        for window in windows
    )


def integer(node: ast.expr) -> int | None:
    """The whole number that an expression is, if it is one."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def is_visible(script: Script, node: ast.AST, at: ast.AST) -> bool:
    """Whether the names in an expression mean the same at another place of the script."""
    functions = [script.function_of(at), *(p for p in script.parents(at) if isinstance(p, FUNCTIONS)), None]
    own = script.function_of(node)
    if own in functions:
        return True
    roots = _roots(node)
    if "self" in roots and script.class_of(node) is script.class_of(at):
        roots.remove("self")
    # What a function does not bind itself it reads from the module, as every other function can.
    return not any(_binds(own, root) for root in roots)


def _roots(node: ast.AST) -> set[str]:
    return {name.id for name in walk(node) if isinstance(name, ast.Name)}


def _binds(function: ast.AST | None, name: str) -> bool:
    for node in walk(function) if function else ():
        if isinstance(node, ast.Name):
            bound = None if isinstance(node.ctx, ast.Load) else node.id
        elif isinstance(node, ast.alias):
            bound = node.asname or node.name.partition(".")[0]
        else:
            bound = getattr(node, "arg" if isinstance(node, ast.arg) else "name", None)
        if bound == name:
            return True
    return False

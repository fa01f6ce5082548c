"""One finding with everything a fix is based on: the ledger that shows it, and its script."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import read_weights
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Ledger, Window
from gradcheck_accum.lint.examination.scenario import is_readable
from gradcheck_accum.lint.fixes.edits import Edits
from gradcheck_accum.lint.fixes.expressions import integer
from gradcheck_accum.lint.fixes.script import CannotEdit, Script
from gradcheck_accum.results.findings import Finding


def is_repeatable(node: cst.BaseExpression) -> bool:
    """Whether an expression can be written again anywhere: it does nothing, and binds tighter than any operator."""
    return isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)) or integer(node) is not None


@dataclass(frozen=True, slots=True)
class Repair:
    """A change that may repair a finding; whether it does is for the ledger of the changed script to say."""

    message: str
    safe: bool
    edits: Edits


@dataclass(frozen=True, slots=True)
class Case:
    """A finding, its evidence, and its script."""

    finding: Finding
    ledger: Ledger
    script: Script
    others: frozenset[str] = frozenset()
    """The codes of the other findings at the same line."""

    def edits(self) -> Edits:
        """Edits of the script, none so far."""
        return Edits(self.script)

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
        return usual_steps(self.account(), self.ledger.same) or 1

    def step_places(self) -> list[Location]:
        """Where the optimizer of the finding steps."""
        return list(dict.fromkeys(w.step.where for w in self.account() if w.step is not None))

    def knows_weights(self) -> bool:
        """Whether the ledger knows the weight of every entry of the account."""
        return is_readable(read_weights(self.ledger), self.account())

    def steps_near(self, statement: cst.BaseSmallStatement) -> list[list[Location]]:
        """The steps that a statement may belong to: those in its own block, and else all of them."""
        places = self.step_places()
        block = self.script.block(statement)
        own = [p for p in places if self.script.block(self.script.statement(self.call(p))) is block]
        return [own, places] if own and own != places else [places]

    def call(self, where: Location) -> cst.Call:
        """The call that an event happened at."""
        found = self.script.find(where, cst.Call)
        if found is None:
            raise CannotEdit("not a call")
        return found

    def names_of_steps(self, at: cst.CSTNode) -> list[cst.BaseExpression]:
        """How the source names K where that name can be read at ``at`` too, the likeliest first."""
        names: dict[str, cst.BaseExpression] = {}
        for node in self.places_of_steps():
            if is_repeatable(node) and is_visible(self.script, node, at):
                names.setdefault(self.script.code(node), node)
        return list(names.values())

    def places_of_steps(self) -> list[cst.BaseExpression]:
        """Where the source names K: a number that the windows are counted by, not one that merely equals it."""
        ranked: list[tuple[int, cst.BaseExpression]] = []
        for count in self.ledger.trace.counts:
            node = self.script.expression(count.where) if count.value == self.steps() else None
            rank = self._rank(node) if node is not None else None
            if node is not None and rank is not None:
                ranked.append((rank, node))
        return [node for _, node in sorted(ranked, key=lambda item: item[0])]

    def _rank(self, count: cst.BaseExpression) -> int | None:
        """How surely a number counts windows: 0 where it decides on the step, None where it decides on others."""
        script = self.script
        steps = [self.call(place) for place in self.step_places()]
        for parent in script.parents(count):
            if isinstance(parent, cst.BaseSmallStatement):
                return 1
            if isinstance(parent, cst.If):
                if any(parent in script.parents(step) for step in steps):
                    return 0
                # A guard that leaves (`if (i + 1) % K: continue`) decides on all that follows, and a call of a function
                # of this file may reach the step; a log line decides on nothing.
                leaves = any(isinstance(n, (cst.Continue, cst.Break, cst.Return)) for n in script.walk(parent.body))
                return 1 if leaves or script.calls_own_function(parent.body) else None
            if isinstance(parent, cst.For):
                # A loop that holds the backward and not the step is the window; one that holds both is a pass.
                return 0 if not any(parent in script.parents(step) for step in steps) else None
        return 1


def is_visible(script: Script, node: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether the names in an expression mean the same at another place of the script."""
    functions = [*(parent for parent in script.parents(at) if isinstance(parent, cst.FunctionDef)), None]
    own = script.function_of(node)
    if own is None or own in functions:
        return True
    roots = {name.value for name in script.variables(node)}
    if script.class_of(node) is script.class_of(at):
        roots.discard("self")
    # What a function does not bind itself it reads from the module, as every other function can.
    return roots.isdisjoint(script.bound(own))

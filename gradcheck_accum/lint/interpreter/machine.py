"""Runs the skeleton of a training loop: counters, boundaries and calls on gradients, with symbols for all else.

Nothing of the file is imported or executed. Small concrete numbers replace K and the loader's length, so that there are
full windows and a remainder; guards, counters and flushes are then simply executed. A number that turns out to be
needed only later (K may divide the loss before it bounds the window) restarts the run with it known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.interpreter import expressions, statements
from gradcheck_accum.lint.program.imported_modules import ImportedModule
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Broke, Continued, Exhausted, Raised, Returned
from gradcheck_accum.lint.state.state import State

_DEFINITIONS = (syntax.FunctionDef, syntax.ClassDef)
_CONSTANTS = (syntax.Import, syntax.ImportFrom, syntax.Assign, syntax.AnnAssign)


class Interpreter(State):
    """The state of a run with all that carries statements and expressions out."""

    # As methods themselves: every expression would pay for one more call.
    evaluate = expressions.evaluate
    execute = statements.execute

    def imported_name(self, node: syntax.ImportFrom, name: str) -> Any:
        """What a statement imports under ``name`` from a module that is read along, or None."""
        if (id(node), name) in self.modules.too_large:
            return v.Configured(name)
        home = self.modules.by_name.get((id(node), name))
        return None if home is None else self._names_of(home).names.get(name)

    def member_of_module(self, module: str, name: str) -> Any:
        """What a whole module that was imported and is read along defines as ``name``, or None."""
        if (module, name) in self.modules.too_large:
            return v.Configured(name)
        home = self.modules.by_path.get(module)
        return None if home is None else self._names_of(home).names.get(name)

    def _names_of(self, home: ImportedModule) -> v.Scope:
        if home.path not in self.module_scopes:
            scope = self.module_scopes[home.path] = v.Scope(names={"__name__": home.path})
            with suppress(Raised, Returned, Exhausted, Broke, Continued):
                self.execute(self._definitions(home.module), scope)
        return self.module_scopes[home.path]

    def _definitions(self, module: syntax.Module) -> list[syntax.Statement]:
        return [s for s in _at_hand(module.body) if isinstance(s, _DEFINITIONS) or not self.reach.backward(s)]

    def run_module(self, module: syntax.Module, scope: v.Scope, definitions_only: bool) -> None:
        """Carry out a module's body, or only its definitions and constants."""
        body = self._definitions(module) if definitions_only else module.body
        self.calls.frames.append(scope)
        with suppress(Raised, Returned, Exhausted, Broke, Continued):
            self.execute(body, scope)


def _at_hand(body: Iterable[syntax.Statement]) -> Iterator[syntax.Statement]:
    """The definitions and constants among statements, with those of an attempt and of what is optional."""
    for statement in body:
        if isinstance(statement, (*_DEFINITIONS, *_CONSTANTS)):
            yield statement
        elif isinstance(statement, syntax.Try):
            yield from _at_hand(statement.body)
        elif isinstance(statement, syntax.If):
            optional = (*_at_hand(statement.orelse), *_at_hand(statement.body))
            yield from (s for s in optional if not isinstance(s, (syntax.Assign, syntax.AnnAssign)))

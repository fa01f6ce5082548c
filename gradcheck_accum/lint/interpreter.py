"""Runs the skeleton of a training loop: counters, boundaries and calls on gradients, with symbols for all else.

Nothing of the file is imported or executed. Small concrete numbers stand in for K and for the loader's length, so that
there are full windows and a remainder; what guards, counters and flushes then do is simply carried out. A number that
turns out to be needed only later (K may divide the loss before it bounds the window) restarts the run with it known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from gradcheck_accum.lint import expressions, statements, syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.beside import Beside, Neighbour
from gradcheck_accum.lint.control import Broke, Continued, Exhausted, OutOfBudget, Raised, Returned
from gradcheck_accum.lint.distributed import Synchronisation
from gradcheck_accum.lint.knowledge import Knowledge
from gradcheck_accum.lint.reach import Reach
from gradcheck_accum.lint.recorder import Recorder
from gradcheck_accum.lint.skips import Place
from gradcheck_accum.lint.values import Num, Reference, Symbol
from gradcheck_accum.location import Location

_BUDGET = 150_000
_DEFINITIONS = (syntax.FunctionDef, syntax.ClassDef)
_CONSTANTS = (syntax.Import, syntax.ImportFrom, syntax.Assign, syntax.AnnAssign)


class Interpreter:
    """One run of one loop under one set of answers to the conditions that the source leaves open."""

    def __init__(
        self,
        beside: Beside,
        reach: Reach,
        knowledge: Knowledge,
        decisions: dict[str, bool],
        skip: tuple[Place, int] | None = None,
    ) -> None:
        self.recorder = Recorder(beside.path, units=reach.unwritten_number)
        self.beside = beside
        self._scopes: dict[str, v.Scope] = {}
        """The names of the modules beside the file that were imported from, by path."""
        self.reach = reach
        self.knowledge = knowledge
        self.decisions = dict(decisions)
        self.remoteness: dict[str, int] = {}
        """How far from the gradients each decision is made: 0 where it decides what happens to them."""
        self.visited: set[syntax.Node] = set()
        """The functions that were carried out."""
        self.stack: list[syntax.Node] = []
        """The functions that are being carried out."""
        self.sync = Synchronisation(mentioned=reach.mentions_ranks)
        """Which models average their gradients over the ranks."""
        self.frames: list[v.Scope] = []
        """The names of the module and of the functions that are being carried out."""
        self.collected: dict[int, tuple[list[Any], Location]] = {}
        """The lists that losses are collected in, by identity, with the place that does."""
        self.no_graphs = 0
        """How many blocks are under way in which PyTorch builds no graphs."""
        self.assigned: dict[str, Any] = {}
        """What was assigned to attributes and items of objects that nothing else is known of, by dotted name."""
        self.counted_to: dict[syntax.For, int] = {}
        """Up to which number the last pass of a loop has counted, where the source does not show from which on."""
        self.turns: dict[str, int] = {}
        """How many turns loops over an unknown range were given, by the name of that number."""
        self.scalers: set[str] = set()
        """What the source calls the grad scalers that have unscaled or stepped an optimizer."""
        self.skip = skip
        """Where a micro-batch is skipped in this run, and which one of those that come by (`lint.skips`)."""
        self.passed: dict[Place, int] = {}
        """How many micro-batches have come by the places that may skip one."""
        self.sorted_into: list[str] = []
        """The names that loops over parameters, which may sort them, have for a parameter, innermost last."""
        self.sorted_by: list[frozenset[str]] = []
        """All names that such loops give to what they run over."""
        self.sites: list[tuple[int, int]] = []
        """The places of the calls of this file's functions that are being carried out."""
        self.rates: dict[str, tuple[float, float | None]] = {}
        """The learning rates that were set by hand last, each with its share of the one before, by their optimizer."""
        self.optimizers: dict[Any, v.Optimizer] = {}
        self.models: dict[Any, v.Model] = {}
        self.engines: dict[str, v.Engine] = {}
        """DeepSpeed's engines, by name (`gradcheck_accum.lint.deepspeed`)."""
        self.hooked: set[str] = set()
        """The models that hooks on their parameters may give other gradients than backward does."""
        self.frozen: set[str] = set()
        """The models whose parameters the training loop has told to take no gradients for now."""
        self.pass_depth = 0
        """How many passes over data are under way, one inside the other."""
        self.loop_depth = 0
        """How many loops that make gradients are."""
        self.stops = 0
        """How many blocks wait for the end of an iterator."""
        self.in_boundary = False
        """Whether the condition being evaluated decides on a step."""
        self.guessed = 0
        """How many loops are under way, in no training, whose number of turns the source does not show."""
        self.grown: dict[int, list[Any]] = {}
        """The lists that have grown in such loops, by identity: their lengths are not known."""
        self.asked = False
        """Whether the condition that was evaluated last was open, so that the scenario had to answer it."""
        self.open_tests: list[tuple[syntax.Expression, v.Scope]] = []
        """Such conditions of the branches of the training loop that are under way, innermost last."""
        self.condition: syntax.If | None = None
        """The statement whose condition is being evaluated."""
        self.in_guard = False
        """Whether the condition being evaluated only decides on leaving a loop."""
        self.yielded: list[Any] | None = None
        """What the generator that is being carried out has yielded; None while none is."""
        self.accumulated = 0
        """How many micro-batches a framework that gates steps by itself has counted."""
        self.holds_back = False
        """Whether such a framework lets steps and clearings of its optimizers do nothing for now."""
        self.last_slice: tuple[Any, ...] = ()
        self.turn = 0
        """The turn of a training loop that is under way; no two have the same number."""
        self._turns = 0
        self._made: set[int] = set()
        """The turns whose random numbers were a micro-batch."""
        self.spent = 0
        self.budget = _BUDGET

    def spend(self) -> None:
        """Count one evaluation against the budget."""
        self.spent += 1
        if self.spent > self.budget:
            raise OutOfBudget

    @property
    def in_training(self) -> bool:
        """Whether a loop over data is under way, or has made gradients already."""
        return self.loop_depth > 0 or self.recorder.has_backward

    def begin_turn(self, trains: bool) -> None:
        """A loop begins another turn."""
        if trains:
            self._turns += 1
            self.turn = self._turns

    def draw(self) -> None:
        """A new micro-batch begins, which a loop or a call gives."""
        self.knowledge.note_given_data()
        self.recorder.draw()

    def draw_made(self, given: Iterable[Any]) -> None:
        """A model is given values: those that a turn has made of random numbers are its micro-batch.

        Unless data is given as well: then they are noise.
        """
        data = [value for value in given if isinstance(value, v.Data)]
        turns = [value.made for value in data if value.made is not None]
        if turns and len(turns) == len(data) and min(turns) not in self._made and self.knowledge.note_made_data():
            self._made.add(min(turns))
            self.recorder.draw()
            self.recorder.learn_units(data[0].rows)

    def condition_acts(self) -> bool:
        """Whether what is being evaluated may decide on what happens to gradients: any but an idle branch's test."""
        node = self.condition
        return node is None or self.in_boundary or self.reach.decides([*node.body, *node.orelse])

    def condition_changes_gradients(self) -> bool:
        """Whether the condition of a branch is being evaluated that decides on what happens to gradients."""
        node = self.condition
        trains = node is not None and self.in_training and self.reach.acts([*node.body, *node.orelse])
        return self.in_boundary or trains

    # As methods themselves: every expression would pay for one more call.
    evaluate = expressions.evaluate
    execute = statements.execute

    def freeze(self, sources: Iterable[str] | None, takes_gradients: Any) -> None:
        """``requires_grad`` of models' parameters was set; what is frozen before training is not followed.

        Before it, whoever freezes a model may put new layers into it.
        """
        if not self.loop_depth or sources is None:
            return
        if takes_gradients is False:
            self.frozen.update(sources)
        else:
            self.frozen.difference_update(sources)

    def note_count(self, node: syntax.Node, value: Any) -> None:
        """Note where the source names a number that the loop may count by."""
        if isinstance(value, Num) and isinstance(value.value, int) and value.value > 1 and self.in_training:
            self.recorder.counts[self.recorder.locate(node)] = value.value
            self.recorder.counted |= value.names
        if isinstance(value, Num) and (self.in_boundary or self.condition is None):
            self.recorder.relied_on |= value.names

    def note_bound(self, value: Any) -> None:
        """Note what a count is compared with where the loop decides on a step, if that is no length of the data."""
        whole = isinstance(value, Num) and isinstance(value.value, int) and value.value > 1
        if whole and self.in_boundary and not self.in_guard and not value.tags & {v.LENGTH, v.TOTAL, v.UNITS}:
            self.knowledge.note_window(value)

    def resolve(self, value: Any) -> Any:
        """A symbol's value where one has become known, or that of a setting in a module elsewhere."""
        if isinstance(value, Reference):
            return self.knowledge.bindings.get(value.path, value)
        if isinstance(value, Symbol) and value.name:
            if value.name in self.assigned:
                return self.assigned[value.name]
            if self.knowledge.as_written and value.default is not None:
                by_default = value.default
                return (
                    by_default
                    if isinstance(by_default, str)
                    else Num(by_default).known_as(value.name.rpartition(".")[2])
                )
            return self.knowledge.bindings.get(value.name, value)
        return value

    def imported_from_beside(self, node: syntax.ImportFrom, name: str) -> Any:
        """What a statement imports under ``name`` from a module that is read along, or None."""
        home = self.beside.imports.get(id(node))
        return None if home is None else self._names_of(home).names.get(name)

    def defined_beside(self, module: str, name: str) -> Any:
        """What a whole module that was imported and is read along defines as ``name``, or None."""
        home = self.beside.modules.get(module)
        return None if home is None else self._names_of(home).names.get(name)

    def _names_of(self, home: Neighbour) -> v.Scope:
        if home.path not in self._scopes:
            scope = self._scopes[home.path] = v.Scope(names={"__name__": home.path})
            with suppress(Raised, Returned, Exhausted, Broke, Continued):
                self.execute(self._definitions(home.module), scope)
        return self._scopes[home.path]

    def _definitions(self, module: syntax.Module) -> list[syntax.Statement]:
        return [s for s in _at_hand(module.body) if isinstance(s, _DEFINITIONS) or not self.reach.backward(s)]

    def run_module(self, module: syntax.Module, scope: v.Scope, definitions_only: bool) -> None:
        """Carry out a module's body, or only its definitions and constants."""
        body = self._definitions(module) if definitions_only else module.body
        self.frames.append(scope)
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

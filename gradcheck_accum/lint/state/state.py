"""The state of one run of a loop, shared by everything that executes a part of it.

`gradcheck_accum.lint.interpreter.machine` puts the two functions on it that know every kind of statement and
expression: here they are declared, so that what a statement or a call means can be written without knowing the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.imported_modules import ImportedModules
from gradcheck_accum.lint.program.reach import Reach
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import OutOfBudget
from gradcheck_accum.lint.state.knowledge import Knowledge
from gradcheck_accum.lint.state.recorder import Recorder
from gradcheck_accum.lint.state.synchronisation import Synchronisation
from gradcheck_accum.lint.state.under_way import Calls, Iterated, Loops, Made, Place, Question, Skips, Sorting, StepGate
from gradcheck_accum.lint.state.values import Num, Reference, Symbol

_BUDGET = 150_000


class State:
    """One run of one loop under one set of answers to the conditions that the source leaves open."""

    def __init__(
        self,
        modules: ImportedModules,
        reach: Reach,
        knowledge: Knowledge,
        decisions: dict[str, bool],
        skip: tuple[Place, int] | None = None,
    ) -> None:
        self.recorder = Recorder(modules.path, units=reach.unwritten_number)
        self.modules = modules
        self.reach = reach
        self.knowledge = knowledge
        self.decisions = dict(decisions)
        self.given = frozenset(decisions)
        """The questions that had their answers before the run began."""
        self.wordings: dict[str, tuple[str, str]] = {}
        """How the source says that a decision was taken: that it does not hold, and that it does."""
        self.ruled: dict[str, bool] = {}
        """The settings that are so because the program refuses to run with them otherwise: no scenario varies them."""
        self.remoteness: dict[str, int] = {}
        """How far from the gradients each decision is made: 0 where it decides what happens to them."""
        self.loops = Loops()
        self.iterated = Iterated()
        self.calls = Calls()
        self.question = Question()
        self.made = Made()
        self.gate = StepGate()
        self.skips = Skips(skip)
        self.sync = Synchronisation(mentioned=reach.mentions_ranks)
        """Which models average their gradients over the ranks."""
        self.module_scopes: dict[str, v.Scope] = {}
        """The names of the modules that were imported from, by path."""
        self.sorting: list[Sorting] = []
        """The loops over parameters that are under way, innermost last."""
        self.assigned: dict[str, Any] = {}
        """What was assigned to attributes and items of objects that nothing else is known of, by dotted name."""
        self.replaced: dict[tuple[Hashable, str], Any] = {}
        """What was assigned to attributes and items of what models returned, by the flow of that and by name."""
        self.collected: dict[int, tuple[list[Any], Location]] = {}
        """The lists that losses are collected in, by identity, with the place that does."""
        self.no_graphs = 0
        """How many blocks are under way in which PyTorch builds no graphs."""
        self.spent = 0
        """The evaluations so far."""
        self.budget = _BUDGET

    def evaluate(self, node: syntax.Expression, scope: v.Scope) -> Any:
        """The value of an expression; `UNKNOWN` or a named symbol where the source does not tell."""
        raise NotImplementedError

    def execute(self, statements: Sequence[syntax.Statement], scope: v.Scope) -> None:
        """Carry out statements in order."""
        raise NotImplementedError

    def imported_name(self, node: syntax.ImportFrom, name: str) -> Any:
        """What a statement imports under ``name`` from a module that is read along, or None."""
        raise NotImplementedError

    def member_of_module(self, module: str, name: str) -> Any:
        """What a whole module that was imported and is read along defines as ``name``, or None."""
        raise NotImplementedError

    def spend(self) -> None:
        """Count one evaluation against the budget."""
        self.spent += 1
        if self.spent > self.budget:
            raise OutOfBudget

    @property
    def in_training(self) -> bool:
        """Whether a loop over data is under way, or has made gradients already."""
        return self.loops.depth > 0 or self.recorder.has_backward

    def draw(self) -> None:
        """A new micro-batch begins, which a loop or a call gives."""
        self.knowledge.note_given_data()
        self.recorder.draw()
        self.loops.has_given = True

    def draw_made(self, given: Iterable[Any]) -> None:
        """A model is given values: those that a turn has made of random numbers are its micro-batch.

        So are those that it has got from elsewhere. Unless data is given as well: then they are noise, or settings; and
        what a turn uses first after its backward was no data of that. What it is given without a graph shows how many
        rows that has, and not those of the loss.
        """
        given = tuple(given)
        self.use(given)
        data = [value for value in given if isinstance(value, (v.Data, v.Got))]
        now = self.recorder.micro_batch
        turns = [
            (value.made if value.drawn != now else None) if isinstance(value, v.Data) else value.turn for value in data
        ]
        known = [turn for turn in turns if turn is not None]
        made = self.iterated.made
        is_new = bool(known) and len(known) == len(data) and min(known) not in made | self.loops.trained
        if is_new and self.knowledge.note_made_data():
            made.add(min(known))
            self.recorder.draw()
            if not self.no_graphs:
                self.recorder.learn_units(v.rows_in(data[0]))

    def use(self, given: Iterable[Any]) -> None:
        """A model or a loss is given values, which may be data: those that this turn has made of chance, or others."""
        for value in given:
            match value:
                case v.Data(holds=v.Holds.CONSTANTS) | Num() | str() | bool() | None:
                    continue
                case v.Tensor() if value.models:
                    continue
                case v.Data(drawn=None, made=int() as turn):
                    self.loops.used.add(turn)
                case _:
                    self.loops.used.add(None)

    def draw_chance(self) -> None:
        """A loss is differentiated in a turn of a window that is counted through.

        If it has no other data than random numbers of this turn, they are its micro-batch, whatever data others have,
        and none of those that a pass has given.
        """
        turn = self.loops.turn
        if self.loops.holds_a_window and self.loops.used == {turn} and turn not in self.iterated.made:
            self.iterated.made.add(turn)
            self.recorder.draw_apart()

    @property
    def boundary(self) -> syntax.If | None:
        """The statement whose condition is being evaluated, if that decides on a step."""
        return self.question.branch if self.question.in_boundary and not self.question.in_guard else None

    @property
    def bound_in_loops(self) -> frozenset[str]:
        """What the function that is carried out, or the module itself, binds in its loops."""
        return self.reach.bound_in_loops(self.calls.stack[-1] if self.calls.stack else None)

    def condition_acts(self) -> bool:
        """Whether what is being evaluated may decide on what happens to gradients.

        Anything may but an idle branch's test, and a statement that only shows something.
        """
        node = self.question.branch
        if node is None:
            return not self.question.only_shows
        return self.question.in_boundary or self.reach.decides([*node.body, *node.orelse])

    def condition_changes_gradients(self) -> bool:
        """Whether the condition of a branch is being evaluated that decides on what happens to gradients."""
        node = self.question.branch
        trains = node is not None and self.in_training and self.reach.acts([*node.body, *node.orelse])
        return self.question.in_boundary or trains

    def freeze(self, sources: Iterable[str] | None, takes_gradients: Any) -> None:
        """``requires_grad`` of models' parameters, or of other values, was set.

        What is frozen before training is not followed: whoever freezes a model then may put new layers into it.
        """
        if not self.loops.depth:
            return
        if sources is None:
            self.loops.has_leaves = True
            return
        if takes_gradients is False:
            self.made.frozen.update(sources)
        else:
            self.made.frozen.difference_update(sources)

    def note_count(self, node: syntax.Node, value: Any) -> None:
        """Note where the source names a number that the loop may count by."""
        if isinstance(value, Num) and isinstance(value.value, int) and value.value > 1 and self.in_training:
            self.recorder.counts[self.recorder.locate(node)] = value.value
            self.recorder.counted |= value.names
        if isinstance(value, Num) and (self.question.in_boundary or self.question.branch is None):
            self.recorder.relied_on |= value.names

    def note_bound(self, value: Any, count: Any) -> None:
        """Note what a count is compared with where the loop decides on a step, if that is no length of the data."""
        whole = isinstance(value, Num) and isinstance(value.value, int) and value.value > 1
        if whole and self.boundary is not None and not value.tags & {v.LENGTH, v.TOTAL, v.UNITS, v.ASSUMED}:
            has_come = isinstance(count, Num) and count.value == value.value and not count.tags & {v.LENGTH, v.UNITS}
            self.knowledge.note_bound(value, self.boundary, count.origins if has_come else frozenset())

    def forget(self, name: str) -> None:
        """A call gives another object of this name: it has nothing that was put into the one before."""
        beginning = f"{name}."
        for member in [one for one in self.assigned if one.startswith(beginning)]:
            del self.assigned[member]

    def resolve(self, value: Any) -> Any:
        """A symbol's value where one has become known, or that of a setting in a module elsewhere."""
        if isinstance(value, Reference):
            return self.knowledge.known(value.path) or value
        if isinstance(value, Symbol) and value.name:
            if value.name in self.assigned:
                return self.assigned[value.name]
            if self.knowledge.as_written and value.default is not None:
                default = value.default
                return default if isinstance(default, str) else value.as_number(Num(default))
            return self.knowledge.known(value.name) or value
        return value

"""The current state of a run: loops, calls, the condition being evaluated, and the objects created so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradcheck_accum.ledger.events import Listed
from gradcheck_accum.ledger.stated_names import origin_of_length
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state import values as v

Place = tuple[int, int]
"""Line and column of what may skip a micro-batch."""


@dataclass(slots=True)
class Loops:
    """The loops that are under way."""

    depth: int = 0
    """How many of them make gradients, one inside the other."""
    passes: int = 0
    """How many of them are passes over data."""
    acts: bool = False
    """Whether the innermost loop of all does anything to gradients."""
    guessed: int = 0
    """How many of them, in no training, take a number of turns that the source does not show."""
    idle: int = 0
    """How many loops next to a training have begun that do nothing to gradients and go through data of their own."""
    catching: int = 0
    """How many blocks wait for the end of an iterator."""
    turn: int = 0
    """The turn of a training loop that is under way; no two have the same number."""
    begun: int = 0
    """How many turns have begun."""
    trained: set[int] = field(default_factory=set)
    """The turns that have run a backward."""
    has_leaves: bool = False
    """Whether any turn has asked for the gradient of what is no weight."""
    has_given: bool = False
    """Whether this turn has given a micro-batch."""
    last_slice: tuple[Any, ...] = ()
    """The bounds of the data that this turn took last."""
    has_given_around: bool = False
    """Whether the turn that the innermost of them is in has given a micro-batch."""
    bound_within: frozenset[str] | None = None
    """What the innermost of them binds in its turns, as it is written; None if it is in no other, or gives data."""
    body: Sequence[syntax.Statement] = ()
    """The statements of the innermost loop that makes gradients."""
    parts: frozenset[str] = frozenset()
    """The origins of the number of parts of the data that it goes through, if it steps in each turn."""

    holds_a_window: bool = False
    """Whether the innermost of them is counted through, and is a window: it makes gradients, and no step."""
    used: set[int | None] = field(default_factory=set)
    """The turns whose random numbers models and losses were given in this turn; None for any other data."""

    def begin_turn(self, trains: bool) -> None:
        """A loop begins another turn."""
        if trains:
            self.begun += 1
            self.turn = self.begun
            self.used = set()
            self.has_given = False


@dataclass(slots=True)
class Iterated:
    """What loops have shown of what they run over."""

    counted_to: dict[syntax.For, int] = field(default_factory=dict)
    """Up to which number the last pass of a loop has counted, where the source does not show from which on."""
    turns: dict[str, int] = field(default_factory=dict)
    """How many turns loops over an unknown range were given, by the name of that number."""
    ends: dict[str, int] = field(default_factory=dict)
    """The numbers of turns that training loops over a range were given, by the name of the range's end."""
    grown: dict[int, list[Any]] = field(default_factory=dict)
    """The lists that have grown in loops whose turns are guessed, by identity: their lengths are not known."""
    made: set[int] = field(default_factory=set)
    """The turns whose random numbers were a micro-batch."""
    cuts: dict[syntax.Slice, tuple[tuple[Any, ...], int]] = field(default_factory=dict)
    """Where each slice of a list was cut last, and in which turn."""
    ended: tuple[Listed, int] | None = None
    """The list that the last loop without a step in it ran backwards over, and how many events there were before it."""
    _known: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """The lists whose length was asked for, or that a loop ran over, each with its number, by identity."""

    def origin_of_length(self, of: Any) -> str:
        """The origin of the length of a list: each list has another."""
        number, _ = self._known.setdefault(id(of), (len(self._known), of))
        return origin_of_length(str(number))


@dataclass(slots=True)
class Calls:
    """The functions that are being executed."""

    stack: list[syntax.Node] = field(default_factory=list)
    """They themselves, innermost last."""
    sites: list[tuple[int, int]] = field(default_factory=list)
    """The places of their calls, and the turns of what makes objects one after the other (`in_turn`)."""
    frames: list[v.Scope] = field(default_factory=list)
    """Their names, after those of the module."""
    entrance: syntax.Node | None = None
    """The function that was called from outside the file last."""
    visited: set[syntax.Node] = field(default_factory=set)
    """All functions executed so far."""
    called_at: syntax.Node | None = None
    """The call that controls when another module's helper steps: the helper is right whatever it is passed."""
    by: dict[syntax.Node, syntax.Call] = field(default_factory=dict)
    """The last call of each function that this file, or one that is read along, defines."""
    evaluated: bool = False
    """Whether one of them has evaluated what is trained, and does not have to again."""
    yielded: list[Any] | None = None
    """What the generator among them has yielded; None while none is carried out."""

    blocks: dict[syntax.Node, Callable[[Any], None]] = field(default_factory=dict)
    """What runs where a generator among them yields that is a context: the block of its ``with``."""

    @property
    def answers_outside(self) -> bool:
        """Whether what is returned now goes to whoever trains with this file."""
        return len(self.stack) == 1 and self.stack[0] is self.entrance

    @property
    def turn(self) -> str:
        """What tells an unknown thing of a later turn from that of the first."""
        return "".join(f" #{number + 1}" for line, number in self.sites if line < 0 < number)

    @contextmanager
    def in_turn(self, number: int) -> Iterator[None]:
        """A turn of a loop that trains nothing, or of a comprehension: what it makes is none of another's."""
        self.sites.append((-1, number))
        try:
            yield
        finally:
            self.sites.pop()


@dataclass(slots=True)
class Question:
    """The condition that is being evaluated, and the open ones around it."""

    branch: syntax.If | None = None
    """The statement whose condition it is."""
    in_boundary: bool = False
    """Whether it decides on a step."""
    steps_otherwise: bool = False
    """Whether that step is made where it does not hold: in the other branch, or in what a branch leaves out."""
    in_guard: bool = False
    """Whether it only decides on leaving a loop."""
    ends_pass: bool = False
    """Whether it only decides on leaving a pass over the data in which the loop steps."""
    only_shows: bool = False
    """Whether it is none, but in a statement that only shows something to a person."""
    was_open: bool = False
    """Whether the one that was evaluated last was open, so that the scenario had to answer it."""
    branches: list[syntax.If] = field(default_factory=list)
    """The statements of which a branch is being carried out, innermost last."""
    doubted: dict[syntax.Expression, int] = field(default_factory=dict)
    """The conditions that windows of unknown length end with, and how often each was asked."""
    open_around: list[tuple[syntax.Expression, v.Scope]] = field(default_factory=list)
    """The open conditions of the branches of the training loop that are under way, innermost last."""


@dataclass(slots=True)
class Made:
    """The objects that a program has made, and what became of them."""

    optimizers: dict[Any, v.Optimizer] = field(default_factory=dict)
    models: dict[Any, v.Model] = field(default_factory=dict)
    engines: dict[str, v.Engine] = field(default_factory=dict)
    """DeepSpeed's engines, by name (`gradcheck_accum.lint.frameworks.deepspeed`)."""
    scalers: set[str] = field(default_factory=set)
    """What the source calls the grad scalers that have unscaled or stepped an optimizer."""
    rates: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """The learning rates that were set by hand last, each with its share of the one before, by their optimizer."""
    hooked: set[str] = field(default_factory=set)
    """The models that hooks on their parameters may give other gradients than backward does."""
    frozen: set[str] = field(default_factory=set)
    """The models whose parameters the training loop has set to require no gradients for now."""


@dataclass(slots=True)
class StepGate:
    """A framework that decides by itself at which micro-batches its optimizers step."""

    counted: int = 0
    """How many micro-batches it has counted."""
    is_shut: bool = False
    """Whether it lets steps and clearings of its optimizers do nothing for now."""


class Sorting(NamedTuple):
    """A loop over parameters, which may sort them."""

    parameter: str
    """The name that it has for a parameter."""
    names: frozenset[str]
    """All names that it gives to what it runs over."""


@dataclass(slots=True)
class Skips:
    """The places that may skip a micro-batch (`gradcheck_accum.lint.interpreter.skipped_batches`)."""

    wanted: tuple[Place, int] | None = None
    """Where one is skipped in this run, and which of those that come by."""
    passed: dict[Place, int] = field(default_factory=dict)
    """How many micro-batches have come by each of them."""
    gives_up: bool = False
    """Whether what is done where one is skipped in this run gives up what the window has so far as well."""

"""What PyTorch and its frameworks train with: models, optimizers, engines, schedulers, averages, loss modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradcheck_accum.lint.state.values.definitions import Class, Instance
from gradcheck_accum.lint.state.values.parameters import reaches


@dataclass(slots=True, eq=False)
class Model:
    """A network made in this file; ``name`` tells it from others, and ``cls`` is its class if that is in the file.

    ``args`` and ``kwargs`` are what the call that made it gave to its class.
    """

    name: str
    cls: Class | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    instance: Instance | None = None
    """The object that its class's own methods are carried out on which average weights, once one has been."""
    attributes: dict[str, Any] | None = None
    """What was put into it that is no network, once one of them was asked for."""
    held: Sequence[Model] = ()
    """The networks of which it is a list, where the source shows all of them."""
    of_others: bool = False
    """Whether these have names of their own, and their weights are theirs."""
    keys: Sequence[str] = ()
    """What each of them is called in it, where it is a dictionary of networks."""

    @property
    def sources(self) -> frozenset[str]:
        """The names of the networks whose weights it has."""
        if self.of_others:
            return frozenset().union(*(model.sources for model in self.held))
        return frozenset({self.name})

    def member(self, place: int | str) -> Model | None:
        """The network at a place of the list that it is, or of that key; None where none with a name of its own is."""
        if isinstance(place, str):
            place = self.keys.index(place) if place in self.keys else len(self.held)
        return self.held[place] if self.of_others and -len(self.held) <= place < len(self.held) else None


@dataclass(slots=True, eq=False)
class Optimizer:
    """An optimizer; ``sources`` are the root names of the models whose parameters it updates, where known.

    ``engine`` is what steps and clears it, where that is not the loop. ``takes_sums`` says that its learning rate was
    divided by what a sum grows with. ``schedule`` is what every step moves, where it or its engine plans its
    rate. ``before`` and ``after`` are the hooks on its steps.
    """

    name: str
    sources: frozenset[str] | None = None
    engine: Engine | None = None
    takes_sums: bool = False
    schedule: Scheduler | None = None
    before: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)

    def may_update(self, models: frozenset[str]) -> bool:
        """Whether any of ``models``, by their names, may be one whose parameters it updates."""
        return not (self.sources and models) or any(reaches(model, own) for model in models for own in self.sources)


@dataclass(slots=True, eq=False)
class Engine:
    """DeepSpeed's engine around a model: it divides losses by ``divisor``, its accumulation steps.

    ``counted`` are the micro-batches that it was stepped after, ``pending`` the backwards since.
    """

    name: str
    divisor: Any
    optimizer: Optimizer
    counted: int = 0
    pending: int = 0

    @property
    def is_used(self) -> bool:
        """Whether it has seen any gradients yet."""
        return bool(self.counted or self.pending)


@dataclass(slots=True, eq=False)
class Scheduler:
    """A learning rate scheduler, made before the micro-batch ``since``, for ``horizon`` moves where it says.

    ``optimizer`` is whose rate it moves, None where that is not known.
    """

    name: str
    since: int
    optimizer: Optimizer | None
    horizon: Any = None


@dataclass(slots=True, eq=False)
class Average:
    """A moving average of a model's weights, of a kind that a library has; made before the micro-batch ``since``.

    ``sources`` are the root names of the models whose weights it takes in, None where they are not known.
    """

    kind: str
    name: str
    since: int
    sources: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Criterion:
    """A loss module whose reduction the source shows."""

    name: str
    reduction: str | None
    leaves_out: bool = False
    """Whether it was given the value of targets that it leaves out, or weights of them that its mean counts."""


@dataclass(frozen=True, slots=True)
class LocalGradients:
    """A context in which the gradients of models stay local if it is ``enabled``; None where that is not known.

    ``made_here`` is False for one that was not seen to be made.
    """

    sources: frozenset[str]
    enabled: bool | None
    made_here: bool = True


@dataclass(frozen=True, slots=True)
class Framework:
    """An object whose ``backward`` divides the loss by ``divisor`` and is PyTorch's own otherwise.

    ``name`` is what the file calls it, where that is all that is known of it.
    """

    divisor: Any
    name: str = ""

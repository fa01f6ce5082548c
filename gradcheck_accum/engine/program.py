"""How a loss is computed from its leaves, without the tensors in between: it can be run again on other leaves.

Programs are derived from the calls on a tape (`programs_of_losses`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name

from gradcheck_accum.engine.checkpoints import Checkpointed
from gradcheck_accum.engine.containers import Packed, leaves_of, rebuilt, tensors_in
from gradcheck_accum.engine.graph_nodes import Scaling, note_again
from gradcheck_accum.engine.left_behind import LeftBehind, listening
from gradcheck_accum.engine.lent_weights import Lent, has_weights
from gradcheck_accum.engine.memory import versions_of
from gradcheck_accum.engine.prepared_data import Preparation
from gradcheck_accum.engine.randomness import State
from gradcheck_accum.engine.repeated_rows import OneRow

Place = tuple[tuple[int, int], ...]
"""A call stack: for each frame, its code and its current instruction."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Placeholder for an argument that an earlier call on the tape returned: the call, and the index of the tensor."""

    call: int
    output: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Placeholder for an argument that did not come from the tape."""

    index: int


@dataclass
class Program:
    """How one micro-batch's loss is computed from its leaves, without the tensors in between.

    ``results`` are the losses that one backward was called on.

    ``kept`` lists, for each step, the tensors that its module leaves behind without returning them, and that the loss
    may depend on too. ``rng_states`` are the states of the generators before each step that drew from them,
    ``constants`` the strings that its calls were given, and the numbers that its tensors were computed with
    (except scalars, whose factors are known). ``written`` lists, for each step, the positions of the tensors among its
    arguments that it writes into, ``buffers`` the leaves that any step writes into. ``by_position`` says that the loop
    itself splits a batch at fixed positions, so that joined micro-batches may not be the batch that it would have made,
    ``is_one_sample`` that layers took all of it for one sample (`gradcheck_accum.engine.one_at_a_time`),
    ``may_have_samples`` that its rows may be samples all the same, ``is_of_vectors`` that its models were given vectors
    alone, ``one_by_one`` that each call of them was given one sample,
    ``learns`` that the loss is computed with weights that an inner step of the micro-batch has updated, and
    ``learns_from_itself`` that the gradient of that step is one of the very data that the loss is of,
    ``is_cached`` that a hook computes the gradients of a loss that a module returned. ``places`` are the places that
    modules were called from, ``coarsest`` is the dtype with the most rounding in any of the computation, modules
    included.
    ``prepared`` says how leaves that involve a reduction were computed, ``in_turn`` which of them after the backward
    before this one, in the micro-batch's own turn. Of the first backward (``is_first``), this is not known.
    ``repeated`` are the leaves all of whose rows were made of one, with that row. ``scaled`` holds what was noted of
    the steps that scaled a tensor by a number. ``mapped`` are the leaves whose rows the loop goes through with
    ``vmap``, a sample each: the loss is the sum of those of all samples. ``is_cut`` says that some of its data are some
    of the rows of a larger tensor, ``is_one_item`` that they are not, and that a data loader gave it as one item of its
    data set: one sample, or a batch that the data set has made.
    """

    steps: list[tuple[Callable[..., Any], Any, Any, tuple[str, torch.dtype] | None]]
    kept: list[list[LeftBehind]]
    written: list[tuple[int, ...]]
    buffers: frozenset[int]
    leaves: list[torch.Tensor]
    versions: list[int | None]
    results: list[Any]
    rng_states: list[State | None]
    constants: list[object]
    by_position: bool
    looks_up_rows: bool
    is_one_sample: bool
    is_of_vectors: bool
    one_by_one: bool
    may_have_samples: bool
    learns: bool
    learns_from_itself: bool
    is_cached: bool
    places: list[Place | None]
    coarsest: torch.dtype | None
    prepared: dict[int, Preparation] = field(default_factory=dict)
    in_turn: frozenset[int] = frozenset()
    repeated: dict[int, OneRow] = field(default_factory=dict)
    is_first: bool = False
    scaled: dict[int, Scaling] = field(default_factory=dict)
    mapped: frozenset[int] = frozenset()
    is_cut: bool = False
    is_one_item: bool = False

    @property
    def held(self) -> tuple[list[torch.Tensor], list[int | None]]:
        """Its leaves, with their versions when they were used."""
        return self.leaves, self.versions

    @property
    def random(self) -> bool:
        """Whether any step draws random numbers."""
        return any(state is not None for state in self.rng_states)

    @property
    def holds_packed(self) -> bool:
        """Whether a call was given packed sequences, whose rows are ordered by time step."""
        return any(isinstance(value, Packed) for _, *given, _ in self.steps for value in leaves_of(given))

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that it calls."""
        return [function for function, *_ in self.steps if isinstance(function, nn.Module)]

    @property
    def runs_models_once(self) -> bool:
        """Whether it calls modules with weights, and each of them once: all its losses are then of one batch."""
        models = [module for module in self.modules if has_weights(module)]
        return bool(models) and len({id(module) for module in models}) == len(models)

    def lent(self) -> set[int]:
        """The leaves that the weights passed to its modules depend on: they belong to no sample."""
        wanted = {
            weight for function, args, *_ in self.steps if isinstance(function, Lent) for weight in leaves_of(args[0])
        }
        for position in reversed(range(len(self.steps))):
            if any(isinstance(value, Produced) and value.call == position for value in wanted):
                wanted |= {v for v in leaves_of(self.steps[position][1:3]) if isinstance(v, (Leaf, Produced))}
        return {value.index for value in wanted if isinstance(value, Leaf)}

    def times(self, factor: float) -> Program:
        """The same computation, with its losses multiplied by a number."""
        first, added = len(self.steps), len(self.results)
        scaled: list[tuple[Callable[..., Any], Any, Any, None]] = [
            (torch.mul, (result, factor), {}, None) for result in self.results
        ]
        return replace(
            self,
            steps=[*self.steps, *scaled],
            kept=[*self.kept, *([] for _ in range(added))],
            written=[*self.written, *[()] * added],
            results=[Produced(first + index, 0) for index in range(added)],
            rng_states=[*self.rng_states, *[None] * added],
            places=[*self.places, *[None] * added],
        )

    def is_intact(self) -> bool:
        """Whether no leaf has been changed in place since it was recorded."""
        return versions_of(self.leaves) == self.versions

    def same_shape(self, other: Program) -> bool:
        """Whether two programs make the same calls."""
        return len(self.leaves) == len(other.leaves) and self.mapped == other.mapped and self.calls() == other.calls()

    def calls(self) -> tuple[object, ...]:
        """What is called, in order."""
        return tuple(_name(function) for function, *_ in self.steps)

    def run(
        self, leaves: list[torch.Tensor], around: Callable[[int], AbstractContextManager[None]] | None = None
    ) -> torch.Tensor:
        """The loss over ``leaves``, or the sum of several losses; step i runs inside ``around(i)``.

        Raises whatever a call raises that does not fit the leaves.
        """
        if self.mapped:
            places = tuple(0 if index in self.mapped else None for index in range(len(leaves)))
            of_each = torch.func.vmap(lambda *own: self._once(list(own), around), places)(*leaves)
            total: torch.Tensor = of_each.sum()
            return total
        return self._once(leaves, around)

    def _once(
        self, leaves: list[torch.Tensor], around: Callable[[int], AbstractContextManager[None]] | None
    ) -> torch.Tensor:
        """The loss over ``leaves``, which are those of one sample where the loop goes through samples."""
        made: list[list[torch.Tensor]] = []
        leaves = [leaf.clone() if index in self.buffers else leaf for index, leaf in enumerate(leaves)]
        for position, (function, args, kwargs, autocast) in enumerate(self.steps):
            args = _fill(args, leaves, made)
            kwargs = _fill(kwargs, leaves, made)
            cast = nullcontext() if autocast is None else torch.autocast(autocast[0], dtype=autocast[1])
            kept = self.kept[position]
            with cast, nullcontext() if around is None else around(position), listening(function, kept) as heard:
                result = function(*args, **kwargs)
            if position in self.scaled:
                note_again(result, self.scaled[position])
            made.append(list(tensors_in(result)))
            if isinstance(function, nn.Module):
                made[-1] += [one.of(function, heard) for one in kept]
            if self.written[position]:
                given = list(tensors_in((args, kwargs)))
                made[-1] += [given[written] for written in self.written[position]]
        losses = _fill(self.results, leaves, made)
        if not all(isinstance(loss, torch.Tensor) for loss in losses):
            raise TypeError("the recorded calls return no tensor")
        total: torch.Tensor = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total


def _name(function: Callable[..., Any]) -> object:
    if isinstance(function, Lent):
        return function.name
    if isinstance(function, Checkpointed):
        return getattr(function.function, "__code__", function.function)
    return function if isinstance(function, nn.Module) else (resolve_name(function) or function)


def _fill(value: Any, leaves: list[torch.Tensor], made: list[list[torch.Tensor]]) -> Any:
    def tensor(item: Any) -> Any:
        match item:
            case Produced():
                return made[item.call][item.output]
            case Leaf():
                return leaves[item.index]
        return item

    return rebuilt(value, tensor)

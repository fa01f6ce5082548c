"""What a run passes on at a step: its gradient and its state."""

from __future__ import annotations

import random
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.randomness import random_state, set_random_state
from gradcheck_accum.engine.tensors_as_data import OF_OPTIMIZERS
from gradcheck_accum.portable import NotPortable, Portable
from gradcheck_accum.verify.book.parameters import parameters_of

Gradient = list[torch.Tensor | None]


@dataclass(slots=True)
class State:
    """The gradient that was stepped on and the one before any clip, and the weights and all that follows from them.

    ``before_clip`` is None where it is not known, and where nothing was clipped (``is_unclipped``). ``moved`` is |w -
    w_0| where every run trains its own weights, ``spread`` how far two draws of random numbers move the gradient,
    where any are drawn.
    """

    used: Gradient
    before_clip: Gradient | None
    is_unclipped: bool
    weights: list[torch.Tensor]
    optimizer: list[dict[str, Any]]
    generators: tuple[Any, ...]
    moved: float | None
    spread: float | None

    def write(self, path: Path) -> None:
        """Write it to a file. Raises NotPortable where it cannot, or the optimizer keeps what is no data."""
        try:
            pieces = Portable([State], OF_OPTIMIZERS).pieces(self)
        except NotPortable as error:
            raise NotPortable(
                f"what the optimizer keeps cannot be passed to the other runs: {error} (--free: each keeps its own)"
            ) from None
        try:
            # A step is written over the one before it: room on a disk is taken once.
            with path.open("r+b" if path.exists() else "wb") as file:
                file.writelines(pieces)
                file.truncate()
        except OSError as error:
            path.unlink(missing_ok=True)  # what is there now is of no step
            raise NotPortable(
                f"a step cannot be passed to the other runs: {path.parent} cannot be written ({error.strerror}); set "
                "TMPDIR to a folder with room for the weights and the optimizer's state"
            ) from None

    @classmethod
    def read(cls, path: Path) -> State:
        """What another run of ours has written. Raises NotPortable for anything else."""
        with path.open("rb", buffering=0) as file:
            found = Portable([State], OF_OPTIMIZERS).read(file)
        if not isinstance(found, State):
            raise NotPortable("not the state of a run")
        return found

    def settle(self, optimizer: Optimizer, *, draws: bool = True) -> None:
        """Let the weights of a run's own ``optimizer`` be these, with its state, and the random numbers to come.

        ``draws`` says that these are taken over too.
        """
        own = parameters_of(optimizer)
        with torch.no_grad():
            for parameter, weight in zip(own, self.weights, strict=True):
                parameter.copy_(weight)
        for parameter, kept in zip(own, self.optimizer, strict=True):
            if kept or parameter in optimizer.state:
                optimizer.state[parameter] = kept
        if draws:
            set_generators(self.generators)


def kept_by(optimizer: Optimizer) -> list[dict[str, Any]]:
    """An optimizer's state, parameter by parameter."""
    return [dict(optimizer.state.get(parameter, {})) for parameter in parameters_of(optimizer)]


def generators() -> tuple[Any, ...]:
    """The states of all generators that a script may draw from, their words as bytes: there are many of them."""
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    of_numpy = None if drawn is None else (drawn[0], drawn[1].tobytes(), *drawn[2:])
    version, words, gauss = random.getstate()
    return random_state(), (version, array("I", words).tobytes(), gauss), of_numpy


def set_generators(states: tuple[Any, ...]) -> None:
    """Put them back."""
    numpy = sys.modules.get("numpy")
    set_random_state(states[0])
    version, words, gauss = states[1]
    random.setstate((version, tuple(array("I", words)), gauss))
    if numpy is not None and states[2] is not None:
        name, words, *others = states[2]
        numpy.random.set_state((name, numpy.frombuffer(words, dtype=numpy.uint32), *others))


def seed_generators(seed: int) -> None:
    """Start all generators alike."""
    numpy = sys.modules.get("numpy")
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)

"""What a run hands over at a step: its gradient, and what it has become."""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.randomness import random_state, set_random_state
from gradcheck_accum.verify.gradients import parameters_of

Gradient = list[torch.Tensor | None]


@dataclass(slots=True)
class State:
    """The gradient that was stepped on and the one before any clip, and the weights and all that follows from them.

    ``moved`` is |w - w_0|, ``spread`` how far two draws of random numbers move the gradient, where any are drawn.
    """

    used: Gradient
    before_clip: Gradient | None
    weights: list[torch.Tensor]
    optimizer: list[dict[str, Any]]
    generators: tuple[Any, ...]
    moved: float
    spread: float | None

    def write(self, path: Path) -> None:
        """Write it to a file."""
        with path.open("wb") as file:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump([getattr(self, name) for name in State.__slots__])

    @classmethod
    def read(cls, path: Path) -> State:
        """What another run of ours has written."""
        with path.open("rb") as file:
            return cls(*pickle.load(file))

    def settle(self, optimizer: Optimizer) -> None:
        """Let the weights of a run's own ``optimizer`` be these, with its state and the random numbers to come."""
        own = parameters_of(optimizer)
        with torch.no_grad():
            for parameter, weight in zip(own, self.weights, strict=True):
                parameter.copy_(weight)
        for parameter, kept in zip(own, self.optimizer, strict=True):
            if kept or parameter in optimizer.state:
                optimizer.state[parameter] = kept
        set_generators(self.generators)


class _Pickler(pickle.Pickler):
    """Writes tensors as their bytes: `torch.save` takes several times as long for small ones."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return NotImplemented
        flat = value.detach().cpu().contiguous().reshape(-1)
        return _tensor, (flat.view(torch.uint8).numpy(), value.dtype, tuple(value.shape), str(value.device))


def _tensor(raw: Any, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> torch.Tensor:
    return torch.from_numpy(raw).view(dtype).reshape(shape).to(device)


def kept_by(optimizer: Optimizer) -> list[dict[str, Any]]:
    """An optimizer's state, parameter by parameter."""
    return [dict(optimizer.state.get(parameter, {})) for parameter in parameters_of(optimizer)]


def generators() -> tuple[Any, ...]:
    """The states of all generators that a script may draw from."""
    numpy = sys.modules.get("numpy")
    return random_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def set_generators(states: tuple[Any, ...]) -> None:
    """Put them back."""
    numpy = sys.modules.get("numpy")
    set_random_state(states[0])
    random.setstate(states[1])
    if numpy is not None and states[2] is not None:
        numpy.random.set_state(states[2])


def seed_generators(seed: int) -> None:
    """Start all generators alike."""
    numpy = sys.modules.get("numpy")
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)

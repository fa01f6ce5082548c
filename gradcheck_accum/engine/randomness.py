"""The random numbers of a large batch: those that the loop drew for its micro-batches, each for its own rows.

A dropout mask depends on the state of the generator and on the shape. A large batch that drew its own masks could not
be compared with the loop. So each random operation runs separately for every micro-batch's rows, from the generator
state that the loop had there, and the parts are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

State = tuple[torch.Tensor, ...]
"""The states of the generators: the CPU's, and those of the CUDA devices once they are initialized."""


class NotByRows(Exception):
    """Random numbers were drawn that do not belong to rows, or without a known generator state."""


def random_state() -> State:
    """The state of every generator that a loop may use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.get_rng_state(), *torch.cuda.get_rng_state_all()
    return (torch.get_rng_state(),)


def set_random_state(state: State) -> None:
    """Restore the generators to ``state``."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(list(state[1:]))


def same_state(left: State, right: State) -> bool:
    """Whether nothing was drawn between two states."""
    # CUDA generators that were initialized in between had not been used before.
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=False))


class ByRows(TorchDispatchMode):
    """Draws for the rows of several micro-batches, ``rows`` of each, along the dimension that they share."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows
        self._states: list[State] | None = None

    def starting(self, states: list[State] | None) -> AbstractContextManager[None]:
        """Inside the block, the micro-batches' generators continue from ``states``; None if nothing may be drawn."""
        return _Starting(self, states)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if self._states is None:
            raise NotByRows("random numbers are drawn where they cannot be reproduced row by row")
        if isinstance(args[0], torch.Tensor):
            return self._filled(func, args, kwargs) if func._schema.is_mutable else self._mapped(func, args, kwargs)
        return self._made(func, args, kwargs)

    def _filled(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        target: torch.Tensor = args[0]
        shares = self._shares(target.shape)
        parts = [_empty_alone(part) for part in torch.split(target, shares[1], shares[0])]
        self._each(lambda part: func(part, *args[1:], **kwargs), parts)
        return target.copy_(torch.cat(parts, shares[0]))

    def _mapped(self, func: Any, args: Any, kwargs: Any) -> Any:
        shares = self._shares(args[0].shape)
        size = args[0].shape[shares[0]]
        own = [
            [_alone(torch.split(a, shares[1], shares[0])[j]) if _spans(a, shares[0], size) else a for a in args]
            for j in range(len(self._rows))
        ]
        results = self._each(lambda given: func(*given, **kwargs), own)
        if isinstance(results[0], torch.Tensor):
            return torch.cat(results, shares[0])
        return tuple(torch.cat(parts, shares[0]) for parts in zip(*results, strict=True))

    def _made(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        at = next((i for i, a in enumerate(args) if isinstance(a, (list, torch.Size))), None)
        if at is None:
            raise NotByRows("random numbers are drawn that do not belong to individual rows")
        axis, sizes = self._shares(args[at])
        shapes = [[size if i == axis else n for i, n in enumerate(args[at])] for size in sizes]
        return torch.cat(self._each(lambda s: func(*args[:at], s, *args[at + 1 :], **kwargs), shapes), axis)

    def _each(self, draw: Any, parts: Sequence[Any]) -> list[Any]:
        states = self._states or []
        results = []
        for position, part in enumerate(parts):
            set_random_state(states[position])
            results.append(draw(part))
            states[position] = random_state()
        return results

    def _shares(self, shape: Sequence[int]) -> tuple[int, list[int]]:
        """The dimension that holds the rows, and the size of each micro-batch's part of it."""
        total = sum(self._rows)
        # Some layers transpose their data to (time, rows, features), whatever they were given.
        axes = [axis for axis in (0, 1) if axis < len(shape) and shape[axis] and shape[axis] % total == 0]
        if len(axes) != 1 and not (axes and shape[0] == total):
            raise NotByRows("random numbers are drawn that do not belong to individual rows")
        return axes[0], [shape[axes[0]] // total * own for own in self._rows]


def _empty_alone(part: torch.Tensor) -> torch.Tensor:
    """An empty tensor for a part, with the layout of a separate tensor: draws fill memory in order, not by index."""
    order = sorted(range(part.dim()), key=lambda axis: part.stride(axis), reverse=True)
    room = torch.empty([part.shape[axis] for axis in order], dtype=part.dtype, device=part.device)
    return room.permute([order.index(axis) for axis in range(part.dim())])


def _alone(part: torch.Tensor) -> torch.Tensor:
    """A part of a tensor, with the layout of a separate tensor."""
    return _empty_alone(part).copy_(part)


def _spans(value: Any, axis: int, size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > axis and value.shape[axis] == size


class _Starting(AbstractContextManager[None]):
    def __init__(self, mode: ByRows, states: list[State] | None) -> None:
        self._mode, self._states = mode, states

    def __enter__(self) -> None:
        self._mode._states = self._states

    def __exit__(self, *error: object) -> None:
        self._mode._states = None

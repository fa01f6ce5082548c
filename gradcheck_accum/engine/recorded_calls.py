"""A call that a tape recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from gradcheck_accum.engine.containers import leaves_of, tensors_in
from gradcheck_accum.engine.copied_models import Copied, CopyOfModel
from gradcheck_accum.engine.lent_weights import Lent
from gradcheck_accum.engine.memory import Region, memory_of, versions_of
from gradcheck_accum.engine.program import Place
from gradcheck_accum.engine.randomness import State

BY_ROW_NUMBER = {
    "index_add",
    "index_copy",
    "index_fill",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "segment_reduce",
}
"""Calls whose index usually consists of rows of the batch itself (the nodes of graphs)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Applies an autograd function: a recorded call of it has no name among PyTorch's own functions."""

    function: type[Function]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self.function.apply(*args, **kwargs)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Call:
    """One recorded call, with its arguments and the tensors that it returned.

    ``place`` is where in the code a module was called from, the same in every iteration of a loop. ``written`` are the
    positions of the tensors among its arguments that it wrote into, and ``before`` the earlier contents of those from
    outside the tape. ``versions`` are those of ``made`` right after the call. ``is_followed`` says that running it
    again repeats all of its effects, ``looks_up_rows`` that a module indexed rows with integers that it was given.
    ``of_one_sample`` are the layers in a module that were called with one sample alone, once for each call, and
    ``of_vectors`` says that the module and all linear layers in it were given vectors. ``heard`` is what submodules
    with forward hooks returned, in order. ``copied`` is set where a module was a copy of watched weights.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor]
    rng_state: State | None = None
    autocast: tuple[str, torch.dtype] | None = None
    place: Place | None = None
    written: tuple[int, ...] = ()
    before: tuple[torch.Tensor, torch.Tensor] | None = None
    is_followed: bool = True
    looks_up_rows: bool = False
    of_one_sample: tuple[int, ...] = ()
    of_vectors: bool = False
    heard: tuple[weakref.ref[torch.Tensor], ...] = ()
    versions: list[int | None] = field(default_factory=list)
    copied: CopyOfModel | None = None

    def __post_init__(self) -> None:
        self.versions = versions_of(self.made)

    @property
    def given(self) -> list[torch.Tensor]:
        """The tensors among its arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    @property
    def changed(self) -> list[torch.Tensor]:
        """The tensors among its arguments that it wrote into."""
        given = self.given if self.written else []
        return [given[position] for position in self.written]

    @property
    def made(self) -> list[torch.Tensor]:
        """The tensors that it returned, and those that it wrote into."""
        return [*self.outputs, *self.changed]


def with_sources(call: Call) -> Call:
    """A call of a copy as one that uses the weights which it stands for; any other call as it is."""
    copied, function = call.copied, call.function
    if copied is None or not isinstance(function, nn.Module):
        return call
    weights = {name: pair.source for name, pair in copied.pairs.items()}
    is_lent = isinstance(function, Lent)
    module = function.module if isinstance(function, Lent) else function
    given = ({**call.args[0], **weights}, *call.args[1:]) if is_lent else (weights, *call.args)
    # What wrote into the arguments is found by their positions, which have changed.
    followed = copied.is_as_it_was and not call.written
    made = replace(call, function=Copied(module, copied), args=given, is_followed=followed)
    made.versions = call.versions
    return made


def about_to_be_filled(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The buffer that a call may write results with a graph into, and a copy of its contents; None if there is none.

    It is the base of the call's first tensor, if that has no graph yet and the values to be written have one.
    """
    if not given or given[0].requires_grad or not any(tensor.requires_grad for tensor in given[1:]):
        return None
    buffer = given[0] if given[0]._base is None else given[0]._base
    return buffer, buffer.detach().clone()


def parts_rows(call: Call) -> bool:
    """Whether a call splits its tensor along the first dimension, at fixed positions."""
    if isinstance(call.function, Region):
        return not call.function.every_row
    name = getattr(call.function, "__name__", "")
    if name in ("index_put", "index_put_"):
        first = call.args[1][0] if call.args[1] else None
        return first is not None and first.dtype is not torch.bool
    if name in ("__getitem__", "__setitem__"):
        index = call.args[1][0] if isinstance(call.args[1], tuple) and call.args[1] else call.args[1]
        if isinstance(index, torch.Tensor):
            return _is_numbers(index)
        return isinstance(index, int) or (isinstance(index, slice) and index != slice(None))
    if name.rstrip("_") in BY_ROW_NUMBER:
        return True
    if name not in ("chunk", "split", "tensor_split", "unbind", "narrow", "select"):
        return False
    at = {"unbind": 1, "narrow": 1, "select": 1}.get(name, 2)
    axis = call.kwargs.get("dim", call.args[at] if len(call.args) > at else 0)
    return isinstance(axis, int) and axis % max(call.args[0].dim(), 1) == 0


def index_of_rows(args: Sequence[Any]) -> object:
    """The index by which a call with a dimension argument looks up rows; None if it is along another dimension."""
    return args[2] if len(args) > 2 and args[1] in (0, -args[0].dim()) else None


def memory_of_numbers(value: object) -> int | None:
    """The memory of an integer tensor; None for anything else."""
    return memory_of(value) if isinstance(value, torch.Tensor) and _is_numbers(value) else None


def _is_numbers(index: torch.Tensor) -> bool:
    return not index.is_floating_point() and index.dtype is not torch.bool


def constants_of(call: Call) -> list[object]:
    """The arguments, other than tensors, that define a call: strings, and numbers unless it returned only numbers."""
    found: list[object] = [v for v in leaves_of((call.args, call.kwargs)) if isinstance(v, (bool, int, float, str))]
    return found if any(output.dim() for output in call.made) else [c for c in found if isinstance(c, str)]

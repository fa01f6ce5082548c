"""Rows that a loop takes out of what a model gave for a batch, one after the other, each with data of its own.

They are samples with a loss each (an image and its boxes), if they are compared with nothing that another row has too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gradcheck_accum.engine.containers import leaves_of
from gradcheck_accum.engine.lent_weights import has_weights
from gradcheck_accum.engine.program import Leaf, Produced, Program

_ALL = -1
"""The row of a step that gives all of them."""


def rows_in_turn(program: Program) -> int:
    """How many rows a loop takes one by one, each with data of its own, and then puts together again; 0 for none."""
    of_models = _made_by_models(program)
    taken = {step: row for step, row in _takes(program) if of_models[step]}
    rows_of: list[frozenset[int]] = []
    data: dict[int, set[int]] = {}
    for step, (function, *given, _) in enumerate(program.steps):
        values = [*leaves_of(given)]
        made = [value for value in values if isinstance(value, Produced)]
        own = frozenset[int]().union(*(_rows(value, taken, rows_of) for value in made))
        if step in taken and own:
            # What is taken out of a row is none of the batch's.
            return 0
        rows_of.append(own)
        held = {value.index for value in values if isinstance(value, Leaf) and _is_data(program.leaves[value.index])}
        if len(own) > 1 and (held or isinstance(function, nn.Module)):
            return 0
        for row in own:
            data.setdefault(row, set()).update(held)
    every = [leaf for held in data.values() for leaf in held]
    is_apart = all(data.values()) and len(every) == len({*every})
    return len(data) if is_apart and len(data) > 1 and sorted(data) == list(range(len(data))) else 0


def _takes(program: Program) -> Iterator[tuple[int, int]]:
    """The steps that take rows out of what another gave: one, or all of them, apart."""
    for step, (function, args, kwargs, _) in enumerate(program.steps):
        name = getattr(function, "__name__", "")
        if not args or not isinstance(args[0], Produced):
            continue
        if name == "__getitem__" and type(args[1]) is int and args[1] >= 0:
            yield step, args[1]
        elif name == "unbind" and (*args[1:], *kwargs.values()) in ((), (0,)):
            yield step, _ALL


def _rows(value: Produced, taken: dict[int, int], rows_of: list[frozenset[int]]) -> frozenset[int]:
    row = taken.get(value.call)
    if row is None:
        return rows_of[value.call]
    return frozenset({value.output if row == _ALL else row})


def _made_by_models(program: Program) -> list[bool]:
    """For each step whether it is a call of a model, or is given what one has made."""
    found: list[bool] = []
    for function, *given, _ in program.steps:
        values = leaves_of(given)
        found.append(has_weights(function) or any(isinstance(v, Produced) and found[v.call] for v in values))
    return found


def _is_data(leaf: torch.Tensor) -> bool:
    return bool(leaf.dim()) and not leaf.requires_grad

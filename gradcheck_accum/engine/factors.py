"""Numbers that a loss is multiplied or divided by, and that a tensor holds: factors, as Python's own numbers are.

A loss is a multiple of what is left without them, whatever that is. So the large batch is run with those of its first
micro-batch, and which ones it has is read from its graph. A number that anything else is computed with is data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.containers import leaves_of
from gradcheck_accum.engine.program import Leaf, Produced, Program
from gradcheck_accum.engine.scalings import DIVIDING, RETURNING

_ADDS = frozenset({"add", "sub", "subtract", "neg", "negative", "__add__", "__radd__", "__sub__", "__neg__"})


def factors_in(program: Program) -> set[int]:
    """The leaves that are numbers which the losses of a program are multiplied or divided by, and used nowhere else."""
    users: dict[int, set[int]] = {}
    for position, (_, *given, _) in enumerate(program.steps):
        for value in leaves_of(given[:2]):
            if isinstance(value, Produced):
                users.setdefault(value.call, set()).add(position)
    last = {result.call for result in program.results if isinstance(result, Produced)}
    passing, found, elsewhere = set[int](), set[int](), set[int]()
    for position in reversed(range(len(program.steps))):
        own = users.get(position, set())
        if (own or position in last) and own <= passing and _is_linear(program, position):
            passing.add(position)
    for position, (function, *given, _) in enumerate(program.steps):
        is_factor = position in passing and _name(function) in RETURNING
        held = {value.index for value in leaves_of(given[:2]) if isinstance(value, Leaf)}
        (found if is_factor else elsewhere).update(held)
    return found - elsewhere


def _is_linear(program: Program, position: int) -> bool:
    """Whether a step adds up what earlier steps returned, or returns a multiple of it."""
    function, args, kwargs, _ = program.steps[position]
    if kwargs or program.written[position]:
        return False
    name = _name(function)
    if name in _ADDS:
        return True
    made = [isinstance(value, Produced) for value in args]
    if name not in RETURNING or len(args) != 2 or sum(made) != 1 or (name in DIVIDING and not made[0]):
        return False
    return _is_number(program, args[made.index(False)])


def _is_number(program: Program, value: Any) -> bool:
    if not isinstance(value, Leaf):
        return isinstance(value, (int, float))
    leaf: torch.Tensor = program.leaves[value.index]
    return not leaf.dim() and not leaf.requires_grad and not isinstance(leaf, nn.Parameter)


def _name(function: Any) -> str:
    return getattr(function, "__name__", "")

"""A modified copy of a micro-batch, of equal length, which can be joined with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from gradcheck_accum.engine.memory import versions_of
from gradcheck_accum.engine.program import Program


def rolled(program: Program, data: Sequence[int], inputs: Collection[int]) -> Program | None:
    """A micro-batch of other data: floats averaged with their neighbors, integers replaced by them.

    Masks are kept, and so are vectors, but for the flat targets of a single row, one for each of its steps, that are
    none of the ``inputs`` of models: equal ones would be taken for a constant. None if nothing changes.
    """
    leaves = list(program.leaves)
    single = {leaf.shape[1] for leaf in (leaves[i] for i in data) if leaf.dim() > 1 and len(leaf) == 1}
    for i in data:
        leaf = leaves[i].detach()
        is_flat = leaf.dim() == 1 and len(leaf) in single and i not in inputs
        if (leaf.dim() < 2 and not is_flat) or leaf.dtype is torch.bool or _is_mask(leaf):
            continue
        other = (leaf + leaf.roll(1, -1)) / 2 if is_float(leaf) else leaf.roll(1, min(1, leaf.dim() - 1))
        leaves[i] = other.requires_grad_(leaves[i].requires_grad)
    if all(a is b for a, b in zip(leaves, program.leaves, strict=True)):
        return None
    return with_own(replace(program, leaves=leaves), data)


def with_own(program: Program, data: Sequence[int]) -> Program:
    """The same program with its own copies of data: a tensor that two programs share would not be joined."""
    leaves = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad) if i in data else leaf
        for i, leaf in enumerate(program.leaves)
    ]
    return replace(program, leaves=leaves, versions=versions_of(leaves))


def without_draws(program: Program) -> Program:
    """The same program, which draws whatever random numbers come next."""
    return replace(program, rng_states=[None] * len(program.rng_states))


def _is_mask(leaf: torch.Tensor) -> bool:
    return bool(((leaf == 0) | (leaf == 1)).all())


def is_float(leaf: torch.Tensor) -> bool:
    """Whether data is made of numbers that can be averaged, not of classes or places."""
    return leaf.is_floating_point() or leaf.is_complex()

"""Whether a micro-batch is one sample: a bag, a graph, a set, an episode, a sentence.

A sample is what has a target of its own. If every term of a loss reduces one row, and is compared with a target of one
row, a micro-batch is one sample, however many rows its inputs have: these are its parts, and may depend on each other.
A large batch of such samples is their mean or sum, and has no pair of samples that one micro-batch holds.

The target must be data that the micro-batch alone has. A number that was reduced from several rows (the mean of their
targets), a constant, or the same tensor in every micro-batch is no sample's target, but may be what a whole batch is
compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.samples import inputs_of
from gradcheck_accum.ledger.events import Reduction, Term


def has_one_target(program: Program, others: Sequence[Program], terms: Sequence[Term]) -> bool | None:
    """Whether a micro-batch is one sample, given the ``others`` of its window and the ``terms`` of its loss.

    None where all targets of the window are equal, by chance or because every micro-batch makes the same constant.
    """
    of_data = [term for term in terms if term.reduction is not Reduction.NONE]
    if not of_data or any(term.rows != 1 or term.units is None for term in of_data):
        return False
    apart = [other for other in others if other is not program]
    inputs = inputs_of(program)
    targets = {i for i in range(len(program.leaves)) if i not in inputs and i not in program.prepared}
    rows = [i for i in _data_among(targets, program) if program.leaves[i].shape[:1] in ((), (1,))]
    of_others = {i: [leaf for other in apart for leaf in _counterparts(i, program, other)] for i in rows}
    own = [i for i in rows if any(leaf is not program.leaves[i] for leaf in of_others[i])]
    if not own or not _data_among(inputs, program):
        return False
    return True if any(_differs(program.leaves[i], of_others[i]) for i in own) else None


def is_without_samples_dimension(programs: Sequence[Program]) -> bool:
    """Whether the data that a model was given has no dimension for samples: none of size one, in a micro-batch of one.

    Joined along another one, micro-batches are no large batch: a set of twice as many elements is not two sets.
    """
    return any(
        all(1 not in program.leaves[i].shape[:2] for i in _data_among(inputs_of(program), program))
        for program in programs
    )


def may_write_its_size(program: Program) -> bool:
    """Whether a call was given a number that may be how many samples its batch has: one."""
    return any(type(constant) is int and constant == 1 for constant in program.constants)


def _counterparts(position: int, program: Program, other: Program) -> list[torch.Tensor]:
    """What another micro-batch has in the place of a target, or may have if it holds another number of samples."""
    if program.same_shape(other):
        return [other.leaves[position]]
    leaf, inputs = program.leaves[position], inputs_of(other)
    targets = {i for i in range(len(other.leaves)) if i not in inputs and i not in other.prepared}
    every = [other.leaves[i] for i in _data_among(targets, other)]
    return [own for own in every if own.dtype == leaf.dtype and own.dim() and own.shape[1:] == leaf.shape[1:]]


def _data_among(leaves: set[int], program: Program) -> list[int]:
    return [i for i in sorted(leaves) if not isinstance(program.leaves[i], nn.Parameter)]


def _differs(leaf: torch.Tensor, of_others: Sequence[torch.Tensor]) -> bool:
    return any(other.shape != leaf.shape or not torch.equal(other, leaf) for other in of_others)

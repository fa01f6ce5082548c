"""Whether a micro-batch is one sample: a bag, a graph, a set, an episode, a sentence.

A sample is what has a target of its own. If every term of a loss reduces one row, and is compared with a target of one
row, a micro-batch is one sample, however many rows its inputs have: these are its parts, and may depend on each other.
A large batch of such samples is their mean or sum, and has no pair of samples that one micro-batch holds. A term that
is computed from single numbers, ``(score - target) ** 2``, reduces one row if there is no other target: the root of a
mean over several rows is a number, too.

Derivatives of that number by the rows of its data (forces, a score) are the sample's too: where a loss uses one number
and its derivatives, and nothing else of what a model makes of these rows, targets of the derivatives have as many rows
as the data, and the number has its own.

So are rows of which each has that same target: a label that is repeated for the tiles of a picture is no tile's own.

The target must be data that the micro-batch alone has. A constant, or the same tensor in every micro-batch, is no
sample's target, but may be what a whole batch is compared with. So may a number that the loop reduced from several
rows in the micro-batch's own turn (the mean of their targets); what was computed ahead is data. Where every micro-batch
has equally many rows, though, and the number was reduced ahead from as many that were taken out of a larger tensor,
which no model was given, it may be the mean of their targets all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gradcheck_accum.engine.containers import leaves_of
from gradcheck_accum.engine.lent_weights import has_weights
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.program import Leaf, Produced, Program
from gradcheck_accum.engine.samples import inputs_of
from gradcheck_accum.ledger.events import Reduction, Term
from gradcheck_accum.ledger.same_number import Same

_same = Same()


def has_one_target(program: Program, others: Sequence[Program], reading: LossReading) -> bool | None:
    """Whether a micro-batch is one sample, given the ``others`` of its window and how its loss is read.

    None where all targets of the window are equal, by chance or because every micro-batch makes the same constant, and
    where they may have been computed in the turns of the run's first micro-batches.
    """
    of_data = [term for term in reading.terms if term.reduction is not Reduction.NONE]
    of_numbers = [term for term in of_data if reading.is_of_numbers(term)]
    by = differentiated_by(program)
    of_rows = [term for term in of_data if term not in of_numbers and (term.rows != 1 or term.units is None)]
    parted = bool(by) or len(of_rows) <= _repeated_targets(program)
    if len(of_rows) == len(of_data) or (of_rows and not parted) or any(term.units is None for term in of_rows):
        return False
    apart = [other for other in others if other is not program]
    inputs = inputs_of(program)
    shapes = {program.leaves[i].shape for i in by}
    targets = [i for i in _targets(program) if program.leaves[i].shape not in shapes]
    rows = [i for i in targets if _is_one_row(program.leaves[i])]
    if of_numbers:
        # What is computed from a mean over rows is a number, too: these rows have targets.
        rows = [i for i in rows if not any(_is_factor(program.leaves[i], term) for term in of_numbers)]
        rows = rows if all(_is_one_row(program.leaves[i]) for i in targets) else []
    if any(_is_one_row(other.leaves[i]) for other in apart for i in _computed(other)):
        rows = [i for i in rows if i not in program.prepared]
    of_others = {i: [leaf for other in apart for leaf in _counterparts(i, program, other)] for i in rows}
    own = [i for i in rows if any(leaf is not program.leaves[i] for leaf in of_others[i])]
    if not own or not _data_among(inputs, program):
        return False
    if any(one.is_first for one in (program, *apart)):
        own = [i for i in own if i not in program.prepared]
    return True if any(_differs(program.leaves[i], of_others[i]) for i in own) else None


def differentiated_by(program: Program) -> set[int]:
    """The data by which a program differentiates one number, if its loss uses that number and its derivatives alone.

    Empty if it uses anything else that was computed with weights or from that data.
    """
    numbers, found, derivatives = set[Produced](), set[int](), set[int]()
    for position, (function, args, kwargs, _) in enumerate(program.steps):
        weighted = any(value is not None for value in leaves_of(kwargs.get("grad_outputs")))
        if getattr(function, "__name__", "") != "grad" or len(args) != 2 or weighted:
            continue
        of, by = [*leaves_of(args[0])], [*leaves_of(args[1])]
        if len(of) == 1 and isinstance(of[0], Produced) and all(isinstance(value, Leaf) for value in by):
            numbers.add(of[0])
            found |= {value.index for value in by}
            derivatives.add(position)
    if len(numbers) != 1 or any(isinstance(program.leaves[i], nn.Parameter) for i in found):
        return set()
    data, pending, seen = inputs_of(program) | found, [*leaves_of(program.results)], set[object]()
    while pending:
        value = pending.pop()
        if isinstance(value, Leaf) and (value.index in data or isinstance(program.leaves[value.index], nn.Parameter)):
            return set()
        if not isinstance(value, Produced) or value in seen or value in numbers or value.call in derivatives:
            continue
        seen.add(value)
        function, args, kwargs, _ = program.steps[value.call]
        if has_weights(function):
            return set()
        pending += leaves_of((args, kwargs))
    return found


def is_of_derivatives(program: Program) -> bool:
    """Whether a micro-batch's rows may be parts of one sample, as its loss uses one number and its derivatives alone.

    They are not if a number was reduced in the micro-batch's own turn: from their targets, say.
    """
    return bool(differentiated_by(program)) and not any(_is_one_row(program.leaves[i]) for i in _computed(program))


def may_be_of_a_batch(program: Program, others: Sequence[Program]) -> bool:
    """Whether the target of what `has_one_target` takes for one sample may be reduced from the targets of its rows."""
    every = [program, *(other for other in others if other is not program)]
    rows = {frozenset(len(leaf) for leaf in _given(own) if leaf.dim()) for own in every}
    return len(rows) == 1 and all(_is_reduced_from_others(own) for own in every)


def _is_reduced_from_others(program: Program) -> bool:
    """Whether a target was reduced from as many rows of a larger tensor as a model was given, and not from these."""
    given = _given(program)
    memories, rows = {leaf.data_ptr() for leaf in given}, {len(leaf) for leaf in given if leaf.dim()}
    prepared = [how for i in _targets(program) if (how := program.prepared.get(i)) is not None]
    apart = [how.raw for how in prepared if memories.isdisjoint(raw.data_ptr() for raw in how.raw)]
    return any(raw.dim() and len(raw) in rows and _is_taken_out(raw) for own in apart for raw in own)


def _is_taken_out(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an item, or some of the rows, of a larger one; a column of its rows is not."""
    whole = tensor._base
    return whole is not None and tensor.is_contiguous() and tensor.numel() < whole.numel()


def _given(program: Program) -> list[torch.Tensor]:
    return [program.leaves[i] for i in _data_among(inputs_of(program), program)]


def _targets(program: Program) -> list[int]:
    """The data of a loss that no model was given, and that was not computed in the micro-batch's own turn."""
    apart = inputs_of(program) | _computed(program)
    return _data_among({i for i in range(len(program.leaves)) if i not in apart}, program)


def _computed(program: Program) -> set[int]:
    """What is known to have been computed in the micro-batch's own turn by a reduction, and given to no model."""
    return set() if program.is_first else {*program.in_turn} - inputs_of(program)


def _repeated_targets(program: Program) -> int:
    """How many targets are another one, of one row, repeated for a sample's parts; 0 if a target has other rows."""
    targets = _targets(program)
    single = {program.leaves[i].data_ptr() for i in targets if _is_one_row(program.leaves[i])}
    several = [program.repeated.get(i) for i in targets if not _is_one_row(program.leaves[i])]
    return len(several) if all(row is not None and row.place in single for row in several) else 0


def _is_one_row(leaf: torch.Tensor) -> bool:
    return leaf.shape[:1] in ((), (1,))


def _is_factor(leaf: torch.Tensor, term: Term) -> bool:
    """Whether a number may be a weight of a loss: it is no target then."""
    values = [leaf.item()] if leaf.numel() == 1 else []
    return any(
        f.value is not None and abs(f.value) in (abs(v), abs(1 / v) if v else v) for f in term.factors for v in values
    )


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
    leaf = program.leaves[position]
    every = [other.leaves[i] for i in _targets(other)]
    return [own for own in every if (own.dtype, own.dim(), own.shape[1:]) == (leaf.dtype, leaf.dim(), leaf.shape[1:])]


def _data_among(leaves: set[int], program: Program) -> list[int]:
    return [i for i in sorted(leaves) if not isinstance(program.leaves[i], nn.Parameter)]


def _differs(leaf: torch.Tensor, of_others: Sequence[torch.Tensor]) -> bool:
    return any(other.shape != leaf.shape or not torch.equal(other, leaf) for other in of_others)

"""Puts the data of several micro-batches together as one batch, and takes it apart again.

Loops lay out their batches in a few ways: samples along the first dimension, or along the second where time comes
first, or in equal parts that belong together row by row (instance and prior images, anchors and positives).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.prepared_data import Preparation, own_preparations, prepared_alike
from gradcheck_accum.engine.program import Program


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples of a batch are: along ``dimension``, in ``parts`` that belong together row by row.

    ``counts_on`` says that integers which are the numbers of a micro-batch's rows are those of the large batch's there,
    as the labels of in-batch negatives are. Labels of few samples may be 0, 1, 2 by chance.
    """

    dimension: int = 0
    parts: int = 1
    counts_on: bool = True


LAYOUTS = (Layout(), Layout(counts_on=False), Layout(parts=2), Layout(parts=3), Layout(dimension=1))
"""The usual one first."""


def join(programs: Sequence[Program], layout: Layout) -> list[torch.Tensor]:
    """The leaves of several micro-batches as those of one batch.

    A leaf that is one object in all of them (class weights, a parameter) stays as it is; others are joined. Those that
    each micro-batch prepared of its own rows are prepared again, of all rows. Raises ValueError where they do not fit
    together.
    """
    first = programs[0]
    if not all(first.same_shape(other) for other in programs[1:]):
        raise ValueError("the micro-batches were computed by different calls")
    if first.holds_packed:
        raise ValueError("packed sequences are not concatenated")
    if not all(is_plain(leaf) for program in programs for leaf in program.leaves):
        raise ValueError("sparse or nested data is not concatenated")
    rows = rows_of(programs, layout)
    each = [[program.leaves[i] for program in programs] for i in range(len(first.leaves))]
    if not layout.counts_on and not any(_all_count_rows(own, layout, rows) for own in each):
        raise ValueError("none of its data has one row per sample")
    orders = layout == Layout() and all(program.by_position for program in programs)
    again = own_preparations(programs)
    if any(not _is_shared(each[leaf]) for leaf in first.lent()):
        raise ValueError("each micro-batch uses its own weights")
    return [
        _prepared_again(again[leaf], own[0], layout, rows)
        if leaf in again
        else _orders(own, rows)
        if orders and _are_orders(own, rows)
        else _joined(own, layout, rows)
        for leaf, own in enumerate(each)
    ]


def _prepared_again(
    each: Sequence[Preparation], made: torch.Tensor, layout: Layout, rows: list[int] | None
) -> torch.Tensor:
    """A leaf that each micro-batch prepared of its own rows, of all rows; it was ``made`` so of the first one's."""
    if len({len(how.raw) for how in each}) > 1 or (each[0].whole is None and not prepared_alike(each)):
        raise ValueError("the micro-batches' data was normalized in different ways")
    raw = [_joined(list(own), layout, rows) for own in zip(*(how.raw for how in each), strict=True)]
    try:
        return each[0].of_all_rows(raw, made)
    except Exception as error:
        # The script's own calls run here, on more rows.
        raise ValueError(
            f"the normalization of the micro-batches' data cannot be applied to all of it ({error})"
        ) from error


def _joined(own: list[torch.Tensor], layout: Layout, rows: list[int] | None) -> torch.Tensor:
    leaf, axis = own[0], layout.dimension
    if _is_shared(own):
        return leaf
    if leaf.dim() == 0:
        if any(not torch.equal(other, leaf) for other in own):
            raise ValueError("a number that the loss is computed with differs between micro-batches")
        return leaf
    if rows is None:
        raise ValueError("the micro-batches' rows cannot be identified")
    if axis < leaf.dim() and leaf.shape[axis] not in (rows[0], rows[0] * layout.parts) and _are_equal(own):
        # A constant that is made anew each time.
        return leaf
    if leaf.dim() == axis == 1:
        # Where time comes first, labels are often flat: the rows of each time after each other.
        own = [other.detach().reshape(-1, count) for other, count in zip(own, rows, strict=True)]
        return _put_together(own, 1, 1).flatten()
    if layout.counts_on and _all_count_rows(own, layout, rows):
        return torch.arange(sum(len(other) for other in own), dtype=leaf.dtype, device=leaf.device)
    if any(_without(other.shape, axis) != _without(leaf.shape, axis) for other in own):
        raise ValueError("the micro-batches' tensors have different shapes")
    if are_offsets(own):
        raise ValueError("positions in a micro-batch's data refer to different rows in a large batch")
    parts = layout.parts
    if parts > 1 and [other.shape[axis] for other in own] != [parts * count for count in rows]:
        # What has the rows of one part only is in the order of the micro-batches already.
        parts = 1
    # Data may need a gradient too (an adversarial example, a gradient penalty, reentrant checkpointing).
    return _put_together([other.detach() for other in own], axis, parts).requires_grad_(leaf.requires_grad)


def _all_count_rows(own: Sequence[torch.Tensor], layout: Layout, rows: Sequence[int] | None) -> bool:
    """Whether a leaf is, in every micro-batch, the numbers of its own rows, one after the other."""
    if layout.dimension or rows is None or not own[0].dim():
        return False
    return all(counts_rows(other, count * layout.parts) for other, count in zip(own, rows, strict=True))


def counts_rows(leaf: torch.Tensor, rows: int) -> bool:
    """Whether a leaf is the numbers of a micro-batch's own rows: an index, or the labels of in-batch negatives."""
    whole = leaf.dim() == 1 and not leaf.is_floating_point() and leaf.dtype is not torch.bool
    return (
        whole and len(leaf) == rows > 1 and torch.equal(leaf, torch.arange(rows, dtype=leaf.dtype, device=leaf.device))
    )


def _are_orders(own: Sequence[torch.Tensor], rows: Sequence[int] | None) -> bool:
    """Whether leaves that rows may be looked up with hold the numbers of their micro-batches' own, in any order."""
    return rows is not None and all(
        leaf.dim() == 1
        and leaf.dtype is torch.int64
        and len(leaf) == count > 1
        and torch.equal(leaf.sort().values, torch.arange(count, device=leaf.device))
        for leaf, count in zip(own, rows, strict=True)
    )


def _orders(own: Sequence[torch.Tensor], rows: Sequence[int] | None) -> torch.Tensor:
    """Orders of rows as those of one batch: each micro-batch's rows come after those before it."""
    before = accumulate((rows or ())[:-1], initial=0)
    return torch.cat([leaf.detach() + first for leaf, first in zip(own, before, strict=True)])


def _put_together(own: Sequence[torch.Tensor], axis: int, parts: int) -> torch.Tensor:
    cut = [other.chunk(parts, axis) for other in own]
    return torch.cat([pieces[part] for part in range(parts) for pieces in cut], axis)


def _is_shared(own: list[torch.Tensor]) -> bool:
    return all(other is own[0] or _is_same_view(other, own[0]) for other in own)


def _are_equal(own: Sequence[torch.Tensor]) -> bool:
    return all(other.shape == own[0].shape and torch.equal(other, own[0]) for other in own[1:])


def _without(shape: torch.Size, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def rows_of(programs: Sequence[Program], layout: Layout) -> list[int] | None:
    """How many rows each micro-batch has in one part; None where its leaves do not tell."""
    axis = layout.dimension
    own = [[program.leaves[i] for program in programs] for i in data_of(programs)]
    joint = _lengths(own, axis)
    if len(joint) < len(own) or any(counts != joint[0] for counts in joint):
        # What is the same in all of them may be a constant that has no rows.
        joint = _lengths([each for each in own if not _are_equal(each)] or own, axis)
    if not joint or not all(min(joint)):
        return None
    if layout.parts > 1 and all(counts == joint[0] for counts in joint):
        # No tensor has the rows of one part only: all of them hold all parts.
        return None if any(n % layout.parts for n in joint[0]) else [n // layout.parts for n in joint[0]]
    return min(joint)


def may_be_groups(programs: Sequence[Program]) -> bool:
    """Whether each micro-batch may be one sample: a sequence, an episode, a query, whose rows belong together.

    Where data is cut into micro-batches by number, none but the last of a pass holds another number of rows.
    """
    if len({len(program.leaves) for program in programs}) > 1:
        return False
    if not all(is_plain(leaf) for program in programs for leaf in program.leaves):
        return False
    rows = rows_of(programs, Layout()) or [0]
    return len({*rows[:-1]}) > 1 or rows[-1] > rows[0]


def _lengths(leaves: Iterable[Sequence[torch.Tensor]], axis: int) -> list[list[int]]:
    """How long each leaf is along a dimension, micro-batch by micro-batch; those that lack it are left out."""
    return [[leaf.shape[axis] for leaf in own] for own in leaves if own[0].dim() > axis]


def data_of(programs: Sequence[Program]) -> list[int]:
    """The positions of the leaves that every micro-batch has of its own."""
    each = [[program.leaves[i] for program in programs] for i in range(len(programs[0].leaves))]
    return [i for i, own in enumerate(each) if own[0].dim() and not _is_shared(own)]


def halves(program: Program, data: Sequence[int]) -> tuple[Program, Program] | None:
    """The two halves of one micro-batch's rows in the leaves ``data``, or None where they cannot be told."""
    rows = min((program.leaves[i].shape[0] for i in data), default=0)
    if program.random or rows < 2 or any(program.leaves[i].shape[0] % rows for i in data):
        return None
    cut = rows // 2

    def part(start: int, stop: int) -> Program:
        leaves = list(program.leaves)
        for i in data:
            each = leaves[i].shape[0] // rows
            leaves[i] = leaves[i].detach()[start * each : stop * each].requires_grad_(leaves[i].requires_grad)
        return replace(program, leaves=leaves, versions=[leaf._version for leaf in leaves])

    return part(0, cut), part(cut, rows)


def are_offsets(own: Sequence[torch.Tensor]) -> bool:
    """Whether a leaf holds, in every micro-batch, the places where the rows of a longer one begin."""
    return all(map(_rise_from_zero, own)) and any(map(_goes_beyond, own))


def _rise_from_zero(leaf: torch.Tensor) -> bool:
    """Whether a tensor may hold the places where the rows of a longer one begin: 0, 7, 12, ... or 0 alone."""
    if leaf.dim() != 1 or not leaf.numel() or leaf.is_floating_point() or leaf.dtype is torch.bool:
        return False
    return int(leaf[0]) == 0 and bool((leaf[1:] >= leaf[:-1]).all())


def _goes_beyond(leaf: torch.Tensor) -> bool:
    """Whether what rises from 0 goes beyond the numbers of its own rows."""
    return leaf.numel() > 1 and int(leaf[-1]) >= leaf.numel()


def _is_same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.data_ptr() == right.data_ptr()
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.data_ptr() != 0
    )

"""Joins the data of several micro-batches into one batch, and splits it again.

Loops lay out their batches in a few ways: samples along the first dimension, or along the second if time comes first,
in equal parts whose rows correspond (instance and prior images, anchors and positives), or as graphs whose nodes are
numbered. States of recurrent layers always have them along the second. If calls were given sizes that follow the number
of rows (a learned prompt expanded to ``len(x)``), or split rows there (``chosen = scores[: len(scores) // 2]``), a
larger batch would have given them larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradcheck_accum.engine.factors import factors_in
from gradcheck_accum.engine.graphs import counted_on, graphs_in, nodes_in, numbered_on, relations
from gradcheck_accum.engine.memory import is_plain, versions_of
from gradcheck_accum.engine.prepared_data import Preparation, own_preparations, prepared_alike
from gradcheck_accum.engine.program import Program


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples of a batch are: along ``dimension``, in ``parts`` whose rows correspond.

    ``counts_on`` says that integers which number a micro-batch's rows (0, 1, 2, ...) continue to number the large
    batch's rows, like the labels of in-batch negatives. Labels of few samples may be 0, 1, 2 by chance. ``states`` says
    that leaves which have no rows along the first dimension have them along the second, ``sizes`` that the first sizes
    that calls were given, or the rows at which the loop splits a tensor, are multiples of the number of rows,
    ``graphs`` that rows are nodes, whose numbers continue.
    Of several square leaves with a row for each node, only the one at the place ``relation`` relates the nodes; each of
    them does if it is None. Others have as many columns by coincidence.
    """

    dimension: int = 0
    parts: int = 1
    counts_on: bool = True
    states: bool = False
    sizes: bool = False
    graphs: bool = False
    relation: int | None = None

    def axis_of(self, leaf: torch.Tensor, rows: int | None) -> int:
        """The dimension along which a leaf holds its samples, ``rows`` of them."""
        is_state = self.states and rows and leaf.dim() > 1 and leaf.shape[0] % rows and leaf.shape[1] == rows
        return 1 if is_state else self.dimension


LAYOUTS = (
    *(Layout(), Layout(counts_on=False), Layout(parts=2), Layout(parts=3), Layout(dimension=1)),
    *(Layout(states=True), Layout(sizes=True), Layout(parts=2, sizes=True), Layout(parts=3, sizes=True)),
    Layout(graphs=True),
    *(Layout(graphs=True, relation=place) for place in range(3)),
)
"""The most common one first."""

_SIZED = frozenset({"expand", "view", "reshape", "repeat", "broadcast_to"})
"""Calls that are given the sizes of their results, the rows first."""


def join(programs: Sequence[Program], layout: Layout) -> list[torch.Tensor]:
    """Join the leaves of several micro-batches as those of one batch.

    A leaf that all of them share (class weights, a parameter) is kept, and so is a factor of the first one's losses;
    others are joined. Leaves that each micro-batch prepared from its own rows are prepared again, from all rows. Raises
    ValueError if they cannot be joined.
    """
    first = programs[0]
    _check_alike(programs)
    rows = rows_of(programs, layout)
    each = [[program.leaves[i] for program in programs] for i in range(len(first.leaves))]
    if not layout.counts_on and not any(_all_count_rows(own, layout, rows) for own in each):
        raise ValueError("none of its data has one row per sample")
    orders = layout == Layout() and all(program.by_position for program in programs)
    again = own_preparations(programs)
    for leaf in set.intersection(*map(factors_in, programs)) - again.keys():
        each[leaf] = [each[leaf][0]] * len(programs)
    if any(not _is_shared(each[leaf]) for leaf in first.lent()):
        raise ValueError("each micro-batch uses its own weights")
    if layout.graphs and again:
        raise ValueError("data that was prepared from the rows of a micro-batch is not that of several graphs")
    if layout.graphs and rows:
        return _graphs(each, rows, layout.relation)
    return [
        _prepared_again(again[leaf], own[0], layout, rows)
        if leaf in again
        else _orders(own, rows)
        if orders and _are_orders(own, rows)
        else _joined(own, layout, rows)
        for leaf, own in enumerate(each)
    ]


def _graphs(each: Sequence[list[torch.Tensor]], nodes: Sequence[int], relation: int | None) -> list[torch.Tensor]:
    """All leaves, joined as those of graphs with so many ``nodes``, which the leaves that `relations` names relate."""
    free = [own for own in each if own[0].dim() and not _is_shared(own)]
    graphs, related = graphs_in(free, nodes), relations(free, nodes, relation)
    joined = []
    for own in each:
        if not own[0].dim() or _is_shared(own):
            joined.append(_kept(own))
            continue
        parts, axis = numbered_on(own, nodes, graphs, is_relation=any(own is one for one in related))
        _check_shapes(parts, axis)
        joined.append(_put_together(parts, axis, 1).requires_grad_(own[0].requires_grad))
    return joined


def _check_alike(programs: Sequence[Program]) -> None:
    if not all(programs[0].same_shape(other) for other in programs[1:]):
        raise ValueError("the micro-batches were computed by different calls")
    if programs[0].holds_packed:
        raise ValueError("packed sequences are not concatenated")
    if not all(is_plain(leaf) for program in programs for leaf in program.leaves):
        raise ValueError("sparse or nested data is not concatenated")


def _prepared_again(
    each: Sequence[Preparation], made: torch.Tensor, layout: Layout, rows: list[int] | None
) -> torch.Tensor:
    """A leaf that each micro-batch prepared from its own rows, prepared from all rows; ``made`` is the first one's."""
    if len({len(how.raw) for how in each}) > 1 or (each[0].whole is None and not prepared_alike(each)):
        raise ValueError("the micro-batches' data was normalized in different ways")
    raw = [_joined(list(own), layout, rows) for own in zip(*(how.raw for how in each), strict=True)]
    try:
        return each[0].of_all_rows(raw, made)
    except Exception as error:
        # The script's own calls run here, on more rows, and may raise anything.
        raise ValueError(
            f"the normalization of the micro-batches' data cannot be applied to all of it ({error})"
        ) from error


def _kept(own: Sequence[torch.Tensor]) -> torch.Tensor:
    """A leaf that all micro-batches share, or a number, which must be equal in all of them."""
    if not _is_shared(own) and any(not torch.equal(other, own[0]) for other in own):
        raise ValueError("a number that the loss is computed with differs between micro-batches")
    return own[0]


def _joined(own: list[torch.Tensor], layout: Layout, rows: list[int] | None) -> torch.Tensor:
    leaf, axis = own[0], layout.axis_of(own[0], rows[0] if rows else None)
    if leaf.dim() == 0 or _is_shared(own):
        return _kept(own)
    if rows is None:
        raise ValueError("the micro-batches' rows cannot be identified")
    if axis < leaf.dim() and leaf.shape[axis] not in (rows[0], rows[0] * layout.parts) and _are_equal(own):
        # An equal constant that each micro-batch creates again.
        return leaf
    if leaf.dim() == layout.dimension == 1:
        # If time comes first, labels are often flat: all rows of one time step, then those of the next.
        own = [other.detach().reshape(-1, count) for other, count in zip(own, rows, strict=True)]
        return _put_together(own, 1, 1).flatten()
    if layout.counts_on and _all_count_rows(own, layout, rows):
        return torch.arange(sum(len(other) for other in own), dtype=leaf.dtype, device=leaf.device)
    _check_shapes(own, axis)
    if are_offsets(own):
        raise ValueError("positions in a micro-batch's data refer to different rows in a large batch")
    parts = layout.parts
    if parts > 1 and [other.shape[axis] for other in own] != [parts * count for count in rows]:
        # A leaf with the rows of only one part is already in the order of the micro-batches.
        parts = 1
    # Data may require a gradient too (an adversarial example, a gradient penalty, reentrant checkpointing).
    return _put_together([other.detach() for other in own], axis, parts).requires_grad_(leaf.requires_grad)


def _all_count_rows(own: Sequence[torch.Tensor], layout: Layout, rows: Sequence[int] | None) -> bool:
    """Whether a leaf numbers the rows of each micro-batch consecutively."""
    if layout.dimension or rows is None or not own[0].dim():
        return False
    return all(counts_rows(other, count * layout.parts) for other, count in zip(own, rows, strict=True))


def counts_rows(leaf: torch.Tensor, rows: int) -> bool:
    """Whether a leaf numbers a micro-batch's rows consecutively: an index, or the labels of in-batch negatives."""
    whole = leaf.dim() == 1 and not leaf.is_floating_point() and leaf.dtype is not torch.bool
    return (
        whole and len(leaf) == rows > 1 and torch.equal(leaf, torch.arange(rows, dtype=leaf.dtype, device=leaf.device))
    )


def _are_orders(own: Sequence[torch.Tensor], rows: Sequence[int] | None) -> bool:
    """Whether leaves that may index rows contain the numbers of their own micro-batch's rows, in any order."""
    return rows is not None and all(
        leaf.dim() == 1
        and leaf.dtype is torch.int64
        and len(leaf) == count > 1
        and torch.equal(leaf.sort().values, torch.arange(count, device=leaf.device))
        for leaf, count in zip(own, rows, strict=True)
    )


def _orders(own: Sequence[torch.Tensor], rows: Sequence[int] | None) -> torch.Tensor:
    """Row orders joined as one batch's: each micro-batch's numbers are shifted by the rows before it."""
    return torch.cat(counted_on(own, rows or ()))


def _put_together(own: Sequence[torch.Tensor], axis: int, parts: int) -> torch.Tensor:
    cut = [other.chunk(parts, axis) for other in own]
    return torch.cat([pieces[part] for part in range(parts) for pieces in cut], axis)


def _is_shared(own: Sequence[torch.Tensor]) -> bool:
    return all(other is own[0] or _is_same_view(other, own[0]) for other in own)


def _are_equal(own: Sequence[torch.Tensor]) -> bool:
    return all(other.shape == own[0].shape and torch.equal(other, own[0]) for other in own[1:])


def _check_shapes(own: Sequence[torch.Tensor], axis: int) -> None:
    if any(_without(other.shape, axis) != _without(own[0].shape, axis) for other in own):
        raise ValueError("the micro-batches' tensors have different shapes")


def _without(shape: torch.Size, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def rows_of(programs: Sequence[Program], layout: Layout) -> list[int] | None:
    """How many rows each micro-batch has in one part; None if its leaves do not show that."""
    axis = layout.dimension
    own = [[program.leaves[i] for program in programs] for i in data_of(programs)]
    if layout.states:
        return _rows_beside_states(own)
    if layout.graphs:
        return nodes_in(own)
    joint = _lengths(own, axis)
    if len(joint) < len(own) or any(counts != joint[0] for counts in joint):
        # A tensor that is equal in all of them may be a constant without rows.
        joint = _lengths([each for each in own if not _are_equal(each)] or own, axis)
    if not joint or not all(min(joint)):
        return None
    if layout.parts > 1 and all(counts == joint[0] for counts in joint):
        # No tensor has the rows of only one part: each holds all parts.
        return None if any(n % layout.parts for n in joint[0]) else [n // layout.parts for n in joint[0]]
    return min(joint)


def _rows_beside_states(own: Sequence[Sequence[torch.Tensor]]) -> list[int] | None:
    """The rows of each micro-batch, if some leaves hold them along the second dimension alone; None if none do."""

    def holds(each: Sequence[torch.Tensor], rows: Sequence[int]) -> bool:
        return all(not leaf.shape[0] % n for leaf, n in zip(each, rows, strict=True))

    def is_state(each: Sequence[torch.Tensor], rows: Sequence[int]) -> bool:
        return all(leaf.dim() > 1 and leaf.shape[1] == n for leaf, n in zip(each, rows, strict=True))

    for rows in sorted(_lengths(own, 0), reverse=True):
        states = [each for each in own if min(rows) > 1 and not holds(each, rows)]
        if states and all(is_state(each, rows) for each in states):
            return rows
    return None


def with_all_rows(programs: Sequence[Program], layout: Layout) -> Program:
    """The first program, with the sizes that its calls would have been given for the rows of all.

    Raises ValueError if no size follows the rows, or if another number differs between micro-batches.
    """
    first = programs[0]
    _check_alike(programs)
    rows = rows_of(programs, layout)
    if rows is None:
        raise ValueError("the micro-batches' rows cannot be identified")
    steps, followed = list(first.steps), 0
    for index, (function, *_, autocast) in enumerate(first.steps):
        each = [_numbers_of_rows(program.steps[index]) for program in programs]
        # A single row divides every number; where a batch has parts, what splits it in these is meant.
        if not each[0] or (min(rows) < 2 and layout.parts < 2) or not _all_follow(each, rows):
            continue
        args, kwargs = _with_numbers_of_rows(first.steps[index], lambda number: number // rows[0] * sum(rows))
        steps[index] = function, args, kwargs, autocast
        followed += len(each[0])
    if not followed:
        raise ValueError("no size that its calls were given follows its rows")
    differing = [each for each in zip(*(program.constants for program in programs), strict=True) if len({*each}) > 1]
    if len(differing) > followed or not all(_follow(each, rows) for each in differing):
        raise ValueError("a number that the loss is computed with differs between micro-batches")
    return replace(first, steps=steps)


def _all_follow(each: Sequence[Sequence[int]], rows: Sequence[int]) -> bool:
    same = len({len(numbers) for numbers in each}) == 1
    return same and all(_follow(numbers, rows) for numbers in zip(*each, strict=True))


def _numbers_of_rows(step: tuple[Any, Any, Any, Any]) -> list[int]:
    """The numbers among a call's arguments that may be numbers of rows: its first size, or where it splits rows."""
    found: list[int] = []

    def note(number: int) -> int:
        found.append(number)
        return number

    _with_numbers_of_rows(step, note)
    return found


def _with_numbers_of_rows(step: tuple[Any, Any, Any, Any], instead: Callable[[int], int]) -> tuple[Any, Any]:
    """A call's arguments, with other numbers ``instead`` of those that may be numbers of rows."""
    function, args, kwargs, _ = step
    name = getattr(function, "__name__", "")
    if len(args) < 2 or kwargs.get("dim", 0):
        return args, kwargs

    def one(number: Any) -> Any:
        return instead(number) if type(number) is int and number else number

    given, *more = args[1:]
    if name in _SIZED and isinstance(given, (list, tuple)) and given:
        given = type(given)((one(given[0]), *given[1:])) if given[0] != -1 else given
    elif name in _SIZED:
        given = one(given) if given != -1 else given
    elif name == "split" and not any(more):
        given = [one(length) for length in given] if isinstance(given, (list, tuple)) else one(given)
    elif name == "__getitem__":
        first, *others = given if isinstance(given, tuple) and given else (given,)
        if isinstance(first, slice):
            first = slice(one(first.start), one(first.stop), first.step)
            given = (first, *others) if isinstance(given, tuple) else first
    return (args[0], given, *more), kwargs


def _follow(numbers: Sequence[object], rows: Sequence[int]) -> bool:
    """Whether numbers are the same multiple of each micro-batch's rows."""
    return all(
        type(number) is int and number and not number % n and number // n * rows[0] == numbers[0]
        for number, n in zip(numbers, rows, strict=True)
    )


def may_be_groups(programs: Sequence[Program]) -> bool:
    """Whether each micro-batch may be one sample: a sequence, an episode, a query, whose rows belong together.

    If data is split into micro-batches of a fixed number of rows, only the last of a pass can differ.
    """
    if len({len(program.leaves) for program in programs}) > 1:
        return False
    if not all(is_plain(leaf) for program in programs for leaf in program.leaves):
        return False
    rows = rows_of(programs, Layout()) or [0]
    return len({*rows[:-1]}) > 1 or rows[-1] > rows[0]


def _lengths(leaves: Iterable[Sequence[torch.Tensor]], axis: int) -> list[list[int]]:
    """How long each leaf is along a dimension, for each micro-batch; leaves without that dimension are left out."""
    return [[leaf.shape[axis] for leaf in own] for own in leaves if own[0].dim() > axis]


def data_of(programs: Sequence[Program]) -> list[int]:
    """The positions of the leaves that differ between micro-batches."""
    each = [[program.leaves[i] for program in programs] for i in range(len(programs[0].leaves))]
    return [i for i, own in enumerate(each) if own[0].dim() and not _is_shared(own)]


def halves(program: Program, data: Sequence[int]) -> tuple[Program, Program] | None:
    """The two halves of one micro-batch's rows in the leaves ``data``, or None if rows cannot be identified."""
    rows = min((program.leaves[i].shape[0] for i in data), default=0)
    if program.random or rows < 2 or any(program.leaves[i].shape[0] % rows for i in data):
        return None
    cut = rows // 2

    def part(start: int, stop: int) -> Program:
        leaves = list(program.leaves)
        for i in data:
            each = leaves[i].shape[0] // rows
            leaves[i] = leaves[i].detach()[start * each : stop * each].requires_grad_(leaves[i].requires_grad)
        return replace(program, leaves=leaves, versions=versions_of(leaves))

    return part(0, cut), part(cut, rows)


def are_offsets(own: Sequence[torch.Tensor]) -> bool:
    """Whether a leaf holds, in every micro-batch, the offsets where parts of a longer leaf begin."""
    return all(map(_rise_from_zero, own)) and any(map(_goes_beyond, own))


def _rise_from_zero(leaf: torch.Tensor) -> bool:
    """Whether a tensor may hold such offsets: 0, 7, 12, ... or 0 alone."""
    if leaf.dim() != 1 or not leaf.numel() or leaf.is_floating_point() or leaf.dtype is torch.bool:
        return False
    return int(leaf[0]) == 0 and bool((leaf[1:] >= leaf[:-1]).all())


def _goes_beyond(leaf: torch.Tensor) -> bool:
    """Whether values that rise from 0 exceed the number of their own rows."""
    return leaf.numel() > 1 and int(leaf[-1]) >= leaf.numel()


def _is_same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.data_ptr() == right.data_ptr()
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.data_ptr() != 0
    )

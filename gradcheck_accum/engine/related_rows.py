"""Joins data that says which of a micro-batch's rows belong together: graphs, one or several in each micro-batch.

A matrix with as many rows and columns as there are rows (an adjacency), or integers that number rows (the ends of
edges), relate the rows of their own micro-batch alone. The large batch of graphs is one graph whose parts are not
connected: its matrix has theirs along the diagonal, and its numbers go on where those before end.

Of a micro-batch that is a batch of samples, such data may have been computed from all its rows (who is near whom), and
would relate all rows of the large batch. So the numbers of rows must be unlike, as those of graphs are, and the data
must not have been computed in the micro-batch's own turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from gradcheck_accum.engine.program import Program


def related_rows(programs: Sequence[Program]) -> list[int] | None:
    """How many rows each micro-batch has, if its data relates them to each other; None if none is known to."""
    leaves = [[program.leaves[i] for program in programs] for i in range(len(programs[0].leaves))]
    counts = {tuple(len(leaf) for leaf in own) for own in leaves if own[0].dim() and own[0].is_floating_point()}
    found = [rows for rows in counts if any(_is_matrix(own, rows) or _numbers_rows(own, rows) for own in leaves)]
    return list(found[0]) if len(found) == 1 else None


def are_unlike(rows: Sequence[int]) -> bool:
    """Whether numbers of rows are those of micro-batches that were not cut from data at a fixed number of rows."""
    return len({*rows[:-1]}) > 1 or rows[-1] > rows[0]


def are_computed(programs: Sequence[Program]) -> bool:
    """Whether such data of any micro-batch was computed in its own turn. Of the run's first one, this is not known."""
    return any(program.relates_in_turn and not program.is_first for program in programs)


def join_related(programs: Sequence[Program]) -> list[torch.Tensor]:
    """The leaves of several micro-batches as those of one batch. Raises ValueError if they cannot be joined."""
    rows = related_rows(programs)
    if rows is None:
        raise ValueError("none of its data relates rows to each other")
    leaves = [[program.leaves[i] for program in programs] for i in range(len(programs[0].leaves))]
    edges = [_counts(own) for own in leaves if _numbers_rows(own, rows)]
    return [_joined(own, rows, edges) for own in leaves]


def _joined(own: Sequence[torch.Tensor], rows: Sequence[int], edges: Sequence[list[int]]) -> torch.Tensor:
    first = own[0]
    if all(leaf is first or (leaf.shape == first.shape and torch.equal(leaf, first)) for leaf in own):
        return first
    if _is_matrix(own, rows):
        joined: torch.Tensor = torch.block_diag(*(leaf.detach() for leaf in own))  # type: ignore[no-untyped-call]
        return joined.to(first.dtype).requires_grad_(first.requires_grad)
    if _numbers_rows(own, rows):
        before = accumulate(rows[:-1], initial=0)
        return torch.cat([leaf + skipped for leaf, skipped in zip(own, before, strict=True)], _edges_dimension(own))
    lengths = [len(leaf) if leaf.dim() else 0 for leaf in own]
    if lengths == list(rows) or lengths in edges:
        return torch.cat([leaf.detach() for leaf in own]).requires_grad_(first.requires_grad)
    raise ValueError("the micro-batches' tensors have different shapes")


def _is_matrix(own: Sequence[torch.Tensor], rows: Sequence[int]) -> bool:
    return all(leaf.shape == (count, count) for leaf, count in zip(own, rows, strict=True))


def _numbers_rows(own: Sequence[torch.Tensor], rows: Sequence[int]) -> bool:
    """Whether integers, not one for each row, may number rows: both ends of each edge, or one of them."""
    first = own[0]
    if first.is_floating_point() or first.is_complex() or first.dtype is torch.bool or first.dim() not in (1, 2):
        return False
    if first.dim() == 2 and not all(2 in leaf.shape for leaf in own):
        return False
    return all(
        leaf.numel() and len(leaf) != count and int(leaf.min()) >= 0 and int(leaf.max()) < count
        for leaf, count in zip(own, rows, strict=True)
    )


def _edges_dimension(own: Sequence[torch.Tensor]) -> int:
    """The dimension of edges in integers that number their ends."""
    return 1 if own[0].dim() == 2 and all(leaf.shape[0] == 2 for leaf in own) else 0


def _counts(own: Sequence[torch.Tensor]) -> list[int]:
    return [leaf.shape[_edges_dimension(own)] for leaf in own]

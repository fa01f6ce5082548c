"""Joins batches of graphs as one batch of all their graphs, with no edge between those of two micro-batches.

A batch of graphs numbers its nodes from 0, in the edges, and its graphs, in the vector that says which graph a node
belongs to. Both numberings continue from one micro-batch to the next; all else is concatenated. This is how libraries
for graphs make a batch of several, and therefore also a larger one. Where a square matrix says which nodes are related,
those of the micro-batches are the blocks of a larger one, which is 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

Each = Sequence[torch.Tensor]
"""One leaf, as each micro-batch has it."""


def nodes_in(leaves: Sequence[Each]) -> list[int] | None:
    """How many nodes each micro-batch has: rows of a leaf, as few as its edges allow.

    Where there are no edges, as many as a square matrix and another leaf have rows. None if there is none of both.
    """
    edges = [own for own in leaves if _are_edges(own)]
    if not edges:
        lengths = [[len(leaf) for leaf in own] for own in leaves if own[0].dim() and not _are_square(own)]
        related = ([len(leaf) for leaf in own] for own in leaves if _are_square(own))
        return next((nodes for nodes in related if nodes in lengths), None)
    least = [max(int(own[j].max()) + 1 for own in edges) for j in range(len(edges[0]))]
    counted = [[len(leaf) for leaf in own] for own in leaves if own[0].dim() and not _are_edges(own)]
    return min((own for own in counted if all(n >= m for n, m in zip(own, least, strict=True))), default=None)


def graphs_in(leaves: Sequence[Each], nodes: Sequence[int]) -> list[int]:
    """How many graphs each micro-batch has; one if no leaf says which graph its ``nodes`` belong to."""
    found = [[int(leaf[-1]) + 1 for leaf in own] for own in leaves if _number_graphs(own, nodes)]
    return max(found, default=[1] * len(nodes))


def _are_edges(own: Each) -> bool:
    """Whether a leaf holds pairs of integers, one column each."""
    return all(_are_numbers(leaf) and leaf.dim() == 2 and len(leaf) == 2 and leaf.numel() for leaf in own)


def _are_square(own: Each) -> bool:
    """Whether a leaf is a square matrix of at least two rows in some micro-batch."""
    return all(leaf.dim() == 2 and len(leaf) == leaf.shape[1] for leaf in own) and any(len(leaf) > 1 for leaf in own)


def _number_graphs(own: Each, nodes: Sequence[int]) -> bool:
    """Whether a leaf has one number for each node, from 0 and without a gap: the graph that it belongs to."""
    return all(
        _are_numbers(leaf) and leaf.dim() == 1 and len(leaf) == count and not int(leaf[0]) and _rise_by_one(leaf)
        for leaf, count in zip(own, nodes, strict=True)
    )


def _are_numbers(leaf: torch.Tensor) -> bool:
    return leaf.dtype in (torch.int32, torch.int64)


def _rise_by_one(leaf: torch.Tensor) -> bool:
    steps = leaf.diff()
    return bool(((steps == 0) | (steps == 1)).all())


def relations(leaves: Sequence[Each], nodes: Sequence[int], only: int | None) -> list[Each]:
    """The square leaves that relate the ``nodes``: all that may, or of several the one at the place ``only``.

    Raises ValueError if there are not so many: then no other reading of them exists.
    """
    found = [
        own for own in leaves if not _are_edges(own) and _are_square(own) and [len(leaf) for leaf in own] == [*nodes]
    ]
    if only is None:
        return found
    if len(found) < 2 or only >= len(found):
        raise ValueError("no other of its data may say which of its rows belong together")
    return [found[only]]


def numbered_on(
    own: Each, nodes: Sequence[int], graphs: Sequence[int], *, is_relation: bool
) -> tuple[list[torch.Tensor], int]:
    """A leaf as each micro-batch has it, its numbers going on where those before end; and the dimension to join along.

    ``nodes`` and ``graphs`` are how many each micro-batch has. A matrix that is a relation of nodes becomes rows of the
    large one.
    """
    if _are_edges(own):
        return counted_on(own, nodes), 1
    if is_relation:
        blocks = torch.block_diag(*(leaf.detach() for leaf in own))  # type: ignore[no-untyped-call]
        return list(blocks.split([*nodes])), 0
    return (counted_on(own, graphs) if _number_graphs(own, nodes) else [leaf.detach() for leaf in own]), 0


def counted_on(own: Each, counts: Sequence[int]) -> list[torch.Tensor]:
    """Numbers of things, of which each micro-batch has ``counts``, shifted by how many those before it have."""
    before = accumulate(counts[:-1], initial=0)
    return [leaf.detach() + first for leaf, first in zip(own, before, strict=True)]

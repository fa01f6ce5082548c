"""Joins batches of graphs as one batch of all their graphs, with no edge between those of two micro-batches.

A batch of graphs numbers its nodes from 0, in the edges, and its graphs, in the vector that says which graph a node
belongs to. Both numberings continue from one micro-batch to the next; all else is concatenated. This is how libraries
for graphs make a batch of several, and therefore also a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

Each = Sequence[torch.Tensor]
"""One leaf, as each micro-batch has it."""


def join_graphs(leaves: Sequence[Each]) -> list[torch.Tensor]:
    """The leaves of all graphs. Raises ValueError if the micro-batches have no edges."""
    nodes = nodes_in(leaves)
    if nodes is None:
        raise ValueError("its data holds no edges of graphs")
    graphs = _graphs(leaves, nodes)
    return [_joined(own, nodes, graphs) for own in leaves]


def nodes_in(leaves: Sequence[Each]) -> list[int] | None:
    """How many nodes each micro-batch has: rows of a leaf, as few as its edges allow. None if it has no edges."""
    edges = [own for own in leaves if _are_edges(own)]
    if not edges:
        return None
    least = [max(int(own[j].max()) + 1 for own in edges) for j in range(len(edges[0]))]
    counted = [[len(leaf) for leaf in own] for own in leaves if own[0].dim() and not _are_edges(own)]
    return min((own for own in counted if all(n >= m for n, m in zip(own, least, strict=True))), default=None)


def _graphs(leaves: Sequence[Each], nodes: Sequence[int]) -> list[int]:
    """How many graphs each micro-batch has; one if no leaf says which graph its nodes belong to."""
    found = [[int(leaf[-1]) + 1 for leaf in own] for own in leaves if _number_graphs(own, nodes)]
    return max(found, default=[1] * len(nodes))


def _are_edges(own: Each) -> bool:
    """Whether a leaf holds pairs of integers, one column each."""
    return all(_are_numbers(leaf) and leaf.dim() == 2 and len(leaf) == 2 and leaf.numel() for leaf in own)


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


def _joined(own: Each, nodes: Sequence[int], graphs: Sequence[int]) -> torch.Tensor:
    first = own[0]
    if all(leaf is first for leaf in own):
        return first
    if not first.dim():
        if any(not torch.equal(leaf, first) for leaf in own):
            raise ValueError("a number that the loss is computed with differs between micro-batches")
        return first
    axis, numbered = 0, [0] * len(own)
    if _are_edges(own):
        axis, numbered = 1, _before(nodes)
    elif _number_graphs(own, nodes):
        numbered = _before(graphs)
    if any(leaf.dim() != first.dim() or leaf.shape[1:] != first.shape[1:] for leaf in own) and not axis:
        raise ValueError("the micro-batches' tensors have different shapes")
    shifted = [leaf.detach() + start if start else leaf.detach() for leaf, start in zip(own, numbered, strict=True)]
    return torch.cat(shifted, axis).requires_grad_(first.requires_grad)


def _before(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts[:-1], initial=0))

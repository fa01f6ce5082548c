"""The contents of a variant's token data: micro-batches with the same tokens have the same gradient.

With few tokens in a small vocabulary that happens: then a mean of means equals the large batch's mean.
"""

from __future__ import annotations

from collections import Counter

import torch

from gradcheck_accum.fuzz.variants import TOKENS, Variant


def contents(variant: Variant) -> list[Counter[tuple[int, int]]]:
    """For each micro-batch of a pass, how often its loss includes each pair of a token and its target.

    They are drawn here as the variant's script draws them. Empty for a variant with other data.
    """
    if variant.model != "tied":
        return []
    if variant.joins is not None:
        k, each = variant.joins.k, contents(variant.joins)
        return [sum(each[start : start + k], Counter()) for start in range(0, len(each), k)]
    generator = torch.Generator().manual_seed(variant.seed)

    def draw(rows: int) -> torch.Tensor:
        return torch.randint(0, TOKENS, (rows, TOKENS), generator=generator)

    if variant.data_loader:
        rows = list(variant.rows)
        batches = list(zip(*(draw(sum(rows)).split_with_sizes(rows) for _ in range(2)), strict=True))
    elif variant.boundary == "chunks":
        large = [(draw(n * variant.k), draw(n * variant.k)) for n in variant.rows[:: variant.k]]
        batches = [pair for x, y in large for pair in zip(x.chunk(variant.k), y.chunk(variant.k), strict=True)]
    else:
        batches = [(draw(n), draw(n)) for n in variant.rows]
    return [
        Counter(list(zip(x.flatten().tolist(), y.flatten().tolist(), strict=True))[-units:])
        for (x, y), units in zip(batches, variant.units, strict=True)
    ]

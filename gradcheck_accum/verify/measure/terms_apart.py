"""The gradients of single terms of a window's losses, where these may have different weights in the large batch.

One backward gives the sum of the terms' gradients, of which none is right or wrong by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradcheck_accum.engine.reference import CannotReplay, ReferenceEngine
from gradcheck_accum.ledger.events import product_of
from gradcheck_accum.verify.book.records import Record

_MOST = 32
"""How many gradients of single terms are computed for a window at most: each is as large as the model."""


@dataclass(frozen=True, slots=True)
class TermApart:
    """The gradients of the terms called ``name`` of some ``records``, added up, one for each parameter."""

    name: str
    records: tuple[int, ...]
    gradients: list[torch.Tensor]


def terms_apart(
    engine: ReferenceEngine, records: Sequence[Record], parameters: Sequence[torch.Tensor]
) -> list[TermApart]:
    """The terms of a window's losses, those with equal units and factors together.

    Empty where there is nothing to take apart, or no way to: losses of one term, on several ranks, or not recorded.
    """
    several = all(len(record.event.terms) > 1 and record.event.ranks == 1 for record in records)
    alike: dict[tuple[str, float | None, float | None], list[int]] = {}
    for index, record in enumerate(records):
        for term in record.event.terms:
            alike.setdefault((term.name, term.units, product_of(term.factors)), []).append(index)
    if not several or len(alike) > _MOST:
        return []
    totals: list[list[torch.Tensor]] = [[] for _ in alike]
    try:
        for index, record in enumerate(records):
            if record.program is None:
                return []
            each = engine.terms_one_by_one(record.program, parameters)
            for ((name, *_), own), total in zip(alike.items(), totals, strict=True):
                if index in own:
                    total[:] = [a + b for a, b in zip(total, each[name], strict=True)] if total else each[name]
    except (CannotReplay, KeyError):
        return []
    return [TermApart(name, tuple(own), total) for ((name, *_), own), total in zip(alike.items(), totals, strict=True)]

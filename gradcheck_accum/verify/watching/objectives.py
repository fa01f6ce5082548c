"""Backwards of one line that are terms of one micro-batch's objective: heads or losses with a backward each.

A micro-batch is a share of the data, not a call of ``backward``. The data that the model was called on shows which
share it is: backwards on the very same tensors belong to one micro-batch, and so do those on batches that several
loaders yielded together (one for each task). The source's own count comes first: where a counter that decides on the
step, or a loop's bound, counts as many as there were backwards, each of them is one. So it is where a window has a
batch of each loader, and a K of their number divides their losses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from gradcheck_accum.engine.loss_graph import numbered
from gradcheck_accum.ledger.events import Backward
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import names_steps
from gradcheck_accum.verify.book.records import Record

_same = Same()


def merged(records: Sequence[Record], counted: int | None) -> dict[Backward, Backward]:
    """Backwards of a window as they are once those over one micro-batch share its number, by what they were.

    ``counted`` is how many micro-batches the source has counted in the window, None where it shows no count. Empty
    where the numbers are right.
    """
    numbers = {record.event.micro_batch for record in records}
    if len(numbers) < 2 or (counted is not None and counted >= len(numbers)):
        return {}
    found: dict[Backward, Backward] = {}
    own: list[Record] = []
    kinds = Counter[str]()
    for record in records:
        event = record.event
        if own and own[0].event.where.place == event.where.place and _goes_on(own, record):
            first, terms = own[0].event, tuple(numbered(event.terms, kinds))
            own.append(record)
            if event.micro_batch != first.micro_batch:
                found[event] = replace(event, micro_batch=first.micro_batch, terms=terms)
        else:
            own, kinds = [record], Counter(term.kind for term in event.terms)
    return {} if len(own) == len(records) and _are_counted(records) else found


def _are_counted(records: Sequence[Record]) -> bool:
    """Whether the source divides the losses of batches that several loaders gave together by a K that is their number.

    Then these are the micro-batches of a window, one of each loader, and not the tasks of one micro-batch.
    """
    if any(one.given.calls & other.given.calls for one, other in combinations(records, 2)):
        return False
    share = 1 / len(records)
    return all(
        any(names_steps(f.origins) and f.value is not None and _same(f.value, share) for f in term.factors)
        for record in records
        for term in record.event.terms
    )


def _goes_on(own: Sequence[Record], record: Record) -> bool:
    """Whether a backward is over the micro-batch of its ``own``, which came before it."""
    if any(one.given.calls & record.given.calls for one in own):
        return True
    if not record.given.calls:
        # No model was called on data again. Programs show what was called, however long ago.
        return record.program is None and own[0].program is None and len(own[0].given.calls) == 1
    together = all(one.given.loaders and one.given.draw.number == record.given.draw.number for one in own)
    return (
        together
        and bool(record.given.loaders)
        and all(one.given.loaders.isdisjoint(record.given.loaders) for one in own)
    )

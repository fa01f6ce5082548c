"""What losses were presumed to have counted of their targets, and what they really did: asked when a step waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradcheck_accum.engine.late_counts import SURE, LateCounts
from gradcheck_accum.ledger.events import Backward, Reason
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.vectors.inner_products import numbers

COUNTED_LATE = Reason(
    f"a loss ignored some of its targets, after at least {SURE} that had counted all of theirs, and its gradient was "
    "added to the others' before that was known: from here on, each loss is asked before its backward; with "
    "CUDA_LAUNCH_BLOCKING=1, all are"
)


def put_right(records: Iterable[Record], counts: LateCounts) -> dict[Backward, Backward]:
    """The backwards of ``records`` whose losses ignored targets, as they are with what these really counted.

    The gradients of such a backward are in one sum with those before it, so its record is marked as changed.
    """
    asked = [(record, record.presumed) for record in records if record.presumed is not None]
    found: dict[Backward, Backward] = {}
    for (record, presumed), count in zip(asked, numbers([p.counted for _, p in asked]), strict=True):
        record.presumed = None
        if count == presumed.most:
            continue
        counts.has_ignored()
        event = record.event
        terms = tuple(replace(t, units=count) if t.name == presumed.name else t for t in event.terms)
        record.event = found[event] = replace(event, terms=terms)
        record.changed = record.changed or COUNTED_LATE
    return found

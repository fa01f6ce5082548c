"""Simplifies a variant on which an engine is wrong, as far as it still shows the same problem.

Not done by Hypothesis, which handles one failure at a time: a campaign keeps the simplest variant of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from gradcheck_accum.fuzz.variants import Objective, Variant

Shows = Callable[[Variant], bool]

_PLANTED = frozenset({"mutations", "k", "rows", "units", "loss", "model"})
"""Fields that are kept, or shrunk separately."""

_OF_A_REJECTION = frozenset({"rejects", "outliers"})


def plainest(variant: Variant, shows: Shows) -> Variant:
    """``variant`` without all that is not needed; ``shows`` says whether a variant still shows the same problem."""
    for change in _plainer():
        candidate = replace(variant, **_in(variant, change))
        if candidate != variant and shows(candidate):
            variant = candidate
    variant = next((shorter for shorter in _shorter(variant) if shows(shorter)), variant)
    lighter = _lighter(variant)
    return lighter if lighter != variant and shows(lighter) else variant


def _plainer() -> Iterator[dict[str, Any]]:
    """Changes that simplify a variant or leave it unchanged: first all at once, then one by one."""
    plain: dict[str, Any] = {f.name: f.default for f in fields(Variant) if f.name not in _PLANTED}
    yield {name: default for name, default in plain.items() if name not in ("objective", "boundary", "scale", "flush")}
    yield {name: plain[name] for name in _OF_A_REJECTION}
    for name, default in plain.items():
        if name not in _OF_A_REJECTION:
            yield {name: default}
    for part in fields(Objective):
        # A single loss has no mean.
        yield {"objective": {"terms": 1, "mean": None} if part.name == "terms" else {part.name: part.default}}


def _in(variant: Variant, change: dict[str, Any]) -> dict[str, Any]:
    """``change``; a change to part of the objective keeps the rest of it."""
    part = change.get("objective")
    return {**change, "objective": replace(variant.objective, **part)} if isinstance(part, dict) else change


def _shorter(variant: Variant) -> Iterator[Variant]:
    """The same with fewer micro-batches, the fewest first, if they are all alike."""
    if not variant.outliers and _is_even(variant):
        for count in range(2, variant.count):
            yield replace(variant, rows=variant.rows[:count], units=variant.units[:count])


def _lighter(variant: Variant) -> Variant:
    """The same with one row in each micro-batch, if they are all alike."""
    if not _is_even(variant):
        return variant
    units = tuple(n // variant.rows[0] for n in variant.units)
    return replace(variant, rows=(1,) * variant.count, units=units)


def _is_even(variant: Variant) -> bool:
    return len(set(zip(variant.rows, variant.units, strict=True))) == 1

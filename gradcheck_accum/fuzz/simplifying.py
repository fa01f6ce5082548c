"""Makes a variant on which an engine parts from the truth as plain as it gets while it shows the same.

Done here and not by Hypothesis, which knows one failure at a time: a campaign keeps the plainest variant of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from gradcheck_accum.fuzz.variants import Objective, Variant

Shows = Callable[[Variant], bool]

_PLANTED = frozenset({"mutations", "k", "rows", "units", "loss", "model"})
"""Fields that are left as they are, or are made smaller in a way of their own."""

_OF_A_REJECTION = frozenset({"rejects", "outliers"})


def plainest(variant: Variant, shows: Shows) -> Variant:
    """``variant`` without what it can do without; ``shows`` says whether one still shows what this one does."""
    for change in _plainer(variant):
        candidate = replace(variant, **_in(variant, change))
        if candidate != variant and shows(candidate):
            variant = candidate
    return variant


def _plainer(variant: Variant) -> Iterator[dict[str, Any]]:
    """Changes that make a variant plainer, or leave it as it is: first all at once, then one by one."""
    plain: dict[str, Any] = {f.name: f.default for f in fields(Variant) if f.name not in _PLANTED}
    yield {name: default for name, default in plain.items() if name not in ("objective", "boundary", "scale", "flush")}
    yield {name: plain[name] for name in _OF_A_REJECTION}
    for name, default in plain.items():
        if name not in _OF_A_REJECTION:
            yield {name: default}
    for part in fields(Objective):
        # The mean of a single loss is none.
        yield {"objective": {"terms": 1, "mean": None} if part.name == "terms" else {part.name: part.default}}
    if not variant.outliers:
        yield from _smaller(variant)


def _in(variant: Variant, change: dict[str, Any]) -> dict[str, Any]:
    """``change``, where a part of the objective is changed, with the rest of it as it is."""
    part = change.get("objective")
    return {**change, "objective": replace(variant.objective, **part)} if isinstance(part, dict) else change


def _smaller(variant: Variant) -> Iterator[dict[str, Any]]:
    """The same with one row in each micro-batch, and with fewer micro-batches, where they are all alike."""
    if not variant.rows or len(set(zip(variant.rows, variant.units, strict=True))) > 1:
        return
    rows, units = variant.rows[0], variant.units[0]
    for count in range(2, variant.count):
        yield {"rows": (rows,) * count, "units": (units,) * count}
    if rows > 1:
        yield {"rows": (1,) * variant.count, "units": (units // rows,) * variant.count}

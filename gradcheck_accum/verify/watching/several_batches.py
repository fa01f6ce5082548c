"""Whether one backward got the losses of several batches, added up, or one loss of several terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from gradcheck_accum.engine.calls_apart import turns
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.rows_in_turn import rows_in_turn
from gradcheck_accum.ledger.events import Factor, Operation, Reduction, Term, product_of
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import is_length, is_total, is_written_out


def has_a_term_per_batch(reading: LossReading, drawn: int, program: Callable[[], Program | None]) -> bool:
    """Whether a loss has one of its terms for each of several batches, all of a kind, and is no mean of them.

    ``drawn`` is how many batches one data loader gave for it, of which some may wait for their turn: what counts is how
    often the loop ran a module on other data, which ``program``, asked only where there are such terms, tells; where
    nothing is recorded, into how many parts the loss's graph falls. Terms that reach parameters alone are of no batch.
    """
    of_data = {term.kind for term in reading.terms if term.reduction is not Reduction.NONE}
    sums = [
        (number, kind)
        for kind, (number, total) in reading.kinds.items()
        if kind in of_data and number > 1 and total is not None and not _is_mean(reading, kind, number, total)
    ]
    if not sums:
        return False
    numbers = [number for number, _ in sums]
    known = program()
    if known is None:
        return any(number == drawn and _parts(reading.of_kind(kind)) >= drawn for number, kind in sums)
    if not any(isinstance(function, nn.Module) for function, *_ in known.steps):
        return drawn in numbers
    return any(number in numbers for number in turns(known, by_place=drawn not in numbers))


def is_of_one_batch(reading: LossReading, program: Callable[[], Program | None]) -> bool:
    """Whether all losses of data are known to be those of one batch.

    They are if no two are of a kind, or if those of a kind come from one forward: their graph is one, and no module ran
    again on data of its own. A second loss of another kind is another objective's term.
    """
    of_data = {term.kind for term in reading.terms if term.reduction is not Reduction.NONE}
    several = [kind for kind, (number, _) in reading.kinds.items() if kind in of_data and number > 1]
    if not several:
        return True
    if any(_parts(reading.of_kind(kind)) > 1 for kind in several):
        return False
    known = program()
    return known is None or not any(turns(known, by_place=False))


def are_of_samples_one_by_one(drawn: int, program: Program | None) -> bool:
    """Whether a model was given one sample at a time, and not the batches of one that data loaders gave."""
    return program is not None and program.one_by_one and drawn < 2


def with_losses_of_samples(reading: LossReading, program: Callable[[], Program | None]) -> LossReading:
    """The reading, with the terms noted that are the losses of several samples, each of data of its own.

    All of a kind have the same factors, and there are as many as one place has called a module; where nothing is
    recorded, as parts that the loss's graph falls into. Others are as many as the rows that the loop has taken one by
    one out of what a model gave.
    """
    several = {kind: number for kind, (number, _) in reading.kinds.items() if number > 1 and _are_alike(reading, kind)}
    if not several:
        return reading
    known = program()
    if known is None:
        called = {kind for kind, n in several.items() if _parts(reading.of_kind(kind)) == n}
        taken = set[str]()
    else:
        found, rows = {*turns(known, by_place=True)}, rows_in_turn(known)
        called = {kind for kind, n in several.items() if n in found}
        taken = {kind for kind, n in several.items() if n == rows} - called
    return replace(
        reading,
        terms=tuple(
            replace(t, samples=several[t.kind])
            if t.kind in called
            else replace(t, in_turn=several[t.kind])
            if t.kind in taken
            else t
            for t in reading.terms
        ),
    )


def _are_alike(reading: LossReading, kind: str) -> bool:
    """Whether the terms of a kind have data, and the same factors."""
    terms = [term for term in reading.terms if term.kind == kind]

    def kind_of(term: Term) -> object:
        return term.reduction, term.units is None, product_of(term.factors), len(term.factors)

    first = terms[0]
    is_of_data = first.reduction is not Reduction.NONE and (first.units is not None or reading.is_of_numbers(first))
    return is_of_data and product_of(first.factors) is not None and len({kind_of(term) for term in terms}) == 1


def _is_mean(reading: LossReading, kind: str, number: int, total: float) -> bool:
    """Whether the terms of a kind add up to 1, or are divided by their number, whatever else they are multiplied by.

    If they are divided by it twice, and once by the length of a list or by a number with a name, one of the two may be
    too many. What was summed over a list divides a sum.
    """
    same = Same()
    if all(any(is_total(o) for f in t.factors for o in f.origins) for t in reading.terms if t.kind == kind):
        return True
    every = [[f for f in t.factors if f.value and same(f.value * number, 1.0)] for t in reading.terms if t.kind == kind]
    if all(len(by) > 1 and any(map(_may_be_their_number, by)) for by in every):
        return False
    return same(total, 1.0) or any(every)


def _may_be_their_number(factor: Factor) -> bool:
    """Whether a factor divides by the length of a list, or by a number with a name."""
    named = factor.operation is Operation.DIVIDE and factor.origins and not is_written_out(factor.origins)
    return bool(named) or any(map(is_length, factor.origins))


def _parts(nodes: Iterable[Any]) -> int:
    """How many parts a graph falls into where it is cut at the weights: terms of one batch come from one forward."""
    part_of: dict[Any, int] = {}
    joined: list[int] = []

    def root(part: int) -> int:
        while joined[part] != part:
            part = joined[part]
        return part

    for node in nodes:
        own = len(joined)
        joined.append(own)
        pending = [node]
        while pending:
            above = pending.pop()
            if above is None or "AccumulateGrad" in above.name():
                continue
            if above in part_of:
                joined[root(part_of[above])] = root(own)
                continue
            part_of[above] = own
            pending += [following for following, _ in above.next_functions]
    return len({root(part) for part in range(len(joined))})

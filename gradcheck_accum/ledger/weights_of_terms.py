"""Terms that are divided by a number of K by themselves, and by another with the whole loss.

The first may be a weight that equals 1/K (of a penalty, one over the number of batches), or divide by K a second time.
With a sum, which is not scaled, the second belongs to the objective, and the term is right either way. With a mean,
it is unknown. The same number twice is a mistake as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.ledger.reading import SeriesReading, is_right, read_as_weights
from gradcheck_accum.ledger.roles import Column, Evidence, Source

_Term = TypeVar("_Term")


def with_weights_of_terms(
    read: Mapping[_Term, SeriesReading],
    evidences: Mapping[_Term, Evidence],
    together: Mapping[_Term, Sequence[_Term]],
    coefficient: float | None,
    *,
    in_a_run: bool,
) -> dict[_Term, SeriesReading]:
    """The readings of the terms of a loss, with those replaced, or given up, whose own number of K may be a weight.

    ``together`` has for each term those that share its backward; ``coefficient`` is the stated one of the whole loss.
    """
    right = {one for one, reading in read.items() if is_right(reading, evidences[one])}
    found = dict(read)
    for one, reading in read.items():
        if one in right or reading.is_dark:
            continue
        evidence = evidences[one]
        columns = evidence.columns()
        weights = _other_steps_of_a_term(evidence, columns)
        if not weights:
            continue
        as_weights = read_as_weights(evidence, columns, weights, coefficient, in_a_run=in_a_run)
        if not is_right(as_weights, evidence):
            continue
        sums = [read[other] for other in together[one] if other in right and read[other].kind is Reduction.SUM]
        if any(other.objective_by & as_weights.scaled_by for other in sums):
            found[one] = as_weights
        else:
            reading.give_up(_of_two_numbers(evidence.points[0].term.name, weights[0])).is_of_one_term = True
    return found


def _other_steps_of_a_term(evidence: Evidence, columns: Iterable[Column]) -> list[Column]:
    """The divisions of one of several terms by a number that is K by its source, but another one than the whole loss's.

    Such a term may have a weight that equals 1/K (one over the number of batches, say), or be divided by K twice.
    """
    by_steps = [
        column
        for column in columns
        if column.source is Source.STEPS
        and column.divides
        and not column.scales_nothing
        and evidence.is_constant(column)
    ]
    of_whole = frozenset[str]().union(*(f.origins for c in by_steps if c.whole for f in c.factors))
    own = [column for column in by_steps if not column.whole]
    if not of_whole or any(not f.origins.isdisjoint(of_whole) for column in own for f in column.factors):
        return []
    return own


def _of_two_numbers(name: str, column: Column) -> str:
    """The note on a term that is divided by two numbers, each of which is K by its source."""
    where = column.factors[0].where
    return (
        f"{name} is divided by {1 / column.values[0]:.6g}{f' (line {where.line})' if where else ''}, and again with "
        "the whole loss by another number which equals it: whether the first is its weight, or scales it a second "
        "time, is unknown: compare with a run on large batches"
    )

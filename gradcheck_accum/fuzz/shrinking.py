"""Shrinks a failing case: special features first, then to the smallest N, micro-batch and K that fail in the same way.

Not done by Hypothesis, whose shrinking has a time limit: the result of a seed is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from gradcheck_accum.fuzz.cases import AccumCase

Fails = Callable[[AccumCase], bool]


def order(case: AccumCase) -> tuple[object, ...]:
    """A sort key of cases, simplest first."""
    oddities = (len(case.ignored), case.epochs, case.dtype != "float32")
    return (case.samples, case.batch_size, case.accumulation_steps, *oddities, case.ignored, case.seed)


def smallest(case: AccumCase, fails: Fails) -> AccumCase:
    """The smallest case that fails as ``case`` does; ``fails`` says whether one does."""
    case = _plain(case, fails)
    case = next((smaller for smaller in _smaller(case) if fails(smaller)), case)
    return _with_more_targets(case, fails)


def _plain(case: AccumCase, fails: Fails) -> AccumCase:
    """Without the special features that the failure does not need."""
    for change in ({"ignored": ()}, {"epochs": 1}, {"dtype": "float32"}, {"seed": 0}):
        plainer = replace(case, **change)
        if plainer != case and fails(plainer):
            case = plainer
    return case


def _smaller(case: AccumCase) -> Iterator[AccumCase]:
    """The cases of no larger N, micro-batch and K, the smallest first."""
    sizes = product(range(1, case.samples + 1), range(1, case.batch_size + 1), range(1, case.accumulation_steps + 1))
    for samples, batch_size, steps in sizes:
        ignored = tuple(sample for sample in case.ignored if sample < samples)
        smaller = replace(case, samples=samples, batch_size=batch_size, accumulation_steps=steps, ignored=ignored)
        if smaller != case and batch_size <= samples and every_micro_batch_counts(smaller):
            yield smaller


def _with_more_targets(case: AccumCase, fails: Fails) -> AccumCase:
    """With as few ignored targets as the failure needs."""
    for sample in case.ignored:
        fuller = replace(case, ignored=tuple(other for other in case.ignored if other != sample))
        if fails(fuller):
            case = fuller
    return case


def every_micro_batch_counts(case: AccumCase) -> bool:
    """Whether every micro-batch has a target that is not ignored: the mean over none is NaN."""
    starts = range(0, case.samples, case.batch_size)
    return all(set(range(start, min(start + case.batch_size, case.samples))) - set(case.ignored) for start in starts)

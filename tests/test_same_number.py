"""One notion of the same number: what is rounding depends on the dtype that it was read in, and on nothing else."""

from __future__ import annotations

import pytest
import torch

from gradcheck_accum.ledger.events import Backward, Event, Factor, Operation, Reduction, Step, Term, Trace, ZeroGrad
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.window_length import usual_steps

MODEL = frozenset({"model"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_a_dtype_rounds_is_the_same_number(dtype: torch.dtype) -> None:
    same = Same(torch.finfo(dtype).eps / 2)
    for count in range(2, 40):
        third = torch.tensor(1.0, dtype=dtype) / count
        assert same(float(third), 1.0 / count)
        assert same(float(third * count), 1.0)


def test_numbers_that_a_source_has_are_not_the_same_for_being_near() -> None:
    same = Same()
    assert same(1 / 3, 1.0 / 3) and same(0.0, 1e-15)
    assert not same(0.333, 1 / 3)
    assert not same(1.005, 1.0)


def at(line: int) -> Location:
    return Location("train.py", line)


def ledger_of(lengths: list[int], factor: float, precision: float) -> tuple[int | None, int]:
    events: list[Event] = []
    number = 0
    for length in lengths:
        for _ in range(length):
            term = Term("MseLoss", Reduction.MEAN, 5.0, (Factor(factor, Operation.MULTIPLY),), 5.0)
            events.append(Backward(where=at(2), micro_batch=number, stores=MODEL, terms=(term,)))
            number += 1
        events += [Step(where=at(3), optimizer="SGD", stores=MODEL), ZeroGrad(where=at(4), stores=MODEL)]
    ledger = fold(Trace(tuple(events), precision=precision))
    return usual_steps(ledger.windows, ledger.same), len(ledger.windows)


@pytest.mark.parametrize(
    ("factor", "precision", "steps"),
    [
        (1 / 3, 2.0**-24, 3),  # the windows of three are made whole
        (0.3359375, 2.0**-9, 3),  # as 1/3 may be in bfloat16, after another rounding
        (0.335, 2.0**-24, 5),  # another number in float32: the windows of five hold the most micro-batches
    ],
)
def test_losses_are_made_whole_within_the_precision_of_the_run(factor: float, precision: float, steps: int) -> None:
    assert ledger_of([3, 5, 2, 5], factor, precision) == (steps, 4)

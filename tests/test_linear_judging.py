"""What is left to do when a loop has ended grows as its windows do, and not as their square: operations are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.ledger.events import Backward, Event, Factor, Operation, Reduction, Step, Term, Trace, ZeroGrad
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import joined
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.judge.run import judge_ranks
from gradcheck_accum.verify.session import Observation
from gradcheck_accum.verify.stack.without_us import PACKAGE

FEW = 12
"""Windows of the shortest of three runs; the longest has four times as many."""


def operations(work: Callable[[], object]) -> int:
    """How many instructions of this package's own code ``work`` runs."""
    count = 0

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return ran

    def ran(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return ran

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def is_linear(work: Callable[[int], object]) -> bool:
    """Whether twice as many more windows take twice as many more instructions; what all runs need does not count."""
    few, more, many = (operations(partial(work, windows)) for windows in (FEW, 2 * FEW, 4 * FEW))
    return many - more <= 2 * (more - few) * 1.03


def observed(*, divisor: float, left_over: bool, cleared_between: bool) -> Observation:
    """A loop of windows of 3, the last of every four of 2 where some is ``left_over``."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
    with observe(reference="ledger") as observation:
        for window in range(4 * FEW):
            for i in range(2 if left_over and window % 4 == 3 else 3):
                (cross_entropy(model(x), y) / divisor).backward()
                if cleared_between and i == 0:
                    optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
    return observation


@pytest.mark.parametrize(
    ("divisor", "left_over", "cleared_between"),
    [(3, False, False), (1, False, False), (3, True, False), (2, False, False), (3, False, True)],
    ids=["right", "undivided", "remainders", "off by one", "cleared between"],
)
def test_judging_takes_as_long_for_a_window_of_many_as_of_few(
    divisor: float, left_over: bool, cleared_between: bool
) -> None:
    observation = observed(divisor=divisor, left_over=left_over, cleared_between=cleared_between)
    seen = observation.seen()
    steps = [position for position, event in enumerate(seen.trace.events, 1) if isinstance(event, Step)]

    def judged(windows: int) -> None:
        trace = replace(seen.trace, events=seen.trace.events[: steps[windows - 1]])
        judge_ranks([replace(seen, trace=trace, measured=seen.measured[:windows])], "the loop", observation.options)

    judged(1)  # what is imported and compiled at first is no matter of windows
    assert is_linear(judged)


def rank(windows: int) -> Trace:
    """A rank's windows of 3 micro-batches, averaged over 2 ranks."""
    events: list[Event] = []
    stores = frozenset({"model"})
    term = Term("loss", Reduction.MEAN, 5, (Factor(1 / 3, Operation.DIVIDE),), rows=5)
    for batch in range(3 * windows):
        where = Location("train.py", 7)
        events.append(Backward(where=where, micro_batch=batch, stores=stores, terms=(term,), synced=True, ranks=2))
        if batch % 3 == 2:
            events.append(Step(where=Location("train.py", 9), optimizer="SGD", stores=stores))
            events.append(ZeroGrad(where=Location("train.py", 10), stores=stores))
    return Trace(tuple(events))


def test_joining_ranks_takes_as_long_for_a_window_of_many_as_of_few() -> None:
    ledgers = {windows: [fold(rank(windows)) for _ in range(2)] for windows in (FEW, 2 * FEW, 4 * FEW)}
    assert len(joined(ledgers[FEW])[0].windows[-1].elsewhere) == 1
    assert is_linear(lambda windows: joined(ledgers[windows]))

"""What several ranks are to the leader of a comparison: one run, whose step is what all of them do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.comparing.lockstep import Lockstep
from gradcheck_accum.comparing.messages import Arrival, GradientDistance, Numbers, Order, Over
from gradcheck_accum.comparing.ranks import Ranks, worst_of
from gradcheck_accum.comparing.rows import Rows


def rows(names: str) -> Rows:
    return Rows({(0, "x"): Counter(name.encode() for name in names)}, count=len(names))


def step(names: str, *, micro_batches: int = 3, optimizer: str = "SGD", weights: bytes = b"w") -> Arrival:
    return Arrival(0, optimizer, "train.py", 7, micro_batches, rows(names), (0.3,), (), weights, ((4, 3),))


def end(names: str = "") -> Over:
    return Over({"SGD": rows(names)}, ())


NUMBERS = Numbers(GradientDistance(0.0, 1e-6, 1.0), None, None, None)


class Scripted:
    """A rank that comes to what it is given, one after the other, as soon as it is led on; and then to nothing."""

    def __init__(self, *comes_to: Arrival | Over | None, answer: Any = NUMBERS) -> None:
        self.comes_to = deque(comes_to)
        self.orders: list[Order] = []
        self.left = False
        self._answer = answer

    def order(self, order: Order, path: str = "") -> None:
        self.orders.append(order)

    def answer(self) -> Any:
        return None if self.orders[-1] is Order.PUBLISH else self._answer

    def leave(self) -> None:
        self.left = True


def together(*ranks: Scripted) -> Ranks:
    def next_of(awaited: Sequence[int], patience: float | None) -> tuple[int, Any] | None:
        for rank in reversed(awaited):
            if ranks[rank].comes_to:
                return rank, ranks[rank].comes_to.popleft()
        assert patience is not None, "nobody would ever come"
        return None

    return Ranks(ranks, next_of, patience=0.1)


def test_the_data_of_a_step_is_that_of_all_ranks() -> None:
    found = together(Scripted(step("abc")), Scripted(step("de", micro_batches=2))).receive()
    assert isinstance(found, Arrival)
    assert (found.micro_batches, found.rows, found.weights) == (5, rows("abcde"), b"w")
    assert [(part.micro_batches, part.rows) for part in found.parts] == [(3, rows("abc")), (2, rows("de"))]


def test_a_step_is_as_far_off_as_its_worst_rank_and_rounded_as_all_of_them() -> None:
    def apart(error: float | None, allowed: float) -> Numbers:
        return Numbers(GradientDistance(error, allowed, 1.0), None, None, None)

    worst = worst_of([apart(0.1, 3e-6), apart(0.7, 1e-6), apart(0.2, 2e-6)])
    assert (worst.used.error, worst.used.allowed) == (0.7, pytest.approx(2e-6))
    assert worst_of([apart(0.1, 1e-6), apart(None, 1e-6)]).used.error is None


def test_where_one_rank_is_gone_the_others_are_led_no_more() -> None:
    first, second = Scripted(step("abc")), Scripted(None)
    assert together(first, second).receive() is None
    assert first.left


def test_a_rank_that_makes_no_step_where_another_does_is_not_waited_for_for_ever() -> None:
    first, second = Scripted(step("abc")), Scripted()
    run = together(first, second)
    assert run.receive() is None
    assert run.failure == "its ranks cannot be compared step by step: rank 1 makes no step where rank 0 makes one"
    assert first.left
    assert second.left


def test_ranks_that_step_different_optimizers_at_once_are_not_led() -> None:
    run = together(Scripted(step("abc")), Scripted(step("de", optimizer="Adam")))
    assert run.receive() is None
    assert run.failure.endswith("its ranks step different optimizers at once (Adam and SGD)")


def test_a_rank_that_has_ended_leaves_the_steps_to_the_others() -> None:
    first, second = Scripted(step("abc"), step("fg"), end("h")), Scripted(step("de"), end("i"))
    run = together(first, second)
    run.receive()
    run.tell(Order.GO)
    found = run.receive()
    assert isinstance(found, Arrival)
    assert (found.rows, found.ranks) == (rows("fg"), 1)
    run.tell(Order.GO)
    assert second.orders == [Order.GO]
    assert run.receive() == Over({"SGD": rows("hi")}, ())


def test_ranks_that_share_the_data_out_otherwise_make_the_same_step(tmp_path: Path) -> None:
    def run(first: str, second: str, micro_batches: int) -> Ranks:
        each = (Scripted(step(own, micro_batches=micro_batches), end()) for own in (first, second))
        return together(*each)

    lockstep = Lockstep({0: run("abc", "def", 3), 1: run("ace", "bdf", 1)}, tmp_path, is_free=False)
    lockstep.lead()
    assert lockstep.reference == 1
    (met,) = lockstep.courses[0].met
    assert met.numbers == NUMBERS
    assert met.same_weights
    assert not met.same_losses  # each rank has read those of other rows


def test_one_rank_is_the_reference_of_several_with_as_many_micro_batches(tmp_path: Path) -> None:
    several = together(Scripted(step("abc"), end()), Scripted(step("def"), end()))

    class Alone(Scripted):
        def receive(self) -> Any:
            return self.comes_to.popleft()

        def tell(self, order: Order, path: str = "") -> Any:
            self.order(order, path)

    lockstep = Lockstep({0: several, 1: Alone(step("abcdef", micro_batches=6), end())}, tmp_path, is_free=False)
    lockstep.lead()
    assert lockstep.reference == 1
    assert [met.numbers for met in lockstep.courses[0].met] == [NUMBERS]


def test_where_one_run_is_gone_no_other_is_led_to_its_end(tmp_path: Path) -> None:
    reference = Scripted(step("abc"), step("def"), step("ghi"))
    goes = together(Scripted(step("abcj", micro_batches=9), None), Scripted(step("", micro_batches=9)))
    runs = {0: together(reference, Scripted(step("j"), step("k"), step("l"))), 1: goes}
    lockstep = Lockstep(runs, tmp_path, is_free=False)
    lockstep.lead()
    assert lockstep.reference == 0
    assert len(lockstep.arrivals[0]) == 2
    assert list(reference.comes_to) == [step("ghi")]

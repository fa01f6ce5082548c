"""The order in which the runs of a comparison are led: what each receives at its steps, and who waits for whom."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

from gradcheck_accum.comparing.lockstep import Lockstep
from gradcheck_accum.comparing.messages import Arrival, GradientDistance, Numbers, Order, Over
from gradcheck_accum.comparing.rows import Rows

NUMBERS = Numbers(GradientDistance(0.0, 1e-6, 1.0), None, None, None)


class Told:
    """A run that steps after each of these rows of data, and writes down when it is heard and what it receives."""

    def __init__(self, name: str, micro_batches: int, *steps: str, log: list[str]) -> None:
        self._name, self._log = name, log
        self._comes_to = deque([*(_step(own, micro_batches) for own in steps), Over({}, ())])

    def receive(self) -> Arrival | Over | None:
        self._log.append(f"hear {self._name}")
        return self._comes_to.popleft()

    def tell(self, order: Order, path: str = "") -> Any:
        self._log.append(f"{self._name}: {order.value}")
        return NUMBERS if order in (Order.BOTH, Order.COMPARE) else None


def _step(names: str, micro_batches: int) -> Arrival:
    rows = Rows({(0, "x"): Counter(name.encode() for name in names)}, count=len(names))
    return Arrival(0, "SGD", "train.py", 7, micro_batches, rows, (0.3,), (), b"w", ((4, 3),))


def led(folder: Path, many: list[str], one: list[str], *, is_free: bool = False) -> tuple[list[str], Lockstep]:
    """What happened while a run in many micro-batches was compared with one in a single micro-batch a step."""
    log: list[str] = []
    runs = {0: Told("many", 3, *many, log=log), 1: Told("one", 1, *one, log=log)}
    lockstep = Lockstep(runs, folder, is_free=is_free)
    lockstep.lead()
    return log, lockstep


def test_after_a_step_on_the_same_data_the_reference_publishes_its_next_before_the_others_come(tmp_path: Path) -> None:
    log, lockstep = led(tmp_path, ["abc", "def", "ghi"], ["abc", "def", "ghi"])
    assert log == [
        *("hear many", "hear one", "one: publish", "many: both"),
        *("hear one", "one: publish", "hear many", "many: both"),
        *("hear one", "one: publish", "hear many", "many: both"),
        *("hear one", "hear many"),
    ]
    assert len(lockstep.courses[0].met) == 3


def test_a_step_that_no_other_run_has_met_is_published_only_when_it_is_needed(tmp_path: Path) -> None:
    # The steps after abc and abcd are cut from the same data: they meet after abcdef.
    log, lockstep = led(tmp_path, ["abcd", "ef"], ["abc", "def"])
    assert log == [
        *("hear many", "hear one", "one: go"),
        *("hear one", "many: go", "hear many", "one: publish", "many: settle"),
        *("hear one", "hear many"),
    ]
    assert [cut.mine for cut in lockstep.courses[0].cuts] == [(4, 2)]


def test_every_run_is_told_to_go_on_just_once_at_each_step(tmp_path: Path) -> None:
    for is_free in (False, True):
        steps = (["abc", "de", "fg", "hij"], ["abc", "defg", "hij"])
        log, _ = led(tmp_path, *steps, is_free=is_free)
        for name, own in zip(("many", "one"), steps, strict=True):
            assert sum(event.startswith(f"{name}: ") for event in log) == len(own), log


def test_the_reference_publishes_nothing_when_the_others_are_on_their_own(tmp_path: Path) -> None:
    log, _ = led(tmp_path, ["abc", "xyz", "uvw"], ["abc", "def", "ghi", "jkl"])
    # The second was expected to be met; from there on the data differs.
    assert [event for event in log if event.startswith("one: ")] == [
        "one: publish",
        "one: publish",
        "one: go",
        "one: go",
    ]
    assert [event for event in log if event.startswith("many: ")] == ["many: both", "many: alone"]

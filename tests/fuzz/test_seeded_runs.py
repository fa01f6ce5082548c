"""Trying a loop of one's own: a seed decides everything, and the smallest failing case is found without a clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import InMemoryExampleDatabase
from torch import nn

from gradcheck_accum.fuzz import AccumCase, fuzz_loop
from gradcheck_accum.fuzz.shrinking import smallest
from gradcheck_accum.results.fuzzing import LoopTrial


def divides_by_k(model: nn.Module, loader: Any, optimizer: Any, criterion: Any, accumulation_steps: int) -> None:
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def told(trial: LoopTrial) -> tuple[object, ...]:
    return trial.outcomes, [(failure.case, failure.what) for failure in trial.failures]


def test_a_slow_machine_tries_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fuzz_loop(divides_by_k, examples=30, random_seed=3)
    assert usual.outcomes.total() == 30
    # Eleven seconds pass between two looks at the clock.
    monkeypatch.setattr("time.monotonic", itertools.count(step=11).__next__)
    monkeypatch.setattr("time.perf_counter", itertools.count(step=11.0).__next__)
    assert told(fuzz_loop(divides_by_k, examples=30, random_seed=3)) == told(usual)


@pytest.fixture
def database() -> Any:
    kept, profile = InMemoryExampleDatabase(), settings.get_current_profile_name()
    settings.register_profile("keeps", derandomize=False, database=kept, max_examples=30)
    settings.load_profile("keeps")
    yield kept
    settings.load_profile(profile)


def counting(loop: Callable[..., None], seen: list[tuple[int, int]]) -> Callable[..., None]:
    def counted(model: Any, loader: Any, optimizer: Any, criterion: Any, accumulation_steps: int) -> None:
        seen.append((len(loader.dataset), accumulation_steps))
        loop(model, loader, optimizer, criterion, accumulation_steps)

    return counted


def test_what_failed_before_is_tried_first(database: InMemoryExampleDatabase) -> None:
    fuzz_loop(divides_by_k, target="train.py::loop")
    saved = set(itertools.chain.from_iterable(database.data.values()))
    assert any(b'"samples": 1,' in case and b'"accumulation_steps": 2' in case for case in saved)

    seen: list[tuple[int, int]] = []
    fuzz_loop(counting(divides_by_k, seen), target="train.py::loop")
    assert seen[0] == (1, 2)

    # Once it is right, there is nothing to keep.
    fuzz_loop(lambda model: None, target="train.py::loop")
    kept = set(itertools.chain.from_iterable(database.data.values()))
    assert not any(b'"samples": 1,' in case and b'"accumulation_steps": 2' in case for case in kept)


def test_a_seed_does_not_look_at_what_failed_before(database: InMemoryExampleDatabase) -> None:
    fresh = told(fuzz_loop(divides_by_k, target="train.py::loop", examples=30, random_seed=3))
    fuzz_loop(divides_by_k, target="train.py::loop")
    assert told(fuzz_loop(divides_by_k, target="train.py::loop", examples=30, random_seed=3)) == fresh


def test_what_another_version_kept_is_passed_over(database: InMemoryExampleDatabase) -> None:
    for saved in (b"\xff", b"[]", b'{"samples": 3}', b'{"ignored": [], "samples": 3, "rows": 2}'):
        database.save(b"gradcheck-accum train.py::loop", saved)
    assert fuzz_loop(divides_by_k, target="train.py::loop").outcomes.total() == 30


CASE = AccumCase(
    samples=11, batch_size=3, accumulation_steps=3, epochs=2, ignored=(0, 3, 4, 9), dtype="float64", seed=40
)


@pytest.mark.parametrize(
    ("fails", "found"),
    [
        (lambda case: True, AccumCase(samples=1, batch_size=1, accumulation_steps=1)),
        (
            lambda case: case.epochs == 2 and case.dtype == "float64",
            AccumCase(samples=1, batch_size=1, accumulation_steps=1, epochs=2, dtype="float64"),
        ),
        # A window of one micro-batch at the end.
        (
            lambda case: -(-case.samples // case.batch_size) % case.accumulation_steps == 1 and case.samples > 1,
            AccumCase(samples=2, batch_size=2, accumulation_steps=2),
        ),
        (
            lambda case: len(case.ignored) >= 2,
            AccumCase(samples=4, batch_size=2, accumulation_steps=1, ignored=(0, 3)),
        ),
        (lambda case: case == CASE, CASE),
    ],
)
def test_the_smallest_case_that_fails_in_the_same_way(fails: Callable[[AccumCase], bool], found: AccumCase) -> None:
    assert smallest(CASE, fails) == found

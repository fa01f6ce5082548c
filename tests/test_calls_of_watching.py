"""What a window of a tiny model costs in addition to PyTorch: how often our code is called, whatever the load."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from tiny_runs import OURS, TinyLoop, calls_of

from gradcheck_accum.engine.tape import ScalingNotes, Tape
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.watching.companion import AtStep

_KNOWN = 12
"""Windows after which a loop is known as well as it will be."""


def heard(monkeypatch: pytest.MonkeyPatch, reference: Any) -> Counter[bool]:
    """How many functions of PyTorch our mode hears of in two windows: those that we call ourselves, and others."""
    found = Counter[bool]()
    for kind in (ScalingNotes, Tape):
        original = kind.__torch_function__

        def told(self: Any, func: Any, *others: Any, original: Any = original, **named: Any) -> Any:
            found[sys._getframe(1).f_code.co_filename.startswith(OURS)] += 1
            return original(self, func, *others, **named)

        monkeypatch.setattr(kind, "__torch_function__", told)
    loop = TinyLoop(3)
    with observe(reference=reference):
        loop(_KNOWN)
        found.clear()
        loop(2)
    return found


@pytest.mark.parametrize("reference", ["ledger", "sketch"])
def test_our_mode_hears_nothing_of_our_own_work(monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    found = heard(monkeypatch, reference)
    assert found[True] == 0 < found[False]


@pytest.mark.parametrize("reference", ["ledger", "sketch"])
@pytest.mark.parametrize("has_hook", [False, True])
def test_our_mode_hears_an_update_only_if_a_hook_of_the_script_may_change_gradients_before_it(
    monkeypatch: pytest.MonkeyPatch, reference: Any, has_hook: bool
) -> None:
    original, names = ScalingNotes.__torch_function__, set[str]()

    def hears(self: Any, func: Any, *others: Any, **named: Any) -> Any:
        names.add(func.__name__)
        return original(self, func, *others, **named)

    monkeypatch.setattr(ScalingNotes, "__torch_function__", hears)
    loop = TinyLoop(3)
    if has_hook:
        loop.optimizer.register_step_pre_hook(lambda *_: None)
    with observe(reference=reference):
        loop(2)
    assert ("add_" in names) is has_hook
    assert "mse_loss" in names or "linear" in names


class Bystander:
    """A companion that only sees to it that losses are recorded."""

    def along(self, tape: Tape) -> AbstractContextManager[None]:
        return nullcontext()

    def before_step(self, step: AtStep) -> None: ...

    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def over(self, left: Mapping[str, Sequence[Record]]) -> None: ...


def test_with_a_companion_our_mode_hears_neither_our_own_work_nor_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    original, names, own = Tape.__torch_function__, set[str](), set[str]()

    def hears(self: Any, func: Any, *others: Any, **named: Any) -> Any:
        is_own = sys._getframe(1).f_code.co_filename.startswith(OURS)
        (own if is_own else names).add(func.__name__)
        return original(self, func, *others, **named)

    monkeypatch.setattr(Tape, "__torch_function__", hears)
    loop = TinyLoop(3)
    with observe(reference="ledger", companion=Bystander()):
        loop(_KNOWN)
        names.clear()
        own.clear()
        loop(2)
    assert not own
    assert "backward" in names
    assert "add_" not in names


def test_what_follows_a_step_that_raised_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    original, names = ScalingNotes.__torch_function__, set[str]()

    def hears(self: Any, func: Any, *others: Any, **named: Any) -> Any:
        names.add(func.__name__)
        return original(self, func, *others, **named)

    monkeypatch.setattr(ScalingNotes, "__torch_function__", hears)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    with observe(reference="ledger"):
        weight.grad = torch.ones(2).to_sparse()
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()
        names.clear()
        torch.nn.Linear(2, 1)(torch.ones(2))
    assert "linear" in names


def test_replays_are_not_heard_either(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is recorded is looked at while it is recorded, which is not much more than the loop itself.
    found = heard(monkeypatch, "both")
    assert found[True] < 2 * found[False]


@pytest.mark.parametrize("reference", ["ledger", "sketch", "both"])
def test_a_window_takes_no_more_work_the_longer_a_run_is(reference: Any) -> None:
    loop = TinyLoop(3)
    with observe(reference=reference):
        loop(_KNOWN)
        early = calls_of(partial(loop, 2))
        loop(150)
        late = calls_of(partial(loop, 2))
    assert late < 1.05 * early

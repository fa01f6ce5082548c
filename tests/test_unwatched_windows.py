"""Windows that `watch(every=n)` does not check: none of our code runs for what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tiny_runs import calls_of_ours
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import gradcheck_accum
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.watching.function_modes import RemovableMode

K, ROWS = 3, 5


class Loop:
    """Windows of three micro-batches, each with as many more functions of PyTorch as are asked for."""

    def __init__(self, functions: int = 0, divisor: float = K) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.functions, self.divisor = functions, divisor

    def window(self) -> None:
        for _ in range(K):
            x = torch.randn(ROWS, 3)
            for _ in range(self.functions):
                x = x * 1.01
            (self.model(x).square().mean() / self.divisor).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("reference", [None, "ledger", "sketch"])
def test_functions_of_pytorch_call_nothing_of_ours_in_windows_that_are_not_watched(reference: Any) -> None:
    found = []
    for functions in (1, 40):
        loop = Loop(functions)
        with gradcheck_accum.watch(every=5, reference=reference):
            # Of five, the last is checked, and watched with the one before it; the step of the third wakes up.
            found.append([calls_of_ours(loop.window) for _ in range(10)])
    few, many = found
    for window in (0, 1, 5, 6):
        assert few[window] == many[window] < 12 * K
    assert many[8] - few[8] >= 39 * K


def test_what_is_wrong_is_seen_by_a_watch_that_has_slept() -> None:
    heard: list[VerifyResult] = []
    loop = Loop(divisor=1.0)
    with gradcheck_accum.watch(every=5, on_deviation=heard.append):
        for _ in range(10):
            loop.window()
    assert [[d.mistake.code for d in told.diagnosis] for told in heard] == [["GA101"], ["GA101"]]
    assert [told.windows[0].grad_norm_ratio for told in heard] == [pytest.approx(K)] * 2


def test_an_optimizer_that_is_made_in_a_window_that_is_not_watched_is_watched_later() -> None:
    heard: list[VerifyResult] = []
    with gradcheck_accum.watch(every=4, on_window=heard.append):
        loop = Loop()
        loop.window()
        assert not loop.model.weight._backward_hooks
        for _ in range(3):
            loop.window()
    assert [(len(told.windows), told.windows[0].micro_batches) for told in heard] == [(1, K)]


class Counted(TorchFunctionMode):
    """A mode of the script's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        # PyTorch insists on its own mode being the outermost here.
        torch.set_default_device(None)


@pytest.mark.parametrize("inside", [nullcontext, Counted, lambda: torch.device("cpu"), default_device])
def test_modes_of_the_script_stay_in_their_order(inside: Callable[[], AbstractContextManager[Any]]) -> None:
    loop, outer = Loop(), Counted()
    before = _get_current_function_mode_stack()
    with outer:
        with gradcheck_accum.watch(every=4):
            asleep = _get_current_function_mode_stack()
            assert [mode for mode in asleep if mode not in before] == [outer]
            for first in range(4):
                # Entered in one window and left in another: asleep or awake.
                for _ in range(first):
                    loop.window()
                with inside():
                    loop.window()
                    loop.window()
                    awake = _get_current_function_mode_stack()
                    assert outer in awake
        assert [mode for mode in _get_current_function_mode_stack() if mode not in before] == [outer]
    assert _get_current_function_mode_stack() == before


def test_a_mode_is_put_back_where_it_was() -> None:
    ours, outer, inner = Counted(), Counted(), Counted()
    before = _get_current_function_mode_stack()
    with outer, RemovableMode(ours) as removable:
        removable.on()
        removable.off()
        with inner:
            removable.on()
            removable.on()
            assert _get_current_function_mode_stack() == [*before, outer, ours, inner]
        assert _get_current_function_mode_stack() == [*before, outer, ours]
    assert _get_current_function_mode_stack() == before


def test_an_error_in_a_window_that_is_not_watched_leaves_no_mode_behind() -> None:
    before = _get_current_function_mode_stack()
    with pytest.raises(RuntimeError, match="of the script"), gradcheck_accum.watch(every=4):
        Loop().window()
        raise RuntimeError("of the script")
    assert _get_current_function_mode_stack() == before

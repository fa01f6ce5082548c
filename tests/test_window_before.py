"""The window before one that `watch(every=n)` checks: watched for its events, its gradients not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gradcheck_accum
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify.vectors.sketch import Sketcher

K, EVERY = 3, 4

Change = Callable[[int, list[nn.Parameter]], None]
"""Called with the number of a window and the parameters."""


def nothing(window: int, parameters: list[nn.Parameter]) -> None:
    """What a right loop does besides."""


class Loop:
    """Windows of three micro-batches, numbered from 0; what it does in each besides is given.

    ``divides`` says of a window whether its losses are divided by K.
    """

    def __init__(
        self,
        *,
        before_step: Change = nothing,
        after_step: Change | None = None,
        after_batch: Callable[[int, int, list[nn.Parameter]], None] | None = None,
        divides: Callable[[int], bool] = lambda window: True,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.before_step, self.after_step, self.after_batch = before_step, after_step, after_batch
        self.divides = divides
        self.window = 0

    def run(self, windows: int) -> None:
        parameters = list(self.model.parameters())
        for _ in range(windows):
            for i in range(K):
                loss = cross_entropy(self.model(torch.randn(5, 3)), torch.randint(0, 2, (5,)))
                (loss / K if self.divides(self.window) else loss).backward()
                if self.after_batch is not None:
                    self.after_batch(self.window, i, parameters)
            self.before_step(self.window, parameters)
            self.optimizer.step()
            if self.after_step is None:
                self.optimizer.zero_grad()
            else:
                self.after_step(self.window, parameters)
            self.window += 1


def watched(run: Callable[[], object], *, reference: Any = None) -> list[VerifyResult]:
    """The results of all checked windows."""
    told: list[VerifyResult] = []
    options: Any = {"every": EVERY, "on_window": told.append, "on_deviation": lambda result: None}
    with gradcheck_accum.watch(reference=reference, **options):
        run()
    return told


def codes(told: list[VerifyResult]) -> list[list[str]]:
    return [[d.mistake.code for d in result.diagnosis] for result in told]


def verdicts(told: list[VerifyResult]) -> list[str]:
    assert all(result.verdict is result.windows[0].verdict for result in told)
    return [result.verdict.value for result in told]


def none(window: int, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def zeroed(window: int, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.data.zero_()


def kept(window: int, parameters: list[nn.Parameter]) -> None:
    """Nothing is cleared."""


def divided(window: int, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.div_(K)


def test_gradients_are_read_in_the_checked_window_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = Sketcher.of

    def of(sketcher: Sketcher, *given: Any) -> torch.Tensor:
        read[-1] += 1
        return original(sketcher, *given)

    monkeypatch.setattr(Sketcher, "of", of)
    loop = Loop()

    def run() -> None:
        for _ in range(2 * EVERY):
            read.append(0)
            loop.run(1)

    assert verdicts(watched(run, reference="sketch")) == ["equivalent"] * 2
    parameters = len(list(loop.model.parameters()))
    checked = (K + 1) * parameters
    # Before the first check nothing is known of the loop: it may change gradients by hand.
    assert read[EVERY - 2] >= checked
    assert read[EVERY:] == [0, 0, 0, checked]


@pytest.mark.parametrize("reference", ["ledger", "sketch", "both"])
@pytest.mark.parametrize("clears", [None, none, zeroed])
def test_however_gradients_are_cleared_a_right_loop_is_equivalent(reference: str, clears: Change | None) -> None:
    told = watched(lambda: Loop(after_step=clears).run(4 * EVERY), reference=reference)
    assert verdicts(told) == ["equivalent"] * 4
    assert codes(told) == [[]] * 4


@pytest.mark.parametrize("reference", ["ledger", "sketch", "both"])
def test_what_was_not_cleared_is_measured_where_it_was_not_read_before(reference: str) -> None:
    """The error is that of what was left: ‖left‖ / ‖g - left‖, from the loop's own gradients."""
    left: dict[int, torch.Tensor] = {}
    errors = []

    def note(window: int, parameters: list[nn.Parameter]) -> None:
        now = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).double()
        if window:
            errors.append(float(left[0].norm() / (now - left[0]).norm()))
        left[0] = now.clone()

    told = watched(lambda: Loop(before_step=note, after_step=kept).run(3 * EVERY), reference=reference)
    assert codes(told) == [["GA203"]] * 3
    expected = [errors[window - 1] for window in (EVERY - 1, 2 * EVERY - 1, 3 * EVERY - 1)]
    assert [result.windows[0].grad_rel_error for result in told] == pytest.approx(expected, rel=1e-4)


def test_clearing_forgotten_before_one_checked_window_alone_is_seen() -> None:
    loop = Loop(after_step=lambda window, parameters: None if window == 2 * EVERY - 2 else none(window, parameters))
    told = watched(lambda: loop.run(3 * EVERY))
    assert codes(told) == [[], ["GA203"], []]
    assert verdicts(told) == ["equivalent", "deviates", "equivalent"]


def test_clearing_in_the_wrong_place_is_seen_though_the_window_before_was_not_read() -> None:
    def clear(window: int, i: int, parameters: list[nn.Parameter]) -> None:
        if i == 1:
            loop.optimizer.zero_grad()

    loop = Loop(after_batch=clear, after_step=kept)
    told = watched(lambda: loop.run(3 * EVERY))
    assert codes(told) == [["GA202"]] * 3
    assert verdicts(told) == ["deviates"] * 3


def test_a_window_that_is_interrupted_once_is_seen_where_it_is_checked() -> None:
    def clear(window: int, i: int, parameters: list[nn.Parameter]) -> None:
        if i == 1 and window == 2 * EVERY - 1:
            loop.optimizer.zero_grad()

    loop = Loop(after_batch=clear)
    told = watched(lambda: loop.run(3 * EVERY))
    assert verdicts(told) == ["equivalent", "deviates", "equivalent"]
    (found,) = told[1].diagnosis
    assert found.mistake.code in ("GA202", "GA303")


def test_one_that_is_interrupted_before_it_is_no_mistake_of_the_checked_one() -> None:
    def clear(window: int, i: int, parameters: list[nn.Parameter]) -> None:
        if i == 1 and window == 2 * EVERY - 2:
            loop.optimizer.zero_grad()

    loop = Loop(after_batch=clear)
    assert verdicts(watched(lambda: loop.run(3 * EVERY))) == ["equivalent"] * 3


def test_a_loop_that_scales_gradients_by_hand_is_judged_every_time() -> None:
    told = watched(lambda: Loop(before_step=divided, divides=lambda window: False).run(4 * EVERY))
    assert verdicts(told) == ["equivalent"] * 4


def test_what_was_done_by_hand_to_gradients_that_were_not_read_decides_nothing() -> None:
    def by_hand(window: int) -> bool:
        return window >= EVERY

    def scale(window: int, parameters: list[nn.Parameter]) -> None:
        if by_hand(window):
            divided(window, parameters)

    loop = Loop(before_step=scale, divides=lambda window: not by_hand(window))
    told = watched(lambda: loop.run(4 * EVERY))
    assert verdicts(told) == ["equivalent", "inconclusive", "equivalent", "equivalent"]
    assert "those of the window before were not read" in told[1].windows[0].reason


def test_what_is_left_and_changed_by_hand_decides_nothing() -> None:
    def decay(window: int, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters if window >= EVERY else ():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)
        if window < EVERY:
            none(window, parameters)

    told = watched(lambda: Loop(after_step=decay).run(2 * EVERY))
    assert verdicts(told) == ["equivalent", "inconclusive"]
    assert told[1].diagnosis == ()


@pytest.mark.parametrize("clears_critic", [True, False])
def test_both_of_two_optimizers_are_checked(clears_critic: bool) -> None:
    """They step one after the other; each window of the second begins while the first is not read, and ends after."""
    torch.manual_seed(0)
    model, critic = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(3 * EVERY):
            for _ in range(K):
                x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
                (cross_entropy(model(x), y) / K).backward()
                (cross_entropy(critic(x), y) / K).backward()
            optimizer.step()
            critic_optimizer.step()
            optimizer.zero_grad()
            if clears_critic:
                critic_optimizer.zero_grad()

    told = watched(run)
    own = {name: [r for r in told if r.windows[0].optimizer == name] for name in ("SGD", "Adam")}
    assert [r.windows[0].verdict.value for r in own["SGD"]] == ["equivalent"] * 3
    expected = ["equivalent" if clears_critic else "deviates"] * 3
    assert [r.windows[0].verdict.value for r in own["Adam"]] == expected
    # What the critic's window begins with is older than what is watched, so that no cause is named.
    assert codes(told) == [[]] * 6


@pytest.mark.parametrize("reference", ["ledger", "both"])
def test_two_optimizers_that_step_on_the_same_gradients(reference: str) -> None:
    torch.manual_seed(0)
    model, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)
    second = torch.optim.Adam(model.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(3 * EVERY):
            for _ in range(K):
                (critic(model(torch.randn(5, 3))).square().mean() / K).backward()
            optimizer.step()
            second.step()
            optimizer.zero_grad()

    told = watched(run, reference=reference)
    assert [result.windows[0].verdict.value for result in told] == ["equivalent"] * 6


def test_gradients_that_a_step_changes_and_that_are_not_cleared_are_not_taken_for_what_was_read() -> None:
    """Nesterov's momentum of PyTorch's foreach kind writes into the gradients that it uses."""
    loop = Loop(after_step=lambda window, parameters: None if window >= EVERY else loop.optimizer.zero_grad())
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01, momentum=0.5, nesterov=True, foreach=True)
    told = watched(lambda: loop.run(2 * EVERY))
    assert verdicts(told)[0] == "equivalent"
    assert verdicts(told)[1] != "equivalent"
    assert told[1].diagnosis == ()


@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("reference", ["ledger", "sketch"])
def test_a_clip_of_gradients_that_are_not_read(clip: str, reference: str) -> None:
    def clipped(window: int, parameters: list[nn.Parameter]) -> None:
        if clip == "norm":
            nn.utils.clip_grad_norm_(parameters, 0.01)
        else:
            nn.utils.clip_grad_value_(parameters, 0.01)

    told = watched(lambda: Loop(before_step=clipped).run(3 * EVERY), reference=reference)
    assert verdicts(told) == ["equivalent"] * 3
    assert all(result.windows[0].verdict is Verdict.EQUIVALENT for result in told)


def test_gradients_that_the_loop_puts_in_itself_are_read_from_then_on() -> None:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = list(model.parameters())
        for window in range(3 * EVERY):
            for i in range(K):
                loss = cross_entropy(model(torch.randn(5, 3)), torch.randint(0, 2, (5,))) / K
                if window < EVERY:
                    loss.backward()
                    continue
                for p, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
                    p.grad = gradient if p.grad is None or not i else p.grad + gradient
            optimizer.step()
            optimizer.zero_grad()

    assert verdicts(watched(run)) == ["equivalent", "inconclusive", "equivalent"]

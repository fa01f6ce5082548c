"""What a report says of that which it did not see: processes that the script started, and loops that add nothing up."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.watching.subprocesses import runs_python

NOTHING = "no backward() and no optimizer.step() was observed"


def _nothing() -> None:
    pass


def _process() -> None:
    process = multiprocessing.get_context("fork").Process(target=_nothing)
    process.start()
    process.join()


def _program() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def _fork() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _workers() -> None:
    list(DataLoader(TensorDataset(torch.zeros(4, 3)), num_workers=1))


def _shell() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize("start", [_process, _program, _fork])
def test_processes_that_may_train_are_named_as_not_watched(start: Callable[[], None]) -> None:
    with observe() as observation:
        start()
        start()
    result = observation.result()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason.startswith(f"{NOTHING}: the script started 2 processes, which are not watched; ")
    assert "torchrun -m gradcheck_accum verify" in result.reason
    assert "gradcheck_accum.check()" in result.reason


@pytest.mark.parametrize("start", [_nothing, _workers, _shell])
def test_processes_that_train_nothing_are_not_named(start: Callable[[], None]) -> None:
    with observe() as observation:
        start()
    assert observation.result().reason == NOTHING


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        (["/usr/bin/env", "python3.11", "train.py"], True),
        ("OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 train.py", True),
        (b"python train.py", True),
        (["git", "rev-parse", "HEAD"], False),
        ("nvidia-smi 'unclosed", False),
        (7, False),
    ],
)
def test_a_command_that_runs_python(command: object, runs: bool) -> None:
    assert runs_python(command) is runs


@pytest.mark.parametrize(("held", "said"), [(1, True), (2, False)])
def test_a_loop_that_accumulates_nothing_is_told_so(held: int, said: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i in range(6):
            x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
            (nn.functional.cross_entropy(model(x), y) / held).backward()
            if (i + 1) % held == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT
    assert any(note.startswith("every window holds 1 micro-batch: ") for note in result.notes) is said


class Descent:
    """An optimizer of a script's own, which PyTorch knows nothing of."""

    def __init__(self, model: nn.Module, update: Callable[[torch.Tensor], None]) -> None:
        self.weights, self.update = list(model.parameters()), update

    def step(self) -> None:
        with torch.no_grad():
            for weight in self.weights:
                self.update(weight)

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None


def added_to(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.add_(weight.grad, alpha=-0.1)


def set_anew(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.data = weight.data - 0.1 * weight.grad


def subtracted_behind_autograd(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.data -= 0.1 * weight.grad


def _updated(update: Callable[[torch.Tensor], None], *, steps: bool = True) -> VerifyResult:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = Descent(model, update)
    with observe() as observation:
        for i in range(9):
            (model(torch.randn(5, 3)).pow(2).mean() / 3).backward()
            if steps and (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return observation.result()


@pytest.mark.parametrize("update", [added_to, set_anew, subtracted_behind_autograd])
def test_an_update_by_hand_is_a_step(update: Callable[[torch.Tensor], None]) -> None:
    result = _updated(update)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [window.micro_batches for window in result.windows] == [3, 3, 3]
    assert {window.line for window in result.windows} == {update.__code__.co_firstlineno + 2}


def test_a_clip_before_an_update_by_hand_is_followed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    with observe() as observation:
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(5, 3)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for weight in model.parameters():
                subtracted_behind_autograd(weight)
    result = observation.result()
    assert (result.verdict, len(result.windows)) == (Verdict.EQUIVALENT, 4)


def test_an_optimizer_for_each_weight_that_steps_inside_backward_is_followed_nowhere() -> None:
    """In its hook the backward under way is not over: a window that lacks it does not close too early."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    arrived = dict.fromkeys(optimizers, 0)

    def arrive(weight: torch.Tensor) -> None:
        arrived[weight] += 1
        if arrived[weight] % 4 == 0:
            optimizers[weight].step()
            optimizers[weight].zero_grad()

    with observe() as observation:
        for weight in optimizers:
            weight.register_post_accumulate_grad_hook(arrive)
        for _ in range(12):
            (model(torch.randn(5, 3)).pow(2).mean() / 4).backward()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "inside backward" in result.reason


def test_weights_that_nobody_changes_were_not_changed_by_hand() -> None:
    result = _updated(added_to, steps=False)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "produced no gradients for any optimizer's parameters" in result.reason
    assert "by hand" not in result.reason


def test_gradients_that_no_optimizer_uses_are_named() -> None:
    weight, x = torch.zeros(3), torch.ones(3)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return (weight * x).sum().square()

    with observe() as observation:
        for _ in range(2):
            weight = weight - 0.1 * torch.func.grad(loss)(weight)
    result = observation.result()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "returned gradients at line" in result.reason and "assign them to .grad" in result.reason
    assert not result.help

"""The doors for a user's own program: check a loop function, or watch training while it goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gradcheck_accum
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport


class Training:
    """A loop of ``windows`` windows of four micro-batches; ``fault`` is asked for the divisor at each window."""

    def __init__(self, windows: int, fault: Callable[[int], float] = lambda window: 4, *, clears: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        rows = 4 * 4 * windows
        data = TensorDataset(torch.randn(rows, 3), torch.randint(0, 3, (rows,)))
        self.loader = DataLoader(data, batch_size=4)
        self.fault, self.clears = fault, clears
        self.steps = 0

    def run(self) -> None:
        for i, (x, y) in enumerate(self.loader):
            (cross_entropy(self.model(x), y) / self.fault(i // 4)).backward()
            if (i + 1) % 4 == 0:
                self.optimizer.step()
                self.steps += 1
                if self.clears:
                    self.optimizer.zero_grad()


def codes(result: VerifyResult) -> list[str]:
    return [d.mistake.code for d in result.diagnosis]


def test_check_returns_the_result_of_a_right_loop() -> None:
    result = gradcheck_accum.check(Training(3).run)
    assert (result.verdict, len(result.windows)) == (Verdict.EQUIVALENT, 3)


def test_check_raises_with_the_cause_of_a_wrong_one() -> None:
    with pytest.raises(gradcheck_accum.AccumulationError, match="GA101") as caught:
        gradcheck_accum.check(Training(3, lambda window: 1).run)
    assert codes(caught.value.result) == ["GA101"]
    assert caught.value.result.windows[0].grad_norm_ratio == pytest.approx(4.0)


def test_check_hands_on_arguments_and_errors() -> None:
    def loop(value: int, *, other: int) -> None:
        raise RuntimeError(value + other)

    with pytest.raises(RuntimeError, match="3"):
        gradcheck_accum.check(loop, 1, other=2)


def test_a_loop_that_shows_nothing_is_not_passed() -> None:
    with pytest.raises(gradcheck_accum.AccumulationError, match="inconclusive"):
        gradcheck_accum.check(lambda: None)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 16])
def test_watching_a_right_loop_says_nothing(every: int) -> None:
    training = Training(20)
    with gradcheck_accum.watch(every=every):
        training.run()
    assert training.steps == 20


@pytest.mark.parametrize("every", [1, 2, 4, 7])
def test_watching_raises_at_the_first_window_that_is_judged(every: int) -> None:
    training = Training(20, lambda window: 1)
    with pytest.raises(gradcheck_accum.AccumulationError) as caught, gradcheck_accum.watch(every=every):
        training.run()
    assert training.steps == every - 1
    assert codes(caught.value.result) == ["GA101"]


@pytest.mark.parametrize("every", [1, 3])
def test_gradients_that_are_never_cleared_are_seen_from_the_window_before(every: int) -> None:
    with pytest.raises(gradcheck_accum.AccumulationError) as caught, gradcheck_accum.watch(every=every):
        Training(12, clears=False).run()
    assert codes(caught.value.result) == ["GA203"]


@pytest.mark.parametrize("reference", ["ledger", "both"])
def test_a_callback_hears_of_every_judged_window_and_training_goes_on(reference: str) -> None:
    heard: list[VerifyResult] = []
    training = Training(20, lambda window: 1 if window >= 10 else 4)
    with gradcheck_accum.watch(every=5, on_deviation=heard.append, reference=reference):  # type: ignore[arg-type]
        training.run()
    assert training.steps == 20
    assert [len(result.windows) for result in heard] == [1, 1]
    assert all(result.windows[0].verdict is Verdict.DEVIATES for result in heard)


def test_a_warning_is_given_at_the_users_line_and_training_goes_on() -> None:
    training = Training(20, lambda window: 1 if window >= 10 else 4)
    warned = pytest.warns(gradcheck_accum.AccumulationWarning, match="GA101")
    with warned as given, gradcheck_accum.watch(every=5, on_deviation="warn"):
        training.run()
    assert training.steps == 20
    assert len(given) == 2
    # Python itself shows a warning of the same words at a line once.
    ((path, line, _),) = {(one.filename, one.lineno, str(one.message)) for one in given}
    assert path == __file__
    assert Path(path).read_text().splitlines()[line - 1].strip() == "self.optimizer.step()"


@pytest.mark.parametrize("divisor", [4, 1])
def test_every_judged_window_is_told_with_numbers_to_log(divisor: int) -> None:
    """Undivided, every one of 16 rows has 4 times its weight: the error is 3, the ratio of norms 4."""
    told: list[VerifyResult] = []
    heard: list[VerifyResult] = []
    with gradcheck_accum.watch(every=5, on_window=told.append, on_deviation=heard.append):
        Training(20, lambda window: divisor).run()
    assert len(told) == 4
    factor = 4 / divisor
    for result in told:
        error, ratio, units = (result.metrics[f"accumulation/{n}"] for n in ("gradient_error", "norm_ratio", "units"))
        assert (error, ratio, units) == (pytest.approx(factor - 1, abs=1e-5), pytest.approx(factor), 16.0)
    assert heard == (told if divisor == 1 else [])


def test_what_was_not_measured_is_not_logged() -> None:
    reference = ReferenceReport("ledger", "float32", "cpu")
    window = WindowReport(0, "SGD", 3, None, (None,) * 3, None, 0.7, None, None, Verdict.INCONCLUSIVE)
    result = VerifyResult("t", Verdict.INCONCLUSIVE, "", "cpu", reference, windows=(window,))
    assert result.metrics == {"accumulation/norm_ratio": 0.7}
    assert replace(result, windows=()).metrics == {}


def test_an_optimizer_that_never_steps_does_not_count_windows() -> None:
    idle = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(gradcheck_accum.AccumulationError), gradcheck_accum.watch(every=4):
        Training(8, lambda window: 1).run()
    assert idle.param_groups


def test_what_is_left_at_the_end_of_the_block() -> None:
    training = Training(3)
    training.loader = DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(0, 3, (40,))), batch_size=4)
    with pytest.raises(gradcheck_accum.AccumulationError, match="GA301"), gradcheck_accum.watch():
        training.run()


def test_watching_changes_no_bit() -> None:
    plain, watched = Training(20), Training(20)
    plain.run()
    with gradcheck_accum.watch(every=3):
        watched.run()
    assert torch.equal(plain.model.weight, watched.model.weight)


def test_nothing_of_the_watching_is_left_behind() -> None:
    before = torch.autograd.backward, torch.optim.Optimizer.zero_grad, nn.Module.__call__
    training = Training(2)
    with gradcheck_accum.watch():
        training.run()
    assert (torch.autograd.backward, torch.optim.Optimizer.zero_grad, nn.Module.__call__) == before
    assert not training.model.weight._backward_hooks


def test_options_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="at least 1"), gradcheck_accum.watch(every=0):
        pass
    with pytest.raises(ValueError, match="both or neither"), gradcheck_accum.watch(rtol=1e-3):
        pass
    with pytest.raises(ValueError, match="on_deviation must be"), gradcheck_accum.watch(on_deviation="warning"):  # type: ignore[arg-type]
        pass


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, gradcheck_accum; assert 'torch' not in sys.modules and 'ast' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_falling_asleep_inside_a_scalers_step_leaves_nothing_of_it_behind() -> None:
    # The scaler makes only the first steps: later ones are the optimizer's own, and no scaler's.
    training = Training(24)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    heard: list[VerifyResult] = []

    def loop() -> None:
        for i, (x, y) in enumerate(training.loader):
            scaled = i < 20
            loss = cross_entropy(training.model(x), y) / 4
            (scaler.scale(loss) if i < 32 else loss).backward()
            if (i + 1) % 4 == 0:
                if scaled:
                    scaler.step(training.optimizer)
                    scaler.update()
                else:
                    training.optimizer.step()
                training.optimizer.zero_grad()

    with gradcheck_accum.watch(every=4, on_deviation=heard.append):
        loop()
    assert [codes(result) for result in heard] == [["GA503"]]


def test_a_package_of_the_same_name_does_not_hide_a_function() -> None:
    code = (
        "import gradcheck_accum, gradcheck_accum.verify.watching.observer\n"
        "assert all(callable(getattr(gradcheck_accum, name)) for name in gradcheck_accum.__all__[:2])\n"
        "assert all(callable(getattr(gradcheck_accum, name)) for name in ('check', 'watch', 'compare'))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

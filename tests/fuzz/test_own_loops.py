"""``gradcheck-accum fuzz train.py::loop`` and its pytest doors: the smallest failing case, and a test that shows it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.fuzz import AccumCase, CannotSupply, fuzz_loop
from gradcheck_accum.fuzz.targets import load_function
from gradcheck_accum.results.fuzzing import TrialOutcome
from gradcheck_accum.results.verdict import Verdict

LOOPS = """\
import torch


def right(model, train_loader, optimizer, accumulation_steps):
    batches = list(train_loader)
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start:start + accumulation_steps]
        count = sum(int((y != -100).sum()) for _, y in window)
        for x, y in window:
            loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum") / count
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def drops(net, dataloader, opt, loss_fn, K=4):
    for i, (x, y) in enumerate(dataloader):
        (loss_fn(net(x), y) / K).backward()
        if (i + 1) % K == 0:
            opt.step()
            opt.zero_grad()


def never(model, loader, criterion, optimizer):
    for x, y in loader:
        criterion(model(x), y).backward()


def raises(model, loader):
    raise KeyError("labels")


def asks(model, teacher):
    pass


def yields(model, loader):
    yield


class Trainer:
    def fit(self, loader):
        pass


def divides_by_k(model, loader, optimizer, criterion, accumulation_steps):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) * (1 / accumulation_steps)).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def divides_by_rows(model, loader, optimizer, accumulation_steps):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y) / len(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def moves_ahead(model, loader, optimizer, criterion, scheduler, accumulation_steps):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / accumulation_steps).backward()
        scheduler.step()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def makes_its_own(loader, criterion):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def never_or_raises(model, loader):
    for x, y in loader:
        if len(x) > 1:
            raise ValueError("one row at a time")
        model(x).sum().backward()
"""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_loops.py").write_text(LOOPS)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in ("own_loops", "own_factories"):
        sys.modules.pop(name, None)


def fuzz(target: str, *options: str) -> int:
    return main(["fuzz", f"own_loops.py::{target}", "--examples", "30", "--seed", "1", *options])


def test_a_right_loop(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("right") == 0
    assert "equivalent in all of" in capsys.readouterr().out


def test_a_loop_that_drops_the_remainder(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("drops") == 1
    out = capsys.readouterr().out
    assert "N=3, micro-batch 1, K=2: the last sample never reaches the optimizer" in out
    # The test that is printed shows the failure.
    start = out.index("from own_loops import drops")
    case = next(line for line in out[start:].splitlines() if "case = " in line).partition("case = ")[2]
    assert case == "AccumCase(samples=3, batch_size=1, accumulation_steps=2)"


@pytest.mark.slow
def test_the_printed_test_fails_as_it_should(loops: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(own_loops=LOOPS)
    pytester.makepyfile(
        """
        from own_loops import drops, right

        from gradcheck_accum.fuzz import AccumCase

        CASE = AccumCase(samples=3, batch_size=1, accumulation_steps=2)


        def test_drops(accum_check):
            accum_check(drops, **CASE.arguments(drops))


        def test_right(accum_check):
            accum_check(right, **CASE.arguments(right))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*remainder-dropped*"])


def kinds(out: str) -> set[str]:
    """What the printed tests are named after."""
    return set(re.findall(r"def test_([a-z_]+)\(accum_check\)", out))


def test_one_mistake_is_told_as_one_whatever_the_data(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Passes that are shorter than K, and remainders of one, are no other mistake than a remainder that K divides.
    # Of so many cases, some are a mean of means and nothing else, whatever the seed.
    assert fuzz("divides_by_k", "--examples", "100") == 1
    out = capsys.readouterr().out
    assert kinds(out) == {"divides_by_k_remainder_misscaled", "divides_by_k_mean_of_means"}
    assert "N=1, micro-batch 1, K=2: the last window holds 1 micro-batch, but the loss is still divided by 2" in out


def test_a_second_division_shows_where_nothing_is_accumulated(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("divides_by_rows") == 1
    assert "N=2, micro-batch 2, K=1: the loss is a mean and is divided again" in capsys.readouterr().out


def test_a_schedule_that_runs_ahead_is_told(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("moves_ahead") == 1
    assert "moves_ahead_scheduler_every_batch" in kinds(capsys.readouterr().out)


def test_a_model_of_its_own_gets_the_dtype_of_the_data(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("makes_its_own") == 0
    assert "equivalent in all of" in capsys.readouterr().out


def test_the_last_line_says_what_the_exit_status_does(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("never_or_raises") == 2
    out = capsys.readouterr().out
    assert "own_loops.py::never_or_raises: raised (" in out
    assert kinds(out) == {"never_or_raises_raises_valueerror", "never_or_raises_undecided"}


def test_a_loop_that_never_steps_is_not_decided(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("never") == 3
    assert "optimizer.step() was never called" in capsys.readouterr().out


def test_a_loop_that_raises(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("raises") == 2
    assert "it raises KeyError: 'labels'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["own_loops.py::asks"], "no value for argument 'teacher' of asks"),
        (["own_loops.py::missing"], "has no function missing"),
        (["own_loops.py::Trainer.fit"], "Trainer.fit is a method"),
        (["own_loops.py::yields"], "yields is a generator"),
        (["own_loops.py"], "must be FILE.py::FUNCTION"),
        (["missing.py::train"], "no such file"),
        (["own_loops.py::right", "--factories", "missing.py"], "no such file"),
        (["own_loops.py::right", "--examples", "0"], "must be 1 or more"),
        (["--factories", "own_loops.py"], "requires FILE.py::LOOP"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, loops: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_factories_supply_arguments_by_name(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (loops / "own_factories.py").write_text(
        "import torch\n\n\n"
        "def teacher(model):\n    return model\n\n\n"
        "def loader(case):\n"
        "    size = case.batch_size\n"
        "    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for _ in range(case.accumulation_steps)]\n"
    )
    with (loops / "own_loops.py").open("a") as file:
        file.write(
            "\n\ndef taught(model, teacher, data_loader, optimizer, criterion, steps):\n"
            "    assert teacher is model and isinstance(data_loader, list)\n"
            "    for x, y in data_loader:\n"
            "        (criterion(model(x), y) / steps).backward()\n"
            "    optimizer.step()\n"
        )
    assert fuzz("taught", "--factories", "own_factories.py") == 0


def test_the_time_budget_ends_it(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("right", "--time-budget", "1e-9") == 3
    assert "not decided" in capsys.readouterr().out


def test_an_interrupt_keeps_what_was_seen(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (loops / "own_loops.py").open("a") as file:
        file.write(
            "\n\nCALLS = []\n\n\n"
            "def stops(model, loader, optimizer, criterion, K):\n"
            "    CALLS.append(K)\n"
            "    if len(CALLS) == 8:\n"
            "        raise KeyboardInterrupt\n"
            "    right(model, loader, optimizer, K)\n"
        )
    assert fuzz("stops") == 130
    captured = capsys.readouterr()
    assert captured.out == "own_loops.py::stops: equivalent in all of 7 cases\n"
    assert "interrupted" in captured.err


def test_a_case_supplies_the_same_values_again() -> None:
    def loop(model: object, loader: object, optimizer: object, scaler: object = None, epochs: int = 1) -> None: ...

    case = AccumCase(samples=5, batch_size=2, accumulation_steps=2, epochs=2)
    one, other = case.arguments(loop), case.arguments(loop)
    assert set(one) == {"model", "loader", "optimizer", "epochs"}
    assert one["epochs"] == 2
    assert [len(y) for _, y in one["loader"]] == [2, 2, 1]
    assert all(a.equal(b) for a, b in zip(one["model"].parameters(), other["model"].parameters(), strict=True))


def test_what_cannot_be_given_by_name_is_said() -> None:
    def loop(model: object, /) -> None: ...

    with pytest.raises(CannotSupply, match="cannot be passed by name"):
        AccumCase(samples=1, batch_size=1, accumulation_steps=1).arguments(loop)


@pytest.mark.slow
def test_the_pytest_doors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(own_loops=LOOPS)
    pytester.makeconftest(
        """
        from hypothesis import settings

        settings.register_profile("few", max_examples=15, deadline=None, derandomize=True)
        settings.load_profile("few")
        """
    )
    pytester.makepyfile(
        """
        from hypothesis import given
        from own_loops import drops, right

        from gradcheck_accum.fuzz import accum_cases


        @given(case=accum_cases())
        def test_given(accum_check, case):
            accum_check(right, **case.arguments(right))


        def test_right(accum_check):
            assert accum_check.fuzz(right).outcomes.total() <= 15


        def test_drops(accum_check):
            accum_check.fuzz(drops)
        """
    )
    result = pytester.runpytest_subprocess("-n", "1")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*never reaches the optimizer*"])


HOOKED = """\
import torch


def hooked(model, loader, optimizer, accumulation_steps, hook):
    for parameter in model.parameters():
        parameter.register_hook(hook)
    for i, (x, y) in enumerate(loader):
        (torch.nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def clamping(model, train_loader, optimizer, accumulation_steps):
    hooked(model, train_loader, optimizer, accumulation_steps, lambda gradient: gradient.clamp(-0.01, 0.01))


def masking(model, train_loader, optimizer, accumulation_steps):
    hooked(model, train_loader, optimizer, accumulation_steps, lambda g: g * torch.linspace(0, 1, g.numel()).view_as(g))
"""


@pytest.mark.parametrize(
    ("name", "outcome"), [("clamping", TrialOutcome.DEVIATES), ("masking", TrialOutcome.UNDECIDED)]
)
def test_steps_that_verify_leaves_open_are_compared_with_k_1(
    name: str, outcome: TrialOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loops.py").write_text(HOOKED)
    monkeypatch.chdir(tmp_path)
    loop = load_function(f"loops.py::{name}")
    trial = fuzz_loop(loop, target=f"loops.py::{name}", examples=12, random_seed=1)
    (failure,) = [one for one in trial.failures if "undecided_steps" in one.test]
    assert failure.outcome is outcome
    if outcome is TrialOutcome.UNDECIDED:
        # A mask of a sum is the sum of the masked, which verify cannot know of what goes through a hook.
        assert "; compared with itself at K = 1, all 1 steps match the reference gradient" in failure.what
        assert "accum_check(masking, **case.arguments(masking))" in failure.test
        return
    assert failure.what.startswith("1 of 1 steps do not match the reference gradient on the same data (the loop")
    assert "accum_check.compare(clamping, [one.arguments(clamping) for one in (case, case.at_k_1())])" in failure.test
    namespace: dict[str, Any] = {}
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(failure.test, namespace)

    class Check:
        def compare(self, *given: Any) -> None:
            assert compared_loop(*given).verdict is Verdict.DEVIATES

    namespace["test_clamping_undecided_steps"](Check())

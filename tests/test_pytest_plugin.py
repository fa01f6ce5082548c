"""The pytest door, in pytest runs of its own."""

from __future__ import annotations

from textwrap import indent

import pytest
from plain_loops import plain_loop

BAD = "\n" + indent(plain_loop(4, flush=True), "    ")
LOOP = """
    import torch

    def loop(scale, batches=4, steps=2):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(batches):
            x, y = torch.randn(2, 3), torch.randn(2, 1)
            (torch.nn.functional.mse_loss(model(x), y) * scale).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def write_tests(pytester: pytest.Pytester, loop: str, tests: str) -> None:
    """Write a loop and its tests into one file of the project."""
    pytester.makepyfile(test_loop=loop + tests)


def ignores(pytester: pytest.Pytester, code: str) -> None:
    """Write settings that accept a mistake."""
    pytester.makepyprojecttoml(f"[tool.gradcheck-accum]\nignore = ['{code}']")


def fails_by_the_settings(result: pytest.RunResult) -> None:
    """Assert that one test failed, because the settings name a mistake that does not exist."""
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["pyproject.toml: [[]tool.gradcheck-accum[]] ignore: unknown rule 'GA999'*"])


def test_a_training_script_is_linted_and_not_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train="raise SystemExit('imported!')\n" + BAD.replace("\n    ", "\n"))
    result = pytester.runpytest("--accum-lint", "train.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ accum-lint _*",
            "train.py:6:9: GA101 [[]missing-loss-scaling[]]*",
            "6 |         loss.backward()",
            "help: *",
            "Found 1 mistake in 1 file.",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*imported!*")


def test_a_directory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD, helper="x = 1", **{"pkg/__init__": "", "pkg/loop": BAD})
    result = pytester.runpytest("--accum-lint", "-v")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["pkg/loop.py::accum-lint FAILED*", "train.py::accum-lint FAILED*"])


def test_tests_in_the_same_file_run_as_ever(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_train=BAD + "\n    def test_one(): pass\n    def test_two(): assert not 1\n")
    pytester.runpytest("--accum-lint").assert_outcomes(passed=1, failed=2)
    pytester.runpytest("--accum-lint", "test_train.py::test_one").assert_outcomes(passed=1)
    pytester.runpytest("--accum-lint", "test_train.py::accum-lint").assert_outcomes(failed=1)
    pytester.runpytest().assert_outcomes(passed=1, failed=1)


def test_suppressions_count(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD.replace("backward()", "backward()  # gradcheck-accum: ignore[GA101]"))
    pytester.runpytest("--accum-lint", "train.py").assert_outcomes(passed=1)


def test_the_projects_settings_count(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD)
    ignores(pytester, "GA101")
    pytester.runpytest("--accum-lint", "train.py").assert_outcomes(passed=1)
    ignores(pytester, "GA999")
    fails_by_the_settings(pytester.runpytest("--accum-lint", "train.py"))


def test_a_file_that_is_not_python_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train="def train(:\n    loss.backward()\n    optimizer.step()")
    result = pytester.runpytest("--accum-lint", "train.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["train.py: not valid Python *"])


@pytest.mark.slow
def test_workers_agree(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD, other=BAD, test_it="def test_it(): pass")
    pytester.runpytest_subprocess("--accum-lint", "-n", "2").assert_outcomes(passed=1, failed=2)


def test_without_the_option_nothing_is_linted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD, test_it="def test_it(): pass")
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_right_loop_passes_and_is_returned(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        LOOP,
        """
    def test_loop(accum_check):
        result = accum_check(loop, 0.5, batches=6)
        assert result.verdict.value == "equivalent"
        assert len(result.windows) == 3
    """,
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "outcome", "lines"),
    [
        pytest.param(
            "1.0",
            "failed",
            ["loop: deviates: *", "help: *", "*GA101 [[]missing-loss-scaling[]]*", "FAILED *loop: deviates: *"],
            id="a wrong loop fails with the report",
        ),
        pytest.param("0.25, loss_coefficient=0.5", "passed", [], id="a stated coefficient decides"),
        pytest.param("0.5, batches=0", "failed", ["loop: inconclusive: *"], id="a loop without steps does not pass"),
    ],
)
def test_a_loop_that_is_checked(arguments: str, outcome: str, lines: list[str], pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        LOOP,
        f"""
    def test_loop(accum_check):
        accum_check(loop, {arguments})
    """,
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(lines)
    result.stdout.no_fnmatch_line("*def check*")


@pytest.mark.slow
def test_an_error_in_the_loop_is_the_loops_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_loop="""
    def loop():
        raise LookupError("no data")

    def test_loop(accum_check):
        accum_check(loop)
    """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *LookupError: no data"])


COUPLED = """
    import torch

    def loop(steps=2, seed=0):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(4):
            x, y = torch.randn(5, 3), torch.randn(5, 1)
            (torch.nn.functional.mse_loss(model(x), y) / steps).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.slow
def test_what_the_project_has_accepted_passes(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        COUPLED,
        """
    def test_by_the_settings(accum_check):
        result = accum_check(loop)
        assert [one.diagnosis.mistake.code for one in result.accepted] == ["GA901"]
    """,
    )
    pytester.runpytest_subprocess().assert_outcomes(failed=1)
    ignores(pytester, "GA901")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    ignores(pytester, "GA999")
    fails_by_the_settings(pytester.runpytest_subprocess())


@pytest.mark.slow
def test_the_fixture_takes_what_check_takes(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        COUPLED,
        """
    def test_codes(accum_check):
        assert accum_check(loop, ignore=["GA901"], steps=2).exit_status == 0

    def test_reference(accum_check):
        assert "replay" not in accum_check(loop, reference="ledger", ignore="GA901").reference.kind

    def test_tolerance(accum_check):
        result = accum_check(loop, rtol=2.0, atol=0.0)
        assert {window.tolerance for window in result.windows} == {2.0}
    """,
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=3)


@pytest.mark.slow
def test_a_failure_is_an_assertion_that_has_the_report(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        LOOP,
        """
    import pytest

    def test_loop(accum_check):
        with pytest.raises(AssertionError, match="GA101") as caught:
            accum_check(loop, 1.0)
        assert caught.value.result.verdict.value == "deviates"
    """,
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_report_keeps_its_lines_on_a_terminal_that_lacks_its_characters(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    pytester.path.joinpath("tr\u00e4in.py").write_text(BAD.replace("\n    ", "\n"), encoding="utf-8")
    result = pytester.runpytest_subprocess("--accum-lint", "tr\u00e4in.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["tr\\xe4in.py:5:9: GA101*", "5 |         loss.backward()", "Found 1 mistake in 1 file."]
    )


def test_configurations_of_a_loop_are_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch

        x, y = torch.randn(15, 3), torch.randn(15, 1)

        def train(size, accumulation_steps, divided):
            torch.manual_seed(0)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i in range(0, 15, size):
                loss = torch.nn.functional.mse_loss(model(x[i : i + size]), y[i : i + size])
                (loss / accumulation_steps if divided else loss).backward()
            optimizer.step()

        def test_right(accum_check):
            each = [dict(size=5, accumulation_steps=3, divided=True), dict(size=15, accumulation_steps=1, divided=True)]
            assert accum_check.compare(train, each).verdict.value == "equivalent"

        def test_wrong(accum_check):
            accum_check.compare(train, [dict(size=5, accumulation_steps=3, divided=False),
                                        dict(size=15, accumulation_steps=1, divided=False)])
    """)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*train: deviates: 1 of 1 steps do not match the reference gradient*"])
    result.stdout.no_fnmatch_line("*Traceback*")

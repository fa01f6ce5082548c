"""What pytest runs besides tests: scripts under verify, tests that are marked, and the section at a run's end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradcheck_accum import verify
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport
from gradcheck_accum.verify.process.parent import Ending

SCRIPT = """\
import sys
import torch

print("training", *sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    (torch.nn.functional.mse_loss(model(x), y) / int(sys.argv[1])).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
LOOP = """\
import pytest
import torch

def loop(divisor):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x, y = torch.randn(5, 3), torch.randn(5, 1)
        (torch.nn.functional.mse_loss(model(x), y) / divisor).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

"""


def window(index: int, weight: float) -> WindowReport:
    """A window of three micro-batches of equal weight, and the errors that follow from it."""
    verdict = Verdict.EQUIVALENT if weight == 1 else Verdict.DEVIATES
    return WindowReport(index, "SGD", 3, 15.0, (weight,) * 3, abs(weight - 1), weight, 1e-6, None, verdict, line=12)


RIGHT = VerifyResult("train.py", Verdict.EQUIVALENT, "all 2 steps got it", "cpu", ReferenceReport("l", "f", "cpu"))
WRONG = replace(
    RIGHT,
    verdict=Verdict.DEVIATES,
    reason="1 of 2 steps do not match",
    windows=(window(0, 1.0), window(1, 3.0)),
    diagnosis=(Diagnosis(CATALOGUE["GA101"], Location("train.py", 10), "not divided", "divide", (1,)),),
)


class Engine:
    """Replaces verify_script: returns ``result``, and remembers the scripts and their options.

    ``is_interrupted`` says that somebody interrupts each run.
    """

    def __init__(self) -> None:
        self.result = RIGHT
        self.is_interrupted = False
        self.runs: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[dict[str, Any]] = []

    def __call__(self, script: str, arguments: tuple[str, ...], *, ending: Ending, **told: Any) -> VerifyResult:
        ending.asked = self.is_interrupted
        self.runs.append((Path(script).name, tuple(arguments)))
        self.told.append(told)
        return self.result


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(verify, "verify_script", fake)
    return fake


@pytest.fixture
def project(pytester: pytest.Pytester, engine: Engine) -> pytest.Pytester:
    """Two scripts that must not be imported, and a test."""
    pytester.makepyfile(
        train="raise SystemExit('imported!')", test_it="def test_it(): pass", **{"src/other": "raise SystemExit(1)"}
    )
    return pytester


# scripts as tests


def test_a_script_is_a_test_beside_the_others(project: pytest.Pytester, engine: Engine) -> None:
    result = project.runpytest("--accum-verify", "train.py", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_it.py::test_it PASSED*", "*train.py::accum-verify PASSED*"])
    assert engine.runs == [("train.py", ())]


def test_a_script_with_several_arguments_is_as_many_tests(project: pytest.Pytester, engine: Engine) -> None:
    options = ["--accum-verify", "train.py --lr 'a b'", "--accum-verify", "src/other.py", "--accum-verify", "train.py"]
    result = project.runpytest(*options, "--collect-only", "-q")
    result.stdout.fnmatch_lines_random(
        ["train.py::accum-verify[[]--lr 'a b'[]]", "train.py::accum-verify", "src/other.py::accum-verify"]
    )
    project.runpytest(*options, *options).assert_outcomes(passed=4)
    assert sorted(engine.runs) == [("other.py", ()), ("train.py", ()), ("train.py", ("--lr", "a b"))]


@pytest.mark.parametrize(
    ("chosen", "tests"),
    [
        (["-k", "accum-verify"], 1),
        (["-k", "not accum-verify"], 1),
        (["-m", "accum_verify"], 1),
        (["-m", "not accum_verify"], 1),
        (["train.py::accum-verify"], 1),
        (["train.py"], 1),
        (["test_it.py"], 2),
        ([".", "test_it.py"], 2),
        (["--strict-markers"], 2),
    ],
)
def test_scripts_are_chosen_as_tests_are(
    project: pytest.Pytester, engine: Engine, chosen: list[str], tests: int
) -> None:
    project.runpytest("--accum-verify", "train.py", *chosen).assert_outcomes(
        passed=tests, deselected=2 - tests if chosen[0][0] == "-" else 0
    )


@pytest.mark.parametrize(
    ("paths", "scripts"), [([], 2), (["."], 2), (["src"], 1), (["train.py"], 1), (["test_it.py"], 0)]
)
def test_configured_scripts_are_run_where_the_paths_hold_them(
    project: pytest.Pytester, engine: Engine, paths: list[str], scripts: int
) -> None:
    project.makeini("[pytest]\ntestpaths = test_it.py\naccum_verify =\n    train.py --epochs 2\n    src/other.py\n")
    project.runpytest(*paths)
    assert len(engine.runs) == scripts


def test_configured_scripts_stand_beside_the_settings(
    project: pytest.Pytester, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\naccum_verify = train.py\naccum_lint = true\n")
    monkeypatch.chdir(project.path / "src")
    project.runpytest("--rootdir", "..", "-c", "../tox.ini", "--accum-verify", "other.py").assert_outcomes(passed=2)
    assert sorted(engine.runs) == [("other.py", ()), ("train.py", ())]


def test_the_settings_of_runs_hold(project: pytest.Pytester, engine: Engine) -> None:
    project.makepyprojecttoml(
        "[tool.gradcheck-accum.verify]\nmax-windows = 3\nverbose = true\nloss-coefficient = 0.7\nignore = ['GA101']\n"
    )
    engine.result = replace(WRONG, details=("seen",), notes=("seen",))
    result = project.runpytest("--accum-verify", "train.py")
    result.assert_outcomes(passed=2)
    assert engine.told == [{"max_windows": 3, "loss_coefficient": 0.7}]
    result.stdout.fnmatch_lines(
        ["*= gradient accumulation =*", "train.py::accum-verify:", "  accepted: GA101 * at train.py:10"]
    )


def test_a_failing_script_shows_its_report_and_the_ledger_of_the_windows_that_fail(
    project: pytest.Pytester, engine: Engine
) -> None:
    engine.result = WRONG
    result = project.runpytest("--accum-verify", "train.py")
    result.assert_outcomes(passed=1, failed=1)
    lines = result.outlines
    (section,) = (i for i, line in enumerate(lines) if "= gradient accumulation =" in line)
    assert "train.py:10: GA101 [missing-loss-scaling] not divided (window 1)" in lines[:section]
    assert lines[section + 1] == "train.py::accum-verify: deviates: 1 of 2 steps do not match"
    # In CI pytest's own summary, which follows, holds the whole message of a failure.
    (summary,) = (i for i, line in enumerate(lines) if "= short test summary info =" in line)
    rows = [line.split() for line in lines[section:summary] if "deviates" in line and "x 3.000" in line]
    assert [row[0] for row in rows] == ["1"]
    assert "  GA101 [missing-loss-scaling] at train.py:10" in lines[section:summary]
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"verdict": Verdict.INCONCLUSIVE, "reason": "who knows"}, "train.py: inconclusive: who knows"),
        ({"error": "the script raised ValueError: no"}, "train.py: error: the script raised ValueError: no"),
    ],
)
def test_what_is_not_decided_is_no_pass(
    project: pytest.Pytester, engine: Engine, change: dict[str, Any], line: str
) -> None:
    engine.result = replace(RIGHT, **change)
    result = project.runpytest("--accum-verify", "train.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([line])


def test_an_interrupt_ends_the_run(project: pytest.Pytester, engine: Engine) -> None:
    engine.is_interrupted = True
    run = project.inline_run("--accum-verify", "train.py", no_reraise_ctrlc=True)
    assert run.ret is pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize(("script", "message"), [("gone.py", "there is no file gone.py"), ("", "''"), ("'a", '"\'a"')])
def test_a_script_that_is_none_is_one_line(project: pytest.Pytester, script: str, message: str) -> None:
    result = project.runpytest("--accum-verify", script)
    assert result.ret is pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: accum-verify: *{message}*"])


@pytest.mark.parametrize("setting", ["max-windows = 0", "ignore = ['GA999']"])
def test_a_setting_that_makes_no_sense_fails_in_one_line(
    project: pytest.Pytester, engine: Engine, setting: str
) -> None:
    project.makepyprojecttoml(f"[tool.gradcheck-accum.verify]\n{setting}\n")
    result = project.runpytest("--accum-verify", "train.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["pyproject.toml: [[]tool.gradcheck-accum.verify[]] *"])
    assert engine.runs == []


def test_lint_items_are_configured_and_marked(project: pytest.Pytester) -> None:
    project.makepyfile(train="for x in data:\n    loss(x).backward()\n    optimizer.step()\n")
    project.makeini("[pytest]\naccum_lint = true\n")
    project.runpytest("--strict-markers").assert_outcomes(passed=1, failed=1)
    project.runpytest("-m", "not accum_lint").assert_outcomes(passed=1, deselected=1)
    project.runpytest("-o", "accum_lint=false").assert_outcomes(passed=1)


@pytest.mark.slow
def test_scripts_run_on_workers_and_stand_in_junits_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=SCRIPT, test_it="def test_it(): pass")
    options = ["--accum-verify", "train.py 3", "--accum-verify", "train.py 1", "-n", "2", "--junitxml", "junit.xml"]
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*training 1*", "*= gradient accumulation =*", "train.py::accum-verify[[]1[]]: deviates: 2 of 2 steps *"]
    )
    cases = ElementTree.parse(pytester.path / "junit.xml").findall(".//testcase")
    failures = {case.get("name"): [f.get("message") or "" for f in case.findall("failure")] for case in cases}
    assert sorted(map(str, failures)) == ["accum-verify[1]", "accum-verify[3]", "test_it"]
    assert [len(found) for _, found in sorted(failures.items())] == [1, 0, 0]
    assert "GA101" in failures["accum-verify[1]"][0]


# marked tests


@pytest.mark.slow
def test_a_marked_test_is_judged_by_what_it_trains(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_loop=LOOP
        + """
@pytest.mark.accum
class TestAll:
    def test_right(self): loop(3)
    def test_wrong(self): loop(1)
    def test_nothing(self): pass
    def test_raises(self): raise LookupError("no data")
    def test_skipped(self): pytest.skip("not here")

def test_unmarked(): loop(1)

@pytest.mark.accum(ignore="GA101")
def test_accepted(): loop(1)

@pytest.mark.accum(reference="ledger", loss_coefficient=3.0)
def test_stated(): loop(1)

@pytest.mark.accum(ignore=["GA101"], reference="ledger")
def test_fixture(accum_check):
    loop(1)  # not handed to the fixture
    result = accum_check(loop, 1)
    assert "replay" not in result.reference.kind
    assert "replay" in accum_check(loop, 1, reference="both").reference.kind
    with pytest.raises(AssertionError, match="GA101"):
        accum_check(loop, 1, ignore=[])

def test_fixture_after_it(accum_check):
    with pytest.raises(AssertionError, match="GA101"):
        accum_check(loop, 1)
"""
    )
    result = pytester.runpytest_subprocess("--strict-markers")
    result.assert_outcomes(passed=6, failed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "test_wrong: deviates: *",
            "test_nothing: inconclusive: *",
            "E *LookupError: no data",
            "*= gradient accumulation =*",
            "test_loop.py::TestAll::test_wrong: deviates: *",
        ]
    )
    result.stdout.fnmatch_lines(["test_loop.py::test_accepted:", "  accepted: GA101 * at test_loop.py:*"])
    # Undivided, three micro-batches have the weight 3 each: |g - g_ref| / |g_ref| is 2, whatever their gradients are.
    section = result.outlines[
        next(i for i, line in enumerate(result.outlines) if "= gradient accumulation =" in line) :
    ]
    row = next(line.split() for line in section if line.split()[:3] == ["0", "3", "15"])
    assert row[3:7] == ["3", "x", "3.000", "2.000"]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("refrence='both'", "takes no option 'refrence' (options: reference, "),
        ("'GA101'", "takes options by name only"),
        ("rtol=0.1", "both or neither"),
        ("ignore='GA999'", "unknown rule 'GA999'"),
    ],
)
def test_a_marker_that_makes_no_sense_is_one_line(pytester: pytest.Pytester, marker: str, message: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.accum({marker})\ndef test_it(): raise SystemExit('was run')\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    (line,) = [line for line in result.outlines if line.startswith("@pytest.mark.accum")]
    assert message in line


def test_a_run_without_any_of_it_has_no_section_and_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            ours = {name for name in sys.modules if name.startswith("gradcheck_accum")}
            assert ours == {"gradcheck_accum", "gradcheck_accum.pytest_plugin"}
            assert "torch" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*gradient accumulation*")

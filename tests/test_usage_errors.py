"""What the command line says to those who mistype, and how it fits the terminal that it is read on."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from plain_loops import plain_loop

from gradcheck_accum.cli import main
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport

BAD = plain_loop(3)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# what was meant


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lnt", "bad.py"], "lint"),
        (["verfy", "bad.py"], "verify"),
        (["lint", "--slect", "GA1"], "--select"),
        (["lint", "--output-fromat", "json"], "--output-format"),
        (["lint", "--output-format", "sarf"], "sarif"),
        (["lint", "--select", "GA1O1"], "GA101"),
        (["lint", "--ignore", "mising-loss-scaling"], "missing-loss-scaling"),
        (["verify", "bad.py", "--max-widows", "3"], "--max-windows"),
        (["verify", "bad.py", "--select", "batch-copled"], "batch-coupled"),
        (["explain", "zero-grad-mispalced"], "zero-grad-misplaced"),
    ],
)
def test_a_word_that_is_near_another_is_asked_about(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"; did you mean {re.escape(meant)}\?( |$)", line)


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "GA110"],  # as near to GA101 as to others
        ["explain", "GA999"],
        ["frobnicate"],
        ["lint", "--epochs", "3"],
        ["verify", "bad.py", "--epochs", "3"],
    ],
)
def test_nothing_is_guessed_of_a_word_that_is_near_none_or_several(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_a_setting_is_asked_about_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text('[tool.gradcheck-accum]\nextend-excludes = ["a"]\n')
    assert main(["lint", "bad.py"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean extend-exclude?\n")


# completion


def completed(project: Path, line: str) -> list[str]:
    """What a shell offers at the end of ``line``."""
    offered = project / "offered"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(offered),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "gradcheck_accum"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    return [word.strip() for word in offered.read_text().split("\v")]


def test_a_shell_is_offered_commands_options_and_choices(project: Path) -> None:
    assert completed(project, "gradcheck-accum ve") == ["verify"]
    assert set(completed(project, "gradcheck-accum lint --output-f")) == {"--output-format", "--output-file"}
    assert completed(project, "gradcheck-accum lint --output-format sa") == ["sarif"]


# the width of a terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "widest"), [(20, 60), (60, 60), (83, 83), (500, 200)])
def test_advice_is_broken_at_the_width_of_the_terminal(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["lint", "bad.py", "--color", "never"]) == 1
    assert isinstance(sys.stdout, Terminal)
    text = sys.stdout.getvalue()
    advice = [line for line in text.splitlines() if not line.startswith(("bad.py:", "Found"))]
    assert max(map(len, advice)) <= widest
    assert "remaining micro-batches, dividing by their number" in " ".join(text.split())
    assert ("\n  " in text.split("help: after")[1].split("fix:")[0]) == (widest < 100)


RIGHT = WindowReport(0, "SGD", 4, 32.0, (1.0,) * 4, 1.2e-07, 1.0, 3.1e-06, 2e-07, Verdict.EQUIVALENT, line=24)
WIDE = replace(
    RIGHT,
    index=119,
    optimizer="AdamW",
    micro_batches=16,
    units=1234567.0,
    weights=(0.123, 4.0, 17.5, 0.25),
    drift=3.2e-05,
    verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
    accepted=("GA901",),
    line=1024,
)


@pytest.mark.parametrize("width", [60, 61, 79, 100, 132, 200])
@pytest.mark.parametrize("windows", [(RIGHT,), (RIGHT, replace(RIGHT, index=1)), (RIGHT, WIDE)])
def test_a_report_of_verify_fits_any_terminal(windows: tuple[WindowReport, ...], width: int) -> None:
    cause = Diagnosis(CATALOGUE["GA901"], Location("gone.py", 7), "the model mixes samples", "word " * 60, (0,))
    result = VerifyResult(
        "gone.py",
        Verdict.DEVIATES,
        "some steps",
        "cpu",
        ReferenceReport("ledger", "float32", "cpu"),
        windows,
        (cause,),
        ("note " * 60,),
    )
    lines = verify_text(result, width=width).splitlines()
    assert max(len(line) for line in lines if not line.startswith("gone.py:")) <= width


def test_a_wide_terminal_shows_all_columns() -> None:
    result = VerifyResult(
        "train.py", Verdict.DEVIATES, "some", "cpu", ReferenceReport("ledger", "float32", "cpu"), (RIGHT, WIDE)
    )
    assert "same in all windows" in verify_text(replace(result, windows=(RIGHT, replace(RIGHT, index=1))), width=70)
    (heading,) = [line for line in verify_text(result, width=200).splitlines() if "verdict" in line]
    assert heading.split()[1:6] == ["optimizer", "line", "batches", "units", "weights"]
    assert heading.split()[6:] == ["error", "allowed", "ratio", "error", "drift", "verdict"]

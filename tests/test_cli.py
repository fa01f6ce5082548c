"""The command line: what is printed where, and with which exit status."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import CommandLine
from plain_loops import plain_loop

from gradcheck_accum import __version__
from gradcheck_accum.cli import main
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult

BAD = plain_loop(4, flush=True)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "plain.py").write_text("print('no loop here')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


# lint


def test_lint_reports_and_exits_with_1(scripts: Path, run: CommandLine) -> None:
    assert run("lint", "bad.py") == 1
    assert "bad.py:4:9: GA101 [missing-loss-scaling]" in run.out
    assert run.out.splitlines()[-2:] == ["Found 1 mistake in 1 file.", "1 fixable with --fix."]
    assert run.err == ""


def test_lint_of_nothing_wrong_exits_with_0(scripts: Path, run: CommandLine) -> None:
    assert run("lint", "plain.py") == 0
    assert run.out == "No mistakes found in 1 file.\n"


def test_lint_reads_the_working_directory_where_no_path_is_given(scripts: Path, run: CommandLine) -> None:
    assert run("lint", "--output-format", "json") == 1
    assert run.json["summary"]["files"] == 2


def test_exit_zero_is_for_findings_only(scripts: Path, run: CommandLine) -> None:
    assert run("lint", "--exit-zero", "bad.py") == 0
    assert "GA101" in run.out
    assert run("lint", "--exit-zero", "bad.py", "gone.py") == 2


def test_an_unreadable_path_is_one_line_and_2(scripts: Path, run: CommandLine) -> None:
    (scripts / "broken.py").write_text("def train(:\n    loss.backward()\n")
    assert run("lint", "gone.py", "broken.py", "bad.py") == 2
    gone, broken = run.err.splitlines()
    assert gone.startswith("gradcheck-accum: gone.py: ")
    assert broken.startswith("gradcheck-accum: broken.py: not valid Python ")
    assert "GA101" in run.out


def test_lint_json(scripts: Path, run: CommandLine) -> None:
    assert run("lint", "bad.py", "gone.py", "--output-format", "json") == 2
    (finding,) = run.json["findings"]
    assert (finding["code"], finding["line"], finding["column"]) == ("GA101", 4, 9)
    assert BAD.splitlines()[3][finding["column"] - 1 : finding["end_column"] - 1] == "loss.backward()"
    assert run.json["summary"]["by_code"] == {"GA101": 1}
    assert [item["path"] for item in run.json["summary"]["unreadable"]] == ["gone.py"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--select", "GA101"], 1),
        (["--select", "ga1"], 1),
        (["--select", "missing-loss-scaling, GA401"], 1),
        (["--select", "GA401"], 0),
        (["--select", "GA401", "--select", "GA101"], 1),
        (["--ignore", "GA101"], 0),
        (["--ignore", "GA401"], 1),
        (["--select", "GA1", "--ignore", "GA101"], 0),
    ],
)
def test_selectors(scripts: Path, run: CommandLine, options: list[str], status: int) -> None:
    assert run("lint", "bad.py", *options) == status


@pytest.mark.parametrize("selector", ["GA999", "", "GA101,", "E501", "GA1011"])
def test_a_bad_selector_is_one_line_and_2(scripts: Path, run: CommandLine, selector: str) -> None:
    assert run("lint", "bad.py", f"--select={selector}") == 2
    assert run.out == ""
    assert len(run.err.splitlines()) == 1
    assert "unknown rule" in run.err


def stdin(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))


def test_standard_input(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, BAD.encode())
    assert run("lint", "-", "--stdin-filename", "src/bad.py") == 1
    assert run.out.startswith("src/bad.py:4:9: GA101")
    assert "4 |         loss.backward()" in run.out
    stdin(monkeypatch, BAD.encode())
    assert run("lint", "-", "--ignore", "GA101") == 0
    stdin(monkeypatch, b"def (: backward")
    assert run("lint", "-") == 2
    assert run.err.startswith("gradcheck-accum: -: not valid Python ")


def test_standard_input_is_alone(run: CommandLine) -> None:
    assert run("lint", "-", "train.py") == 2
    assert "cannot be combined" in run.err


# verify: what it measures is tested with the engine; here is what the door passes on and shows


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the engine: remembers how it was called, returns ``result``."""
    reference = ReferenceReport("ledger", "float32", "cpu")
    fake = SimpleNamespace(result=VerifyResult("train.py", Verdict.EQUIVALENT, "all right", "cpu", reference))

    def verify_script(*args: object, **kwargs: object) -> VerifyResult:
        fake.args, fake.kwargs = args, kwargs
        assert isinstance(fake.result, VerifyResult)
        return fake.result

    engine = SimpleNamespace(verify_script=verify_script, is_other_rank=lambda: False, is_orphan=lambda _: False)
    monkeypatch.setitem(sys.modules, "gradcheck_accum.verify", engine)  # type: ignore[arg-type]
    return fake


def test_verify_passes_on_what_was_asked(scripts: Path, run: CommandLine, verify: SimpleNamespace) -> None:
    options = "--max-windows 3 --reference replay --dtype float64 --device cpu --timeout 9.5"
    numbers = "--loss-coefficient 0.5 --rtol 1e-3 --atol 0"
    assert run("verify", *options.split(), *numbers.split(), "bad.py", "--", "--epochs", "2", "--", "x") == 0
    assert verify.args == ("bad.py", ["--epochs", "2", "--", "x"])
    assert verify.kwargs == {
        "module": None,
        "max_windows": 3,
        "reference": "replay",
        "dtype": "float64",
        "device": "cpu",
        "timeout": 9.5,
        "loss_coefficient": 0.5,
        "rtol": 1e-3,
        "atol": 0.0,
        "trajectory": False,
    }
    assert run.out == "train.py: equivalent: all right\n"


def test_verify_a_module(run: CommandLine, verify: SimpleNamespace) -> None:
    assert run("verify", "-m", "package.train") == 0
    assert verify.args == (None, [])
    assert verify.kwargs["module"] == "package.train"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"verdict": Verdict.DEVIATES}, 1),
        ({"verdict": Verdict.INCONCLUSIVE}, 3),
        ({"verdict": Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION}, 3),
        ({"error": "the script failed"}, 2),
    ],
)
def test_verify_exit_status(
    scripts: Path, run: CommandLine, verify: SimpleNamespace, change: dict[str, Any], status: int
) -> None:
    verify.result = replace(verify.result, **change)
    assert run("verify", "bad.py", "--output-format", "json") == status
    assert run.json["verdict"] == verify.result.verdict.value


def test_a_script_that_cannot_be_judged_is_one_line_and_2(run: CommandLine, verify: SimpleNamespace) -> None:
    verify.result = replace(verify.result, script="gone.py", error="no such file")
    assert run("verify", "gone.py") == 2
    assert (run.out, run.err) == ("", "gradcheck-accum: gone.py: no such file\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["verify"], "either a script or -m"),
        (["verify", "bad.py", "-m", "train"], "either a script or -m"),
        (["verify", "bad.py", "--rtol", "1e-3"], "both or neither"),
        (["verify", "bad.py", "--epochs", "2"], "go after --: gradcheck-accum verify bad.py -- --epochs 2"),
        (["verify", "--epochs", "2", "bad.py"], "go after --: gradcheck-accum verify bad.py -- --epochs 2"),
        (
            ["verify", "bad.py", "a b.csv", "--rtol", "0"],
            "go after --: gradcheck-accum verify bad.py --rtol 0 -- 'a b.csv'",
        ),
        (["verify", "bad.py", "--lr=1", "--", "x"], "go after --: gradcheck-accum verify bad.py -- --lr=1 x"),
        (["verify", "-m", "train", "--epochs", "2"], "go after --: gradcheck-accum verify -m train -- --epochs 2"),
        (["verify", "--epochs", "2"], "go after --: gradcheck-accum verify SCRIPT -- --epochs 2"),
        (["verify", "bad.py", "--ignore", "GA999"], "--ignore: unknown rule 'GA999'"),
        (["verify", "bad.py", "--max-windows", "x"], "argument --max-windows: must be a whole number, not 'x'"),
        (["verify", "bad.py", "--rtol", "x"], "argument --rtol: must be a number, not 'x'"),
        (["verify", "bad.py", "--loss-coefficient", "x"], "argument --loss-coefficient: must be a number, not 'x'"),
        (["lint", "--jobs", "x"], "argument --jobs: must be a whole number, not 'x'"),
        (["fuzz", "--seed", "x"], "argument --seed: must be a whole number, not 'x'"),
        (["lint", ""], "a path is empty"),
        (["lint", "bad.py", ""], "a path is empty"),
        (["fuzz", ""], "the target is empty"),
        (["verify", "bad.py", "--max-windows", "0"], "must be 1 or more"),
        (["verify", "bad.py", "--timeout", "nan"], "must be more than 0"),
        (["verify", "bad.py", "--rtol", "-1"], "must be 0 or more"),
        (["verify", "bad.py", "--dtype", "int8"], "invalid choice"),
        (["lint", "bad.py", "--", "x"], "only verify and compare accept arguments"),
        (["lint", "--fixed"], "unrecognized arguments: --fixed (see gradcheck-accum lint --help)"),
        (["explain", "GA999"], "unknown rule 'GA999'"),
        (["frobnicate"], "invalid choice"),
    ],
)
def test_usage_errors_are_one_line_and_2(
    scripts: Path, run: CommandLine, verify: SimpleNamespace, arguments: list[str], complaint: str
) -> None:
    assert run(*arguments) == 2
    assert run.out == ""
    (line,) = run.err.splitlines()
    assert line.startswith("gradcheck-accum: ")
    assert complaint in line


def test_the_command_alone_shows_its_help(run: CommandLine) -> None:
    assert run() == 2
    assert (run.out, run.err.split()[:2]) == ("", ["usage:", "gradcheck-accum"])


# the catalogue


@pytest.mark.parametrize("name", ["GA101", "ga101", "missing-loss-scaling"])
def test_explain_prints_the_page(run: CommandLine, name: str) -> None:
    assert run("explain", name) == 0
    assert run.out.startswith(
        "missing-loss-scaling (GA101)\n\n4 micro-batches make a gradient that is 4 times too large"
    )


def test_rules(run: CommandLine) -> None:
    assert run("rules") == 0
    table, legend = run.out.rstrip("\n").split("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == list(CATALOGUE)
    assert legend == "(lint): only where the source shows the numbers"
    assert run("rules", "--output-format", "json") == 0
    assert [rule["code"] for rule in run.json["rules"]] == list(CATALOGUE)


# the door itself


def test_an_error_of_ours_is_one_line_and_2(scripts: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("gradcheck_accum.lint.lint_paths", fail)
    assert run("lint", "bad.py") == 2
    assert run.err == (
        "gradcheck-accum: internal error: ValueError: two lines (GRADCHECK_ACCUM_DEBUG=1 shows the traceback)\n"
    )
    monkeypatch.setenv("GRADCHECK_ACCUM_DEBUG", "1")
    with pytest.raises(ValueError, match="two"):
        run("lint", "bad.py")


def test_an_interrupt_is_quiet(scripts: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradcheck_accum.lint.lint_paths", interrupt)
    assert run("lint", "bad.py") == 130
    assert run.err == ""


def test_a_reader_that_goes_away_is_no_error(scripts: Path) -> None:
    command = [sys.executable, "-m", "gradcheck_accum", "rules"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_version_and_module(scripts: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradcheck_accum", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gradcheck-accum {__version__}\n"


# streams and what they can take


def command(*arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own; ``shell`` redirects its streams."""
    line = f'exec "$0" -m gradcheck_accum "$@" {shell}'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *arguments], capture_output=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_no_report_is_lost_to_the_encoding_of_a_stream(scripts: Path, encoding: str) -> None:
    (scripts / "b\u00e4d_\u03a3.py").write_text(BAD, encoding="utf-8")
    done = command("lint", "b\u00e4d_\u03a3.py", "\u0436.py", PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    (first, *_), (error,) = done.stdout.decode(encoding).splitlines(), done.stderr.decode(encoding).splitlines()
    assert first.startswith(
        "b\u00e4d_\\u03a3.py:4:9: GA101" if encoding != "ascii" else "b\\xe4d_\\u03a3.py:4:9: GA101"
    )
    assert error == "gradcheck-accum: \\u0436.py: no such file or directory"


def test_verify_and_explain_lose_nothing_either(
    run: CommandLine, verify: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command("explain", "GA101", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u03a3" in done.stdout
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii"))
    verify.result = replace(verify.result, reason="\u2026 \udcff")
    assert main(["verify", "train.py"]) == 0
    assert written.getvalue().splitlines()[0] == rb"train.py: equivalent: \u2026 \udcff"


@pytest.mark.parametrize("arguments", [["lint", "bad.py"], ["lint", "plain.py"], ["rules"], ["--help"]])
@pytest.mark.parametrize(
    ("shell", "complaint"),
    [(">/dev/full", "standard output: No space left on device"), (">&-", "standard output is closed: ")],
)
def test_a_stream_that_takes_nothing_is_one_line_and_2(
    scripts: Path, arguments: list[str], shell: str, complaint: str
) -> None:
    done = command(*arguments, shell=shell, PYTHONUNBUFFERED="")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gradcheck-accum: {complaint}")


def test_other_streams_that_are_closed(scripts: Path) -> None:
    done = command("lint", "-", shell="<&-")
    assert (done.returncode, done.stderr) == (2, b"gradcheck-accum: standard input is closed\n")
    done = command("lint", "bad.py", shell="2>&-")
    assert (done.returncode, done.stdout[:16]) == (1, b"bad.py:4:9: GA10")


@pytest.mark.parametrize(
    ("environment", "painted"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_color_where_it_is_asked_for(
    scripts: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], painted: bool
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run("lint", "bad.py")
    assert ("\x1b[" in run.out) == painted


# what can be read only once


def test_a_pipe_is_a_path(scripts: Path) -> None:
    done = command("lint", "/dev/stdin", shell="< bad.py")
    assert (done.returncode, done.stderr) == (1, b"")
    done = subprocess.run(
        ["bash", "-c", '"$0" -m gradcheck_accum lint <(cat bad.py) plain.py', sys.executable],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert ":4:9: GA101" in done.stdout
    assert "4 |         loss.backward()" in done.stdout
    assert "Found 1 mistake in 1 file." in done.stdout


def test_a_named_pipe_is_read_once_and_not_written(scripts: Path, run: CommandLine) -> None:
    pipe = scripts / "pipe"
    os.mkfifo(pipe)
    assert run("lint", "--fix", "pipe") == 2
    assert run.err == "gradcheck-accum: pipe is not a regular file: --fix cannot write to it\n"
    with subprocess.Popen(["sh", "-c", "cat bad.py > pipe"]):
        assert run("lint", "pipe") == 1
    assert run.out.startswith("pipe:4:9: GA101")
    assert "4 |         loss.backward()" in run.out


def test_completion_offers_what_the_package_has() -> None:
    import gradcheck_accum

    assert {"AccumulationError", "check", "watch", "__version__"} <= set(dir(gradcheck_accum))

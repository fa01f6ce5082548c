"""[tool.gradcheck-accum.verify]: what a project has settled for its runs, and what takes its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradcheck_accum
from gradcheck_accum.cli import main
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult
from gradcheck_accum.settings import SettingsError, settings_for

ALL = """
max-windows = 7
reference = "replay"
dtype = "float64"
device = "cpu"
timeout = 9.5
loss-coefficient = 0.7
rtol = 1e-3
atol = 0
trajectory = true
verbose = true
select = ["GA1", "GA9"]
ignore = ["batch-coupled"]
"""
READ: dict[str, Any] = {
    "max_windows": 7,
    "reference": "replay",
    "dtype": "float64",
    "device": "cpu",
    "timeout": 9.5,
    "loss_coefficient": 0.7,
    "rtol": 1e-3,
    "atol": 0.0,
    "trajectory": True,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def settle(project: Path, verify: str, own: str = "") -> None:
    (project / "pyproject.toml").write_text(f"[tool.gradcheck-accum]\n{own}\n[tool.gradcheck-accum.verify]\n{verify}\n")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the engine, and remembers how it was called; a detail shows whether the report is verbose."""
    reference = ReferenceReport("ledger", "float32", "cpu")
    result = VerifyResult("t", Verdict.EQUIVALENT, "right", "cpu", reference, notes=("seen",), details=("seen",))
    fake = SimpleNamespace(told={}, is_other_rank=lambda: False, is_orphan=lambda _: False)

    def verify_script(script: str | None, arguments: list[str], *, module: str | None, **told: Any) -> VerifyResult:
        fake.told = told
        return result

    fake.verify_script = verify_script
    monkeypatch.setattr("gradcheck_accum.verify.verify_script", verify_script)
    return fake


def test_every_option_of_a_run(project: Path, engine: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, ALL)
    assert main(["verify", "train.py"]) == 0
    assert engine.told == READ
    assert "note: seen" in capsys.readouterr().out


def test_the_command_line_takes_the_place_of_each(
    project: Path, engine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, ALL)
    given = "--max-windows 3 --reference ledger --no-trajectory --no-verbose --atol 2 --timeout 1"
    assert main(["verify", "train.py", *given.split()]) == 0
    changed = {"max_windows": 3, "reference": "ledger", "trajectory": False, "atol": 2.0, "timeout": 1.0}
    assert engine.told == {**READ, **changed}
    assert "note: seen" not in capsys.readouterr().out


def test_the_codes_for_runs_take_the_place_of_the_projects(project: Path) -> None:
    settle(project, 'ignore = ["GA901"]', 'ignore = ["GA1"]\nselect = ["GA1", "GA3", "GA9"]')
    settings = settings_for(["train.py"])
    assert [settings.reports(code, "train.py") for code in ("GA101", "GA301", "GA901", "GA201")] == [0, 1, 1, 0]
    settings = settings.of_verify()
    assert [settings.reports(code, "train.py") for code in ("GA101", "GA301", "GA901", "GA201")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        ("max-window = 3", "has no setting 'max-window' (known settings: select, ignore, max-windows, reference, "),
        ("max-windows = 0", "max-windows: must be 1 or more"),
        ("max-windows = 2.5", "max-windows: must be a whole number"),
        ("max-windows = true", "max-windows: must be a whole number"),
        ('reference = "reply"', "reference: must be one of ledger, replay, both"),
        ('dtype = "int8"', "dtype: must be one of float64, float32, bfloat16, float16"),
        ("device = 0", "device: must be a string"),
        ('timeout = "3 s"', "timeout: must be a number"),
        ("timeout = 0", "timeout: must be more than 0"),
        ("loss-coefficient = true", "loss-coefficient: must be a number"),
        ("rtol = -1\natol = 0", "rtol: must be 0 or more"),
        ("rtol = nan\natol = 0", "rtol: must be a number"),
        ("rtol = 0.1", "rtol and atol are given both or neither"),
        ("trajectory = 1", "trajectory: must be true or false"),
        ('trajectory = true\nreference = "ledger"', "trajectory needs the replay: leave reference out, or give both"),
        ('ignore = ["GA999"]', "ignore: unknown rule 'GA999'"),
        ('select = "GA1"', "select: must be a list of strings"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(
    project: Path, verify: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, verify)
    assert main(["verify", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("gradcheck-accum: pyproject.toml: [tool.gradcheck-accum.verify] ")
    assert message in err


def test_what_is_no_table(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.gradcheck-accum]\nverify = 3\n")
    with pytest.raises(SettingsError, match=r"\[tool.gradcheck-accum.verify\] is not a table"):
        settings_for(["train.py"])


def test_options_that_clash_with_a_setting_are_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, "trajectory = true")
    assert main(["verify", "train.py", "--reference", "ledger"]) == 2
    assert "--trajectory needs the replay" in capsys.readouterr().err


def test_what_is_accepted_in_runs_is_accepted_by_check_too(project: Path) -> None:
    settle(project, 'ignore = ["GA101"]')

    source = """\
import torch


def train():
    torch.manual_seed(0)
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for i in range(6):
        ((torch.randn(5, 3) @ weight) ** 2).mean().backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    (project / "train.py").write_text(source)
    space: dict[str, Any] = {}
    exec(compile(source, str(project / "train.py"), "exec"), space)
    result = gradcheck_accum.check(space["train"])
    assert [one.diagnosis.mistake.code for one in result.accepted] == ["GA101"]
    (project / "pyproject.toml").unlink()
    with pytest.raises(gradcheck_accum.AccumulationError, match="GA101"):
        gradcheck_accum.check(space["train"])

"""What others run from this repository: the pre-commit hook, the GitHub Action, and the recipes in the docs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plain_loops import plain_loop

from gradcheck_accum.cli import main

ROOT = Path(__file__).parents[1]

BAD = plain_loop(3, flush=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.gradcheck-accum]\nextend-exclude = ["third_party/"]\n')
    for path in ("train.py", "third_party/a.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(BAD)
    return tmp_path


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_hook_lints_what_it_is_given_but_for_what_is_excluded(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hook,) = read(".pre-commit-hooks.yaml")
    assert (hook["id"], hook["language"]) == ("gradcheck-accum", "python")
    program, *arguments = shlex.split(hook["entry"])
    assert program == "gradcheck-accum"
    assert main([*arguments, "third_party/a.py", "train.py"]) == 1
    out = capsys.readouterr().out
    assert "train.py:4:9: GA101" in out
    assert "third_party" not in out


def lint_step(project: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The Action's last step as a runner runs it, with the command where the step before would install it."""
    action = read("action.yml")
    step = action["runs"]["steps"][-1]
    given = {name: inputs.get(name, meant["default"]) for name, meant in action["inputs"].items()}
    environment = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], value)
        for name, value in step["env"].items()
    }
    installed = project / "runner" / "gradcheck-accum" / "bin"
    installed.mkdir(parents=True, exist_ok=True)
    command = installed / "gradcheck-accum"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gradcheck_accum "$@"\n')
    command.chmod(0o755)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**os.environ, **environment, "RUNNER_TEMP": str(project / "runner"), "GITHUB_WORKSPACE": str(project)},
        capture_output=True,
        text=True,
    )


def test_the_action_annotates_and_fails(project: Path) -> None:
    done = lint_step(project)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("::error file=train.py,line=4,endLine=4,col=9,endColumn=24,title=gradcheck-accum%3A")
    assert "third_party" not in done.stdout


def test_the_action_takes_paths_a_line_and_options(project: Path) -> None:
    (project / "two words.py").write_text(BAD)
    done = lint_step(project, paths="train.py\ntwo words.py\n", args="--output-format concise --exit-zero")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:2]] == ["train.py", "two words.py"]


def recipes() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.M | re.S)


def commands(text: str) -> list[list[str]]:
    """Our own command lines in a recipe."""
    return [shlex.split(line[1]) for line in re.finditer(r"(gradcheck-accum (?:lint|verify) .*)$", text, re.M)]


def test_the_recipes_are_yaml_and_their_command_lines_are_understood(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [command for text in recipes() if yaml.safe_load(text) for command in commands(text)]
    assert sorted(command[1] for command in found) == ["lint", "verify"]
    for _, command, script, *arguments in found:
        missing = script if command == "lint" else "gone.py"
        main([command, missing, *arguments])
        assert "argument" not in capsys.readouterr().err


def test_the_task_of_vs_code_finds_what_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs" / "editors.md").read_text("utf-8"), re.M | re.S)
    (task,) = json.loads(found)["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    _, *arguments = shlex.split(task["command"])
    assert main(arguments) == 1
    (problem,) = (re.match(pattern["regexp"], line) for line in capsys.readouterr().out.splitlines())
    assert problem is not None
    assert [problem[pattern[name]] for name in ("file", "line", "column", "code")] == ["train.py", "4", "9", "GA101"]

"""Baselines: what is known already is not reported again, and what is new is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plain_loops import plain_loop


def bad(name: str) -> str:
    return plain_loop(4, flush=True, name=name)


def test_what_is_listed_is_not_reported(project: Any) -> None:
    project.write("train.py", bad("a"))
    assert project.lint("--write-baseline", "known.json") == 0
    assert project.out == "Wrote 1 mistake to known.json.\n"
    assert json.loads((project.root / "known.json").read_text())["findings"] == [
        {"path": "train.py", "code": "GA101", "text": "loss.backward()", "count": 1}
    ]
    assert project.lint("--baseline", "known.json") == 0
    assert project.out == "No mistakes found in 1 file (1 in the baseline).\n"
    assert project.report("--baseline", "known.json")["summary"]["in_baseline"] == 1
    assert "in_baseline" not in project.report()["summary"]


def test_it_outlives_edits_around_the_finding(project: Any) -> None:
    project.write("train.py", bad("a"))
    project.lint("--write-baseline", "known.json")
    project.write("train.py", "import torch\n\n\n" + bad("renamed").replace("        loss.b", "\t\tloss.b"))
    project.write("train.py", "import torch\n\n\n" + bad("renamed").replace("optimizer", "opt"))
    assert project.lint("--baseline", "known.json") == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + bad("b"),
        lambda text: text.replace("loss.backward()", "loss.backward(retain_graph=True)"),
    ],
    ids=["another like it", "another line"],
)
def test_what_is_new_is_reported(project: Any, change: Any) -> None:
    project.write("train.py", bad("a"))
    project.lint("--write-baseline", "known.json")
    project.write("train.py", change(bad("a")))
    assert len(project.found("--baseline", "known.json")) == 1


def test_another_file_is_another_finding(project: Any) -> None:
    project.write("train.py", bad("a"))
    project.lint("--write-baseline", "known.json")
    project.write("other.py", bad("a"))
    assert project.paths("--baseline", "known.json") == ["other.py"]


def test_paths_are_relative_to_the_baseline(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("src/train.py", bad("a"))
    project.settings('baseline = "ci/known.json"')
    (project.root / "ci").mkdir()
    assert project.lint("--write-baseline", "ci/known.json") == 0
    assert json.loads((project.root / "ci/known.json").read_text())["findings"][0]["path"] == "../src/train.py"
    assert project.lint() == 0
    monkeypatch.chdir(project.root / "src")
    assert project.lint() == 0
    assert project.lint(str(project.root)) == 0


def test_writing_again_takes_no_account_of_the_old_list(project: Any) -> None:
    project.settings('baseline = "known.json"')
    project.write("train.py", bad("a"))
    for _ in range(2):
        assert project.lint("--write-baseline", "known.json") == 0
        assert project.out == "Wrote 1 mistake to known.json.\n"


def test_the_command_line_beats_the_settings(project: Any) -> None:
    project.write("train.py", bad("a"))
    project.lint("--write-baseline", "full.json")
    project.lint("--write-baseline", "empty.json", "--ignore", "GA")
    project.settings('baseline = "empty.json"')
    assert project.lint() == 1
    assert project.lint("--baseline", "full.json") == 0


def test_the_cells_of_a_notebook_may_move(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook(bad("a")))
    project.lint("--write-baseline", "known.json")
    project.write("train.ipynb", notebook(("markdown", "x"), "x = 1", bad("a")))
    assert project.lint("--baseline", "known.json") == 0


@pytest.mark.parametrize("content", [None, "{", "[]", '{"version": 2, "findings": []}', '{"version": 1}'])
def test_what_is_no_baseline_is_one_line_and_2(project: Any, content: str | None) -> None:
    project.write("train.py", bad("a"))
    if content is not None:
        project.write("known.json", content)
    assert project.lint("--baseline", "known.json") == 2
    assert project.out == ""
    (line,) = project.err.splitlines()
    assert line.startswith("gradcheck-accum: baseline known.json: ")


def test_a_place_that_cannot_be_written_to_is_one_line_and_2(project: Any) -> None:
    project.write("train.py", bad("a"))
    assert project.lint("--write-baseline", "no/such/known.json") == 2
    assert len(project.err.splitlines()) == 1


def test_statistics(project: Any) -> None:
    project.write("a.py", bad("a") + bad("b"))
    project.write("b.py", bad("a").replace(" or i + 1 == len(loader)", ""))
    assert project.lint("--statistics") == 1
    assert project.out.splitlines() == [
        "3  GA101  missing-loss-scaling",
        "1  GA301  remainder-dropped",
        "Found 4 mistakes in 2 files.",
        "3 fixable with --fix, 1 more with --unsafe-fixes.",
    ]
    assert project.lint("--statistics", "--ignore", "GA") == 0
    assert project.out == "No mistakes found in 2 files.\n"

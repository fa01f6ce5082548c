"""Large repositories: what is skipped, remembered, and done in several processes changes no result."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import programs

from gradcheck_accum.lint import lint_paths, lint_source
from gradcheck_accum.lint.project.run import ENOUGH_FOR_WORKERS
from gradcheck_accum.report.progress import ProgressBar

WRITTEN = programs("fixtures", "fixtures/demo", "fixtures/distributed", "fixtures/frameworks")


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More written loops in one directory than one process takes on."""
    directory = tmp_path_factory.mktemp("loops")
    for number, script in enumerate((WRITTEN * 2)[: ENOUGH_FOR_WORKERS + 8]):
        (directory / f"{number:03}.py").write_text(script, encoding="utf-8")
    (directory / "020_broken.py").write_text("def f(:\n    loss.backward()\n    optimizer.step()\n")
    return directory


@pytest.mark.slow
def test_several_processes_find_what_one_finds(loops: Path) -> None:
    alone = lint_paths([str(loops)])
    assert len(alone.findings) > 10
    assert lint_paths([str(loops)], jobs=3) == alone


@pytest.mark.slow
def test_a_system_without_processes_gets_the_same(loops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = lint_paths([str(loops)])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    assert lint_paths([str(loops)], jobs=3) == alone


@pytest.mark.slow
def test_every_file_is_counted_as_it_is_done(loops: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        told: list[tuple[int, int]] = []
        lint_paths([str(loops)], jobs=jobs, progress=lambda done, total, told=told: told.append((done, total)))  # type: ignore[misc]
        assert [done for done, _ in told] == list(range(1, told[0][1] + 1))
    lint_paths([str(loops)], cache_in=tmp_path)
    told.clear()
    lint_paths([str(loops)], cache_in=tmp_path, progress=lambda done, total: told.append((done, total)))
    # All but the broken one are known.
    assert told == [(ENOUGH_FOR_WORKERS + 9, ENOUGH_FOR_WORKERS + 9)]


@pytest.mark.thorough
def test_what_is_skipped_holds_no_finding(tmp_path: Path) -> None:
    for script in WRITTEN:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        expected = [(f.mistake.code, f.where.line) for f in lint_source(script, "train.py")]
        found = lint_paths([str(tmp_path)]).findings
        assert [(f.mistake.code, f.where.line) for f in found] == expected


def test_what_cannot_matter_is_not_even_parsed(project: Any) -> None:
    project.write("python2.py", "print 'no loop'\n")
    project.write("function.py", "class F(Function):\n    def backward(ctx, g): print 'python 2'\n")
    project.write("latin.py", b"s = '\xe4'\n")
    assert project.lint() == 0
    assert project.report()["summary"]["files"] == 3
    # By name, each is a question that deserves an answer.
    for name in ("python2.py", "function.py", "latin.py"):
        assert project.lint(name) == 2


def test_an_error_of_ours_costs_one_file(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradcheck_accum.lint.examination import scenarios

    def fail(facts: object, beside: Any, **options: object) -> Any:
        if beside.path == "a.py":
            raise LookupError("no\nsuch thing")
        return explore(facts, beside, **options)  # type: ignore[arg-type]

    explore = scenarios.explore
    monkeypatch.setattr("gradcheck_accum.lint.examination.scenarios.explore", fail)
    project.write("a.py")
    project.write("b.py")
    assert project.lint() == 2
    assert "b.py:4:9: GA101" in project.out
    (line,) = project.err.splitlines()
    assert line.startswith("gradcheck-accum: a.py: internal error: LookupError: no such thing (GRADCHECK_ACCUM_DEBUG=1")


# The cache


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were analyzed."""
    from gradcheck_accum.lint.project import run

    analyzed: list[str] = []
    open_document = run.open_document

    def count(source: bytes, path: str) -> Any:
        analyzed.append(path)
        return open_document(source, path)

    monkeypatch.setattr(run, "open_document", count)
    return analyzed


def test_what_was_analyzed_is_not_analyzed_again(project: Any, notebook: Any, counted: list[str]) -> None:
    project.write("a.py")
    project.write("b.py", "def f(loss):\n    loss.backward()  # gradcheck-accum: ignore[GA101]\n")
    project.write("c.ipynb", notebook((project.root / "a.py").read_text()))
    first = project.report("--report-unused-suppressions")
    assert counted == ["a.py", "b.py", "c.ipynb"]
    assert (len(first["findings"]), len(first["unused_suppressions"])) == (2, 1)
    counted.clear()
    assert project.report("--report-unused-suppressions") == first
    assert counted == []
    assert project.report("--report-unused-suppressions", "--no-cache") == first
    assert counted == ["a.py", "b.py", "c.ipynb"]


def test_changed_and_moved_files(project: Any, counted: list[str]) -> None:
    project.write("a.py")
    project.write("b.py", (project.root / "a.py").read_text() + "# b\n")
    project.lint()
    counted.clear()
    (project.root / "a.py").rename(project.root / "z.py")
    project.write("b.py", (project.root / "b.py").read_text().replace("backward()", "backward()  # noqa"))
    assert project.paths() == ["z.py"]
    assert counted == ["b.py"]


def test_settings_choose_from_what_is_remembered(project: Any, counted: list[str]) -> None:
    project.write("a.py")
    project.write("b.py")
    assert project.paths("--ignore", "GA101") == []
    counted.clear()
    assert project.paths() == ["a.py", "b.py"]
    project.settings('per-file-ignores = {"a.py" = ["GA101"]}')
    assert project.paths() == ["b.py"]
    assert counted == []


def test_other_code_makes_other_results(
    project: Any, counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.py")
    project.write("b.py")
    project.lint()
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr("gradcheck_accum.lint.project.cache.PACKAGE", package)
    for source in ('__version__ = "1"', '__version__ = "2"', None, None):
        # Code whose source is not at hand could be any: its outcomes are not kept.
        (package / "__init__.py").unlink(missing_ok=True)
        if source:
            (package / "__init__.py").write_text(source)
        counted.clear()
        project.lint()
        assert counted == ["a.py", "b.py"]
        counted.clear()
        project.lint()
        assert counted == ([] if source else ["a.py", "b.py"])


def test_the_cache_is_no_part_of_the_repository(project: Any) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    project.write("a.py")
    project.write("b.py")
    project.lint()
    assert sorted(os.listdir(".gradcheck-accum-cache")) == [".gitignore", "lint.json"]
    status = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert "gradcheck-accum-cache" not in status


def test_one_file_by_name_and_no_cache_leave_nothing_behind(project: Any) -> None:
    project.write("a.py")
    project.write("b.py")
    project.lint("a.py")
    project.lint("--no-cache")
    assert sorted(os.listdir()) == ["a.py", "b.py"]


def corruptions() -> list[Any]:
    return [
        lambda text: "",
        lambda text: "[]",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("GA101", "GA000"),
        lambda text: text.replace('"line":4', '"lines":4'),
        lambda text: text.replace('"line":4', '"line":"four"'),
        lambda text: text.replace('"findings":[', '"findings":[7,'),
        lambda text: json.dumps({**json.loads(text), "files": []}),
        lambda text: json.dumps({"stamp": json.loads(text)["stamp"]}),
        lambda text: "[" * 100_000,
    ]


@pytest.mark.parametrize("corrupt", corruptions())
def test_a_corrupt_cache_is_as_good_as_none(project: Any, corrupt: Any) -> None:
    project.write("a.py")
    project.write("b.py")
    expected = project.report()
    store = project.root / ".gradcheck-accum-cache" / "lint.json"
    store.write_text(corrupt(store.read_text()))
    assert project.report() == expected
    assert json.loads(store.read_text())["files"]


def test_a_place_that_takes_no_cache_is_no_problem(project: Any) -> None:
    project.write("a.py")
    project.write("b.py")
    project.write(".gradcheck-accum-cache", "a file")
    assert project.paths() == ["a.py", "b.py"]


# What a terminal shows, and what is loaded


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_and_goes_away() -> None:
    for stream, expected in ((io.StringIO(), False), (Terminal(), True)):
        bar = ProgressBar(stream)
        for done in range(1, 101):
            bar(done, 100)
        bar.clear()
        text = stream.getvalue()
        assert ("100 % of 100 files" in text) == expected
        assert text.endswith("\r\x1b[K") == expected
        assert "\n" not in text
    bar = ProgressBar(terminal := Terminal())
    bar(3, 3)
    bar.clear()
    assert terminal.getvalue() == ""


def test_one_small_file_loads_nothing_that_it_does_not_need(project: Any) -> None:
    project.write("train.py", "print('nothing to find, and so nothing to fix')\n")
    code = "from gradcheck_accum.cli import main; main(['lint', 'train.py']); import json, sys; "
    code += "print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"torch", "numpy", "pathspec", "tomllib", "tomli", "hashlib", "tempfile", "multiprocessing"}
    assert loaded & {*heavy, "concurrent.futures", "gradcheck_accum.verify", "gradcheck_accum.engine"} == set()

"""[tool.gradcheck-accum] in pyproject.toml."""

from __future__ import annotations

from typing import Any

import pytest
from plain_loops import plain_loop

# GA101 at line 4, and GA301: nothing flushes what is left.
TWO = plain_loop(4)


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ("", [], ["GA101", "GA301"]),
        ('select = ["GA3"]', [], ["GA301"]),
        ('select = ["GA3"]\nextend-select = ["missing-loss-scaling"]', [], ["GA101", "GA301"]),
        ('extend-select = ["GA1"]', [], ["GA101", "GA301"]),
        ('ignore = ["GA301"]', [], ["GA101"]),
        ('select = ["GA3"]', ["--select", "GA1"], ["GA101"]),
        ('ignore = ["GA301"]', ["--ignore", "GA101"], ["GA301"]),
        ('ignore = ["GA301"]', ["--select", "GA301"], []),
        ('[tool.gradcheck-accum.per-file-ignores]\n"*.py" = ["GA101"]', [], ["GA301"]),
        ('[tool.gradcheck-accum.per-file-ignores]\n"other.py" = ["GA101"]', [], ["GA101", "GA301"]),
        ('[tool.gradcheck-accum.per-file-ignores]\n"src/**" = ["GA"]', [], []),
        ('per-file-ignores = {"/src" = ["GA1"], "train.py" = ["GA3"]}', [], []),
    ],
)
def test_what_is_reported(project: Any, settings: str, options: list[str], expected: list[str]) -> None:
    project.write("src/train.py", TWO)
    project.settings(settings)
    assert [code for _, code in project.found("src/train.py", *options)] == expected


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ("", [], ["a/old/t.py", "a/t.py", "b.py"]),
        ('exclude = ["old", "/b.py"]', [], ["a/t.py", "build/t.py"]),
        ('extend-exclude = ["a/old/"]', [], ["a/t.py", "b.py"]),
        ('extend-exclude = ["a/*", "!a/t.py"]', [], ["a/t.py", "b.py"]),
        ('exclude = ["old"]', ["--exclude", "a,build"], ["b.py"]),
        ('extend-exclude = ["old"]', ["--extend-exclude", "b.py"], ["a/t.py"]),
    ],
)
def test_what_is_read(project: Any, settings: str, options: list[str], expected: list[str]) -> None:
    for path in ("a/old/t.py", "a/t.py", "b.py", "build/t.py"):
        project.write(path)
    project.settings(settings)
    assert project.paths(*options) == expected


def test_the_nearest_settings_above_all_the_paths_hold(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.settings('ignore = ["GA301"]')
    project.write("a/pyproject.toml", '[tool.gradcheck-accum]\nignore = ["GA101"]\n')
    project.write("a/deep/pyproject.toml", "[project]\nname = 'x'\n")  # says nothing of us
    project.write("a/deep/train.py", TWO)
    project.write("b/train.py", TWO)
    assert project.found("a/deep/train.py") == [("a/deep/train.py", "GA301")]
    assert project.found("a") == [("a/deep/train.py", "GA301")]
    assert project.found("a", "b") == [("a/deep/train.py", "GA101"), ("b/train.py", "GA101")]
    # Where the command is run does not matter.
    monkeypatch.chdir(project.root / "b")
    assert [code for _, code in project.found("../a")] == ["GA301"]
    assert [code for _, code in project.found()] == ["GA101"]


def test_patterns_are_relative_to_their_file(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a/src/train.py")
    project.write("src/train.py")
    project.settings('extend-exclude = ["/src"]')
    monkeypatch.chdir(project.root / "a")
    assert project.paths("..") == ["../a/src/train.py"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("selct = []", "has no setting 'selct'"),
        ('select = "GA101"', "select: must be a list of strings"),
        ("ignore = [101]", "ignore: must be a list of strings"),
        ('select = ["GA999"]', "select: unknown rule 'GA999'"),
        ('extend-select = ["nope"]', "extend-select: unknown rule 'nope'"),
        ("exclude = {}", "exclude: must be a list of strings"),
        ('exclude = ["!"]', "exclude: "),
        ('per-file-ignores = ["a.py"]', "per-file-ignores: must be a table"),
        ('per-file-ignores = {"a.py" = "GA101"}', "per-file-ignores 'a.py': must be a list of strings"),
        ('per-file-ignores = {"a.py" = ["GA0"]}', "per-file-ignores: unknown rule 'GA0'"),
        ("baseline = 3", "baseline: must be a path"),
        ('baseline = "gone.json"', "gone.json"),
        ("select = [", "not TOML"),
    ],
)
def test_a_bad_setting_is_one_line_with_its_name_and_2(project: Any, settings: str, complaint: str) -> None:
    project.write("sub/train.py")
    project.settings(settings)
    assert project.lint("sub") == 2
    assert project.out == ""
    (line,) = project.err.splitlines()
    assert line.startswith("gradcheck-accum: ")
    assert complaint in line
    assert "pyproject.toml" in line or "baseline" in line


def test_a_table_of_another_kind(project: Any) -> None:
    project.write("train.py")
    project.write("pyproject.toml", "[tool]\ngradcheck-accum = 1\n")
    assert project.lint() == 2
    assert "pyproject.toml: [tool.gradcheck-accum] is not a table" in project.err


def test_other_peoples_broken_files_are_not_ours(project: Any) -> None:
    project.write("train.py")
    project.write("pyproject.toml", "= no TOML")
    assert project.lint() == 1


def test_standard_input_has_the_settings_of_its_name(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    from types import SimpleNamespace

    project.settings('per-file-ignores = {"sub" = ["GA101"]}')
    for name, expected in (("sub/train.py", 0), ("train.py", 1)):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO((project.write("t.py")).read_bytes())))
        assert project.lint("-", "--stdin-filename", name) == expected

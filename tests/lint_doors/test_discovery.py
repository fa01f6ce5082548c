"""Which files lint reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_what_git_ignores_is_not_read(project: Any) -> None:
    (project.root / ".git").mkdir()
    project.write(".gitignore", "generated/\n*_old.py\n!kept_old.py\n/only_here.py\n# comment\n\n!\n")
    project.write("sub/.gitignore", "!rescued_old.py\nlocal.py\n")
    for path in (
        "generated/a.py",
        "train_old.py",
        "kept_old.py",
        "only_here.py",
        "sub/only_here.py",
        "sub/rescued_old.py",
        "sub/local.py",
        "sub/train_old.py",
        "sub/generated/a.py",
        "local.py",
    ):
        project.write(path)
    expected = ["kept_old.py", "local.py", "sub/only_here.py", "sub/rescued_old.py"]
    assert project.paths() == expected
    # A .gitignore above the directory that is walked holds as well.
    assert project.paths("sub") == expected[2:]


def test_excludes_of_the_repository_itself(project: Any) -> None:
    project.write(".git/info/exclude", "mine.py\n")
    project.write("mine.py")
    project.write("train.py")
    assert project.paths() == ["train.py"]


def test_a_gitignore_above_a_directory_outside_any_repository_is_none_of_its_business(project: Any) -> None:
    project.write(".gitignore", "*.py\n")
    project.write("sub/train.py")
    assert project.paths("sub") == ["sub/train.py"]


def test_what_is_given_by_name_is_always_read(project: Any) -> None:
    (project.root / ".git").mkdir()
    project.write(".gitignore", "ignored/\n")
    project.settings('exclude = ["excluded"]')
    for path in ("ignored/train.py", "excluded/train.py", "build/train.py", ".hidden/train.py", "train.txt"):
        project.write(path)
        assert project.paths(path) == [path]
    # So is the content of a directory that is.
    assert project.paths("ignored") == ["ignored/train.py"]
    assert project.paths("excluded") == ["excluded/train.py"]


@pytest.mark.parametrize(
    "directory",
    [".git", ".venv", "venv", "node_modules", "build", "dist", "__pycache__", "lib/site-packages", ".tox/py311"],
)
def test_what_holds_nobodys_own_source_is_not_walked(project: Any, directory: str) -> None:
    project.write(f"{directory}/train.py")
    project.write("ok.py")
    assert project.paths() == ["ok.py"]


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_is_known_by_its_marks(project: Any, mark: str) -> None:
    project.write(f"env/{mark}", "")
    project.write("env/lib/train.py")
    project.write("ok.py")
    assert project.paths() == ["ok.py"]


def test_links_do_no_harm(project: Any) -> None:
    project.write("a/train.py")
    os.symlink(project.root, project.root / "a" / "up", target_is_directory=True)
    os.symlink("loop.py", project.root / "a" / "loop.py")
    os.symlink("gone.py", project.root / "a" / "dangling.py")
    os.symlink("train.py", project.root / "a" / "same.py")
    os.symlink(project.root / "a", project.root / "b", target_is_directory=True)
    # A link to a file is that file, which is read once, under the first of its names.
    assert project.paths() == ["a/same.py"]
    assert project.paths("b") == ["b/same.py"]
    assert project.paths("a", ".", "b", "a/train.py") == ["a/same.py"]


def test_paths_are_written_as_they_were_given(project: Any) -> None:
    file = project.write("a/train.py")
    assert project.paths(".") == project.paths("./a") == project.paths("a/") == ["a/train.py"]
    assert project.paths(str(project.root)) == [str(file)]


def test_directories_are_walked_in_order(project: Any) -> None:
    for path in ("b.py", "a/z.py", "a.py", "c/a.py"):
        project.write(path)
    assert project.paths() == ["a/z.py", "a.py", "b.py", "c/a.py"]


def test_directories_may_be_nested_more_deeply_than_calls(project: Any) -> None:
    where = project.root
    for _ in range(1_100):
        os.mkdir("a")
        os.chdir("a")
    Path("train.py").write_bytes(b"x = 1\n")
    os.chdir(where)
    assert project.lint(".") == 0
    assert project.out == "No mistakes found in 1 file.\n"
    subprocess.run(["rm", "-r", "a"], check=True)  # `shutil.rmtree`, which pytest clears up with, cannot


def test_what_is_excluded_is_not_read_by_name_either_where_that_is_forced(project: Any) -> None:
    project.settings('extend-exclude = ["third_party/", "*_generated.py"]')
    held_back = ("third_party/deep/a.py", "train_generated.py", "build/a.py", ".github/scripts/a.py", "sub/venv/a.py")
    for path in (*held_back, "train.py"):
        project.write(path)
    assert sorted(project.paths(*held_back, "train.py")) == sorted([*held_back, "train.py"])
    assert project.paths("--force-exclude", *held_back, "train.py") == ["train.py"]
    assert project.paths("--force-exclude", "third_party", "sub/venv", ".github", ".") == ["train.py"]
    assert project.lint("--force-exclude", *held_back) == 0
    assert project.out == "No mistakes found in 0 files.\n"


def test_forced_excludes_are_those_that_hold(project: Any) -> None:
    project.settings('exclude = ["old/"]')
    for path in ("old/a.py", "build/a.py"):
        project.write(path)
    assert project.paths("--force-exclude", "old/a.py", "build/a.py") == ["build/a.py"]
    assert project.paths("--force-exclude", "--exclude", "build", "old/a.py", "build/a.py") == ["old/a.py"]


def test_only_the_names_below_the_project_force_anything(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.settings("")
    project.write("build/checkout/train.py")
    project.write("build/checkout/pyproject.toml", "[tool.gradcheck-accum]\n")
    assert project.paths("--force-exclude", "build/checkout/train.py") == ["build/checkout/train.py"]
    monkeypatch.chdir(project.root / "build" / "checkout")
    assert project.paths("--force-exclude", "train.py") == ["train.py"]


def test_standard_input_can_be_excluded_by_the_name_that_it_has(project: Any) -> None:
    project.settings('extend-exclude = ["third_party/"]')
    source = project.write("third_party/a.py").read_bytes()
    command = [sys.executable, "-m", "gradcheck_accum", "lint", "-", "--stdin-filename", "third_party/a.py"]
    assert subprocess.run(command, input=source, capture_output=True).returncode == 1
    done = subprocess.run([*command, "--force-exclude", "--fix"], input=source, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, source, b"No mistakes found in 0 files.\n")

"""lint on trees that somebody has built against it: every file is answered for, in time and in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_accum.files import write_atomically
from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.sources.lines import changes
from gradcheck_accum.sources.prefilter import may_train_with_others

from .conftest import BAD

WITH_HELPER = "from helper import back\n" + BAD.replace("loss.backward()", "back(loss)")
SECONDS = 300
"""Far more than any of them takes: a test that waits forever fails, and does not block the others."""


@pytest.fixture(autouse=True)
def nobody_waits_for_ever() -> Iterator[None]:
    def fail(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_directory(path: Path) -> None:
    path.mkdir()


def a_circle(path: Path) -> None:
    path.symlink_to(path.name)


SPECIAL = [pipe, endless, a_directory, a_circle]


# Something else where a file should be


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize(
    "name", ["pyproject.toml", ".gitignore", "other.py", "other.ipynb", ".gradcheck-accum-cache/lint.json"]
)
def test_what_is_no_file_is_passed_over(project: Any, name: str, make: Callable[[Path], None]) -> None:
    project.write("a.py")
    project.write("b.py")
    (project.root / name).parent.mkdir(exist_ok=True)
    make(project.root / name)
    assert project.paths() == ["a.py", "b.py"]


@pytest.mark.parametrize("make", SPECIAL)
def test_a_module_beside_it_that_is_no_file_is_none(project: Any, make: Callable[[Path], None]) -> None:
    project.write("train.py", WITH_HELPER)
    make(project.root / "helper.py")
    assert project.paths("train.py") == []


@pytest.mark.parametrize("make", SPECIAL)
def test_a_baseline_that_is_no_file_is_one_line_and_2(project: Any, make: Callable[[Path], None]) -> None:
    project.write("a.py")
    make(project.root / "known.json")
    assert project.lint("--baseline", "known.json") == 2
    assert project.err.startswith("gradcheck-accum: ")
    assert project.err.count("known.json") == project.err.count("\n") == 1


def test_a_link_to_itself_that_is_named_is_one_line_and_2(project: Any) -> None:
    a_circle(project.root / "train.py")
    assert project.lint("train.py") == 2
    assert project.err == "gradcheck-accum: train.py: no such file or directory\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_cannot_be_read_is_passed_over(project: Any) -> None:
    project.write("a.py")
    locked = project.write("locked/b.py").parent
    locked.chmod(0)
    assert project.paths() == ["a.py"]
    locked.chmod(0o700)


# Names and lines that would command a terminal


COMMANDS = "\x1b[1A\x1b[2K\r\x9b8m\u202e"
"""Erases a line, goes back to its beginning, conceals what follows, and turns it round."""


@pytest.mark.parametrize("form", ["text", "concise", "github", "text with a file of no Python"])
def test_nothing_that_a_stranger_wrote_commands_a_terminal(project: Any, form: str) -> None:
    project.write(f"a{COMMANDS}.py", BAD.replace("loss.backward()", f"loss.backward()  # {COMMANDS}".replace("\r", "")))
    broken = form.startswith("text with")
    if broken:
        project.write(f"b{COMMANDS}\n.py", BAD + "(")
    status = project.lint("--no-cache", "--output-format", form.split()[0], ".")
    assert status == (2 if broken else 1)
    assert "GA101" in project.out
    assert not set(project.out + project.err) & set(COMMANDS) - set("[1A2K8m")
    assert project.err.count("\n") == broken


def test_a_name_that_is_no_unicode_is_one_like_any_other(project: Any) -> None:
    path = os.fsencode(project.root) + b"/train\xff.py"
    with open(path, "w") as file:
        file.write(BAD)
    (finding,) = project.report(".")["findings"]
    assert os.fsencode(finding["path"]) == b"train\xff.py"
    for form in ("text", "concise", "sarif", "github", "junit"):
        assert project.lint("--output-format", form, "--output-file", "report", ".") == 1
        assert (project.root / "report").stat().st_size
    assert project.lint("--write-baseline", "known.json", ".") == 0
    assert project.lint("--baseline", "known.json", ".") == 0
    assert project.lint("--fix", ".") == 0
    with open(path) as file:
        assert file.read() == fix_source(BAD, "train.py", unsafe=False).source


# Settings


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[tool.gradcheck-accum]\nselect = " + "[" * 5_000 + "]" * 5_000, "pyproject.toml: nested too deeply"),
        ("[tool.gradcheck-accum]\n[tool.x]\na = " + "{a=" * 5_000 + "1" + "}" * 5_000, "nested too deeply"),
        ("[tool.gradcheck-accum]\n#" + "x" * 2**20, "pyproject.toml: larger than 1 MiB, not read"),
        ("[tool.gradcheck-accum]\nselect = " + "9" * 5_000, "pyproject.toml"),
        ('[tool.gradcheck-accum]\nbaseline = "a\\u0000b"', "baseline"),
        ("[tool.gradcheck-accum]\nselect = 1979-05-27T07:32:00Z", "must be a list of strings"),
        ("[tool.gradcheck-accum.verify.timeout]\na = 1", "timeout"),
        ("gradcheck-accum\0", "pyproject.toml: not TOML"),
    ],
    ids=["arrays", "another table", "large", "number", "null", "time", "table", "no TOML"],
)
def test_settings_that_make_no_sense_are_one_line_and_2(project: Any, content: str, complaint: str) -> None:
    project.write("train.py")
    project.write("pyproject.toml", content)
    assert project.lint("train.py") == 2
    assert complaint in project.err
    assert project.err.startswith("gradcheck-accum: ")
    assert project.err.count("\n") == 1
    assert "internal error" not in project.err


# Sources


@pytest.mark.parametrize(
    "loss",
    [
        "criterion(model" + ".a" * 5_000 + "(x), y)",
        "criterion(model(x), y)" + " + a" * 5_000,
        "criterion(model(x), y)" + " and a" * 5_000,
        "criterion(model(x), y)" + "()" * 5_000,
        "a if b else " * 5_000 + "criterion(model(x), y)",
        "not " * 5_000 + "criterion(model(x), y)",
        "(" * 10_000 + "criterion(model(x), y)" + ")" * 10_000,
        "[" * 5_000 + "]" * 5_000,
    ],
    ids=["attributes", "sum", "and", "calls", "choices", "not", "parentheses", "lists"],
)
def test_what_is_nested_too_deeply_is_one_line_and_2(project: Any, loss: str) -> None:
    project.write("train.py", BAD.replace("criterion(model(x), y)", loss))
    status = project.lint("--no-cache", "train.py")
    if status == 0 and sys.version_info >= (3, 14):
        # That Python reads deeper: the weight of such a loss is not known.
        assert project.out.startswith("No mistakes found in 1 file")
        return
    assert status == 2
    assert project.err.count("\n") == 1
    assert "nested" in project.err


def test_statements_within_statements_are_one_line_and_2(project: Any) -> None:
    nested = "".join(" " * depth + "if a:\n" for depth in range(2_000))
    project.write("train.py", BAD + nested + " " * 2_000 + "pass\n")
    assert project.lint("--no-cache", "train.py") == 2
    assert project.err == (
        f"gradcheck-accum: train.py: not valid Python {sys.version_info[0]}.{sys.version_info[1]} "
        "(line 108): too many levels of indentation\n"
    )


def test_many_imports_that_never_close_are_looked_through_once() -> None:
    """Each was once searched to the end of the file."""
    source = b"optim. dataloader for import class\nloss.backward()\n" + b"from a import (" * 100_000
    assert not may_train_with_others(source, "train.py")


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_changes_make_the_new_version_of_the_old(old: list[str], new: list[str]) -> None:
    made: list[str] = []
    at = 0
    for kind, start, end, from_, to in changes(old, new):
        assert start == at
        at = end
        assert (kind == "equal") == (old[start:end] == new[from_:to])
        made += old[start:end] if kind == "equal" else new[from_:to]
    assert (at, made) == (len(old), new)


def test_what_too_many_lines_share_counts_as_replaced() -> None:
    old, new = ["first", *"x" * 3_000, "last"], ["first", "y", *"x" * 3_000, "y", "last"]
    assert list(changes(old, new)) == [
        ("equal", 0, 1, 0, 1),
        ("replace", 1, 3_001, 1, 3_003),
        ("equal", 3_001, 3_002, 3_003, 3_004),
    ]


# Notebooks


@pytest.mark.parametrize(
    "content",
    [
        {"nbformat": 4, "cells": {}},
        {"nbformat": "4", "cells": []},
        {"nbformat": 4, "cells": [None]},
        {"nbformat": 4, "cells": [[]]},
        {"nbformat": 4, "cells": [{"cell_type": "code", "source": {"a": 1}}]},
        {"nbformat": 4, "cells": [{"cell_type": "code", "source": ["a", ["b"]]}]},
        [],
        None,
        "notebook",
    ],
    ids=str,
)
def test_a_notebook_of_other_types_is_one_line_and_2(project: Any, content: object) -> None:
    project.write("train.ipynb", json.dumps(content))
    assert project.lint("train.ipynb") == 2
    assert project.err.startswith("gradcheck-accum: train.ipynb: not a notebook")
    assert project.err.count("\n") == 1


def test_strange_parts_of_a_notebook_are_left_as_they_are(project: Any) -> None:
    cell = {"cell_type": "code", "metadata": [1], "source": BAD, "id": None}
    others = [{"cell_type": ["code"], "source": "("}, {"cell_type": "code", "source": []}]
    odd = {"nbformat": 4, "metadata": {"language_info": [], "kernelspec": 3, "deep": eval("[" * 90 + "]" * 90)}}
    project.write("train.ipynb", json.dumps({**odd, "cells": [*others, cell], "more": float("nan")}))
    assert project.lint("--no-cache", "--fix", "train.ipynb") == 0
    found = json.loads((project.root / "train.ipynb").read_text())
    assert found["cells"][:2] == others
    assert found["cells"][2]["source"] == fix_source(BAD, "train.py", unsafe=False).source
    assert str(found["more"]) == "nan"


def test_a_cell_of_10_megabytes_is_one_line_and_2(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook(f"x = '{'a' * 10_000_000}'\n", BAD))
    assert project.lint("train.ipynb") == 2
    assert project.err == "gradcheck-accum: train.ipynb: larger than 4 MiB, not analyzed\n"


# Files that change meanwhile


def test_a_file_that_vanishes_or_changes_before_it_is_written_is_left_alone(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradcheck_accum.lint.fixes import files

    gone, changed = project.write("gone.py"), project.write("changed.py")
    write_all = files.write_all

    def meanwhile(result: Any) -> Any:
        gone.unlink()
        changed.write_text("x = 1\n")
        return write_all(result)

    monkeypatch.setattr(files, "write_all", meanwhile)
    assert project.lint("--no-cache", "--fix", "gone.py", "changed.py") == 2
    lines = sorted(project.err.splitlines())
    assert lines[0] == "gradcheck-accum: changed.py: cannot be written: changed while it was being analyzed"
    assert lines[1].startswith("gradcheck-accum: gone.py: cannot be written: ")
    assert (gone.exists(), changed.read_text(), len(lines)) == (False, "x = 1\n", 2)


KILLED = """\
import os, signal, sys
from pathlib import Path
from gradcheck_accum.files import write_atomically
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), b"loss.backward()\\n" * 1000)
"""


def test_a_file_that_vanishes_before_it_is_read_is_one_line(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradcheck_accum.lint.project import run

    project.write("a.py")
    gone = project.write("gone.py")
    discovered = run.source_files

    def meanwhile(*given: Any) -> Any:
        files = list(discovered(*given))
        gone.unlink()
        return files

    monkeypatch.setattr(run, "source_files", meanwhile)
    assert project.lint("--no-cache", ".") == 2
    assert project.err == "gradcheck-accum: gone.py: No such file or directory\n"
    assert "a.py:4:9: GA101" in project.out


def test_a_kill_before_the_rename_leaves_the_file_and_nothing_that_lint_reads(project: Any) -> None:
    path = project.write("train.py")
    path.chmod(0o640)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (path.read_text(), path.stat().st_mode & 0o777) == (BAD, 0o640)
    (left,) = (name for name in os.listdir() if name != "train.py")
    assert not left.endswith((".py", ".ipynb"))
    assert project.paths() == ["train.py"]
    write_atomically(path, b"x = 1\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"x = 1\n", 0o640)


def test_several_processes_fix_one_file_and_it_is_fixed_once(project: Any) -> None:
    path = project.write("train.py", "".join(BAD.replace("train", f"train{i}") for i in range(3)))
    fixed = fix_source(path.read_text(), "train.py", unsafe=False).source
    command = [sys.executable, "-m", "gradcheck_accum", "lint", "--no-cache", "--fix", "train.py"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ends = [(process.communicate()[1], process.returncode) for process in running]
    assert path.read_text() == fixed
    assert os.listdir() == ["train.py"]
    # Who comes second finds it fixed, or changed under its hands.
    assert all(end in (("", 0), (CHANGED, 2)) for end in ends), ends


CHANGED = "gradcheck-accum: train.py: cannot be written: changed while it was being analyzed\n"

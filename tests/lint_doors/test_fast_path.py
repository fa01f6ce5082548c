"""The short way through lint: it says what the long way says, or leaves the saying to it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gradcheck_accum import fast_path as quick

PLAIN = "import torch\n\n\ndef predict(model, x):\n    return model(x).step + '\\d'\n"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from gradcheck_accum.__main__ import main; status = main(); "
    code += "print(*sys.modules, file=sys.stderr); sys.exit(status)"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(done.stderr.splitlines()[-1].split())


def test_a_file_without_a_loop_is_answered_before_anything_is_loaded(project: Any) -> None:
    project.write("plain.py", PLAIN)
    done = command("lint", "plain.py")
    assert (done.returncode, done.stdout) == (0, "No mistakes found in 1 file.\n")
    slow = {"argparse", "ast", "re", "typing", "dataclasses", "pathlib", "json", "gradcheck_accum.cli"}
    idle = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    assert loaded(done) & (slow - set(idle.stdout.split())) == set()


def test_a_file_with_a_mistake_is_answered_in_full(project: Any) -> None:
    project.write("train.py")
    done = command("lint", "train.py")
    assert done.returncode == 1
    assert done.stdout.startswith("train.py:4:9: GA101")


SHORT = [
    b"",
    PLAIN.encode(),
    b"\xef\xbb\xbfx = 1\r\n",
    b"# backward and step are only named\n",
    b"loss.backward()\n",
    b"return\n",
]
LONG = [
    b"loss.backward()\noptimizer.step()\n",
    b"print 'python 2'\n",
    b"s = '\xe4'\n",
    b"x = 1\0\n",
    b"x = " + b"(" * 500 + b"1" + b")" * 500 + b"\n",
    b"# " + b"x" * 5_000_000,
]


@pytest.mark.parametrize("content", SHORT, ids=repr)
def test_both_ways_say_the_same(project: Any, content: bytes) -> None:
    project.write("a.py", content)
    assert project.lint("a.py") == 0
    assert f"{quick.answer(['lint', 'a.py'])}\n" == project.out


@pytest.mark.parametrize("content", LONG, ids=lambda content: repr(content[:20]))
def test_what_needs_a_word_takes_the_long_way(project: Any, content: bytes) -> None:
    project.write("a.py", content)
    assert quick.answer(["lint", "a.py"]) is None


def test_files_are_counted_once(project: Any) -> None:
    project.write("a.py", PLAIN)
    project.write("b.py", PLAIN)
    paths = ["a.py", "b.py", "./a.py", str(project.root / "b.py")]
    assert project.lint(*paths) == 0
    assert quick.answer(["lint", *paths]) == project.out.strip() == "No mistakes found in 2 files."


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lint"],
        ["rules", "a.py"],
        ["lint", "."],
        ["lint", "-"],
        ["lint", "a.py", "--statistics"],
        ["lint", "absent.py"],
        ["lint", "a.py", "absent.py"],
        ["lint", "a.ipynb"],
    ],
)
def test_everything_else_takes_the_long_way(project: Any, arguments: list[str]) -> None:
    project.write("a.py", PLAIN)
    project.write("a.ipynb", "{}")
    assert quick.answer(arguments) is None


def test_settings_take_the_long_way(project: Any) -> None:
    project.write("a.py", PLAIN)
    project.write("pyproject.toml", "[tool.other]\n")
    assert quick.answer(["lint", "a.py"]) is not None
    project.settings("nonsense = 1")
    assert quick.answer(["lint", "a.py"]) is None
    assert command("lint", "a.py").returncode == 2


def test_nobody_reading_is_no_error_to_tell_of(project: Any) -> None:
    project.write("a.py", PLAIN)
    script = f"{sys.executable} -m gradcheck_accum lint a.py 2>err | true; cat err"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""

"""Comments that suppress nothing, and comments that are written for a start."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

LOOP = """\
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss.backward(){comment}
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""


def unused(project: Any, *paths: str) -> list[tuple[int, int, str]]:
    report = project.report("--report-unused-suppressions", *paths)
    return [(item["line"], item["column"], item["message"]) for item in report["unused_suppressions"]]


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# gradcheck-accum: ignore[GA201]", "the comment's GA201 suppresses nothing"),
        ("# gradcheck-accum: ignore[GA101, GA201, GA301]", "the comment's GA201, GA301 suppresses nothing"),
        ("# gradcheck-accum: ignore[mean-of-means]", "the comment's MEAN-OF-MEANS suppresses nothing"),
        ("# noqa: E501, GA201", "the comment's GA201 suppresses nothing"),
        ("# gradcheck-accum: ignore[GA101, GA901, low-precision-accumulation]", ""),
        ("# gradcheck-accum: ignore[GA101]", ""),
        ("# gradcheck-accum: ignore[missing-loss-scaling]", ""),
        ("# gradcheck-accum: ignore", ""),
        ("# noqa: GA101", ""),
        ("# noqa", ""),
        ("# noqa: E501", ""),
    ],
)
def test_codes_that_hide_nothing_are_reported(project: Any, comment: str, message: str) -> None:
    project.write("train.py", LOOP.format(comment=f"  {comment}"))
    expected = [(3, 22 if "noqa" in comment else 24, message)] if message else []
    assert unused(project, "train.py") == expected


def test_two_comments_in_one_each_count(project: Any) -> None:
    comment = "  # noqa: GA101  # gradcheck-accum: ignore[GA201]"
    project.write("train.py", LOOP.format(comment=comment))
    assert project.found("train.py") == []
    assert [message for _, _, message in unused(project, "train.py")] == ["the comment's GA201 suppresses nothing"]


def test_a_bare_comment_of_ours_counts_and_a_bare_noqa_is_for_others(project: Any) -> None:
    project.write("plain.py", "x = 1  # gradcheck-accum: ignore\ny = 1  # noqa\ns = '# gradcheck-accum: ignore'\n")
    assert unused(project) == [(1, 10, "the comment suppresses nothing")]


def test_files_without_a_loop_are_read_for_them_only_where_they_are_asked_for(project: Any) -> None:
    project.write("plain.py", "x = 1  # noqa: GA101\n")
    assert unused(project) != []
    assert project.lint() == 0
    assert project.lint("--report-unused-suppressions") == 1
    assert project.out.splitlines()[0] == "plain.py:1:8: unused suppression: the comment's GA101 suppresses nothing"
    assert project.out.splitlines()[-1] == "No mistakes found in 1 file (1 unused suppression)."


def test_what_is_not_selected_is_used_all_the_same(project: Any) -> None:
    project.write("train.py", LOOP.format(comment="  # noqa: GA101"))
    assert unused(project, "--select", "GA3") == []
    assert project.report("--select", "GA3")["summary"]["suppressed"] == 0
    assert project.report("--select", "GA1")["summary"]["suppressed"] == 1


def test_in_a_notebook_the_cell_is_told(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook("x = 1", LOOP.format(comment="  # noqa: GA201")))
    (item,) = project.report("--report-unused-suppressions")["unused_suppressions"]
    assert (item["cell"], item["line"]) == (2, 3)


# --add-noqa


def added(project: Any, path: str, content: str | bytes) -> bytes:
    """The file after --add-noqa, which leaves no finding, and does nothing when it is run again."""
    file: Path = project.write(path, content)
    assert project.lint("--add-noqa", path) == 0
    assert project.err == ""
    once = file.read_bytes()
    assert project.report(path, "--report-unused-suppressions")["findings"] == []
    assert unused(project, path) == []
    assert project.lint("--add-noqa", path) == 0
    assert project.out == "Suppressed 0 mistakes in 0 files.\n"
    assert file.read_bytes() == once
    assert os.listdir(file.parent) == [file.name]
    return once


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("loss.backward()", "loss.backward()  # gradcheck-accum: ignore[GA101]"),
        ("loss.backward()   ", "loss.backward()  # gradcheck-accum: ignore[GA101]"),
        ("loss.backward()  # why", "loss.backward()  # why  # gradcheck-accum: ignore[GA101]"),
        ("loss.backward()  # noqa: E501", "loss.backward()  # noqa: E501  # gradcheck-accum: ignore[GA101]"),
        (
            "loss.backward(\n        retain_graph=True,\n    )",
            "loss.backward(\n        retain_graph=True,\n    )  # gradcheck-accum: ignore[GA101]",
        ),
        (
            "loss.backward(); s = '''\n'''",
            "loss.backward(); s = '''\n'''  # gradcheck-accum: ignore[GA101]",
        ),
    ],
)
def test_a_comment_is_written_at_the_end_of_the_statement(project: Any, line: str, expected: str) -> None:
    before = LOOP.format(comment="").replace("loss.backward()", line)
    after = added(project, "train.py", before).decode()
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(before))
    if ";" not in line:
        assert after == LOOP.format(comment="").replace("loss.backward()", expected)


def test_codes_join_the_comment_that_is_there(project: Any) -> None:
    text = LOOP.format(comment="  # gradcheck-accum: ignore[GA901]")
    project.write("train.py", text)
    assert project.lint("--add-noqa") == 0
    assert (project.root / "train.py").read_text() == text.replace("GA901", "GA901, GA101")


def test_everything_else_of_the_file_stays(project: Any) -> None:
    text = b"\xef\xbb\xbf# \xc3\xa4\x0c\r\n" + LOOP.format(comment="").replace("\n", "\r\n").encode().rstrip()
    after = added(project, "train.py", text)
    assert after.replace(b"  # gradcheck-accum: ignore[GA101]", b"") == text


def test_permissions_and_links_stay(project: Any) -> None:
    file = project.write("real/train.py", LOOP.format(comment=""))
    file.chmod(0o750)
    os.symlink(file, project.root / "train.py")
    assert project.lint("--add-noqa", "train.py") == 0
    assert (project.root / "train.py").is_symlink()
    assert file.stat().st_mode & 0o777 == 0o750
    assert "ignore[GA101]" in file.read_text()


def test_in_a_notebook_the_cell_gets_the_comment(project: Any, notebook: Any) -> None:
    before = notebook(("markdown", "x"), "%pip install x", "%time y = 1\n" + LOOP.format(comment=""))
    after = added(project, "train.ipynb", before).decode()
    assert after.replace("  # gradcheck-accum: ignore[GA101]", "") == before
    assert json.loads(after)["cells"][2]["source"][3] == "    loss.backward()  # gradcheck-accum: ignore[GA101]\n"


def test_only_what_would_be_reported_is_suppressed(project: Any) -> None:
    file = project.write("train.py", LOOP.format(comment=""))
    assert project.lint("--add-noqa", "--ignore", "GA101") == 0
    assert file.read_text() == LOOP.format(comment="")


def test_what_cannot_be_analysed_or_written_is_said(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("broken.py", "def f(:\n    loss.backward()\n    optimizer.step()\n")
    project.write("train.py", LOOP.format(comment=""))

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", fail)
    assert project.lint("--add-noqa", "--no-cache") == 2
    assert project.err.splitlines() == [
        "gradcheck-accum: broken.py: not valid Python {}.{} (line 1): invalid syntax".format(*sys.version_info),
        "gradcheck-accum: train.py: Permission denied",
    ]
    assert project.out == "Suppressed 0 mistakes in 0 files.\n"
    assert sorted(os.listdir(project.root)) == ["broken.py", "train.py"]


def test_standard_input_has_no_file_to_write_to(project: Any) -> None:
    assert project.lint("-", "--add-noqa") == 2
    assert "--add-noqa" in project.err

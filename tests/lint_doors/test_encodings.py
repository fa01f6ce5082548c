"""Sources in the encoding that they name themselves (PEP 263): read as Python reads them, and written back so."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.fast_path import answer
from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.verify import verify_script

from .conftest import BAD

WORDS = 'TITLE = "h\xe4tte \xb5"\t# \xfc\x0c\n'


def source(encoding: str, text: str = BAD, *, line_break: str = "\n") -> bytes:
    whole = f"#!/usr/bin/python\n# -*- coding: {encoding} -*-\n{WORDS}{text}"
    return whole.replace("\n", line_break).encode(encoding)


def fixed(encoding: str, *, line_break: str = "\n") -> bytes:
    """What --fix makes of it, by the fix of the same loop in ASCII."""
    return source(encoding, fix_source(BAD, "train.py", unsafe=False).source, line_break=line_break)


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8"])
def test_a_coding_line_is_obeyed_and_its_encoding_is_kept(project: Any, encoding: str, line_break: str) -> None:
    path = project.write("train.py", source(encoding, line_break=line_break))
    assert project.lint("train.py") == 1
    assert project.out.startswith("train.py:7:9: GA101")
    assert project.lint("--fix", "train.py") == 0
    assert path.read_bytes() == fixed(encoding, line_break=line_break)


def test_a_comment_is_written_in_the_encoding_too(project: Any) -> None:
    path = project.write("train.py", source("latin-1"))
    assert project.lint("--add-noqa", "train.py") == 0
    comment = b"loss.backward()  # gradcheck-accum: ignore[GA101]"
    assert path.read_bytes() == source("latin-1").replace(b"loss.backward()", comment)
    assert project.lint("train.py") == 0


def test_the_code_frame_shows_the_characters(project: Any) -> None:
    line = "        loss.backward()  # W\xe4rme\n"
    project.write("train.py", source("latin-1", BAD.replace("        loss.backward()\n", line)))
    project.lint("train.py")
    assert "7 |         loss.backward()  # W\xe4rme" in project.out


def test_standard_input_is_read_and_written_so(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "utf-8"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(source("latin-1"))))
    assert main(["lint", "--fix", "-"]) == 0
    assert written.getvalue() == fixed("latin-1")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"x = '\xe4'\n", "not UTF-8 (byte 5)"),
        (b"# coding: ascii\nx = '\xe4'\n", "not ascii, which its coding line names (byte 21)"),
        (b"# coding: klingon\nx = 1\n", "not Python: unknown encoding: klingon"),
        (b"# coding: rot13\nx = 1\n", "not Python: 'rot13' is not a text encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\nx = 1\n", "not Python: encoding problem: utf-8"),
    ],
)
def test_what_is_no_text_is_one_line(project: Any, content: bytes, complaint: str) -> None:
    path = project.write("train.py", content)
    assert project.lint("train.py") == 2
    assert project.err == f"gradcheck-accum: train.py: {complaint}\n"
    assert verify_script(str(path)).error == complaint


def test_an_encoding_with_several_ways_to_write_a_text_is_not_written(project: Any) -> None:
    """In UTF-7 what is fixed elsewhere would come out in other bytes."""
    content = b"# coding: utf-7\n# +AOQA5A-+AOQ-\n" + BAD.encode("utf-7")
    assert content.decode("utf-7").encode("utf-7") != content
    path = project.write("train.py", content)
    assert project.lint("--fix", "train.py") == 1
    assert path.read_bytes() == content


def test_a_word_on_the_first_lines_is_no_coding_line(project: Any) -> None:
    project.write("train.py", b'TITLE = "coding: latin-1, h\xc3\xa4tte"\n' + BAD.encode())
    assert project.lint("train.py") == 1


def test_the_short_way_reads_it_too(project: Any) -> None:
    project.write("plain.py", source("latin-1", "x = 1\n"))
    assert answer(["lint", "plain.py"]) == "No mistakes found in 1 file."
    project.write("plain.py", b"# coding: klingon\nx = 1\n")
    assert answer(["lint", "plain.py"]) is None


def test_a_module_beside_it_is_read_so(project: Any) -> None:
    helper = "def back(loss):\n    loss.backward()\n"
    project.write("helper.py", source("latin-1", helper))
    project.write("train.py", "from helper import back\n" + BAD.replace("loss.backward()", "back(loss)"))
    assert [code for _, code in project.found("train.py")] == ["GA101"]


def test_a_notebook_is_refused_by_verify_with_what_to_do_instead(tmp_path: Path) -> None:
    path = tmp_path / "my nb.ipynb"
    path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    error = verify_script(str(path)).error
    assert error.startswith("is a notebook, not a script: call gradcheck_accum.check() or watch() in one of its cells")
    assert f"jupyter nbconvert --to script '{path}'" in error
    assert "\n" not in error


@pytest.mark.parametrize("letters", ["ab", "\u00e4\u00f6", "\u65e5\u672c", "\U0001f600\U0001f600"])
def test_columns_count_characters(project: Any, letters: str) -> None:
    line = f"        '{letters}'; loss.backward()"
    project.write("train.py", BAD.replace("        loss.backward()", line))
    (finding,) = project.report("train.py")["findings"]
    assert line[finding["column"] - 1 : finding["end_column"] - 1] == "loss.backward()"
    project.lint("train.py")
    quoted, underline = (text.partition("| ")[2] for text in project.out.splitlines()[4:6])
    assert underline.count("^") == len("loss.backward()")
    wide = 2 if unicodedata.east_asian_width(letters[0]) == "W" else 1
    assert underline.index("^") == quoted.index("loss") + len(letters) * (wide - 1)

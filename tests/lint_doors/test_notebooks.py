"""Notebooks: their cells are one program, and findings are reported by cell."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from gradcheck_accum.lint import lint_source
from gradcheck_accum.sources.notebooks import Notebook, NotebookError

HEAD = "import torch\nK = 4"
LOOP = """\
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss.backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()"""


def places(source: str) -> list[tuple[str, int, int]]:
    return [(f.mistake.code, f.where.cell, f.where.line) for f in lint_source(source, "train.ipynb")]


def test_a_finding_is_told_by_cell_and_line(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook(("markdown", "# Training"), HEAD, ("raw", "x"), LOOP))
    assert project.lint("train.ipynb") == 1
    lines = project.out.splitlines()
    assert lines[0].startswith("train.ipynb:cell 4:3:5: GA101 [missing-loss-scaling] ")
    assert "the step at line 5 of cell 4" in lines[0]
    assert lines[1:7] == [
        "  |",
        "1 | for i, (x, y) in enumerate(loader):",
        "2 |     loss = criterion(model(x), y)",
        "3 |     loss.backward()",
        "  |     ^^^^^^^^^^^^^^^",
        "4 |     if (i + 1) % K == 0 or i + 1 == len(loader):",
    ]
    (finding,) = project.report("train.ipynb")["findings"]
    assert (finding["path"], finding["cell"], finding["line"], finding["end_line"]) == ("train.ipynb", 4, 3, 3)


def test_notebooks_are_found_in_directories_and_scripts_have_no_cells(project: Any, notebook: Any) -> None:
    project.write("a/train.ipynb", notebook(HEAD, LOOP))
    project.write("a/.ipynb_checkpoints/train-checkpoint.ipynb", notebook(HEAD, LOOP))
    project.write("a/train.py")
    assert project.paths() == ["a/train.ipynb", "a/train.py"]
    assert "cell" not in project.report("a/train.py")["findings"][0]


def test_comments_suppress_in_cells(notebook: Any) -> None:
    assert places(notebook(HEAD, LOOP)) == [("GA101", 2, 3)]
    assert places(notebook(HEAD, LOOP.replace("backward()", "backward()  # noqa: GA101"))) == []


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline",
        "!pip install torch \\\n  --quiet",
        "pip install torch",
        "model?",
        "?model.forward",
        "torch.nn.Linear??",
        "if True:\n    !ls\nelse:\n    %cd data",
        "files = !ls *.csv",
        "%%bash\nfor f in *; do backward; done",
        "%%html\n<b>loss.backward()</b>",
        "x = (7\n  % 4)\nname = '''\n%not a magic\n'''\n%time pass",
        "%%time\nx = 1",
        "await main()",
        "",
    ],
)
def test_what_only_ipython_understands_is_no_obstacle(notebook: Any, cell: str) -> None:
    assert places(notebook(HEAD, cell, LOOP)) == [("GA101", 3, 3)]
    first, *rest = LOOP.splitlines()
    assert places(notebook(HEAD, "\n".join(["%env A=1", "", first, "    !nvidia-smi", *rest]))) == [("GA101", 2, 6)]


@pytest.mark.parametrize("magic", ["%%time", "%%capture out", "\n%%timeit -n 1"])
def test_cells_that_are_only_timed_or_captured_are_read(notebook: Any, magic: str) -> None:
    assert places(notebook(HEAD, f"{magic}\n{LOOP}")) == [("GA101", 2, 4 + magic.count("\n"))]


def test_a_timed_statement_counts(notebook: Any) -> None:
    timed = LOOP.replace("    loss.backward()", "    %time loss.backward()")
    (found,) = lint_source(notebook(HEAD, timed), "train.ipynb")
    assert (found.where.line, found.where.column) == (3, 11)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not a notebook: not JSON"),
        (b"\xff\xfe backward", "not a notebook: not UTF-8 (byte 0)"),
        ("[" * 100_000, "not a notebook: nested too deeply"),
        ('["backward"]', "not a notebook of format 4"),
        ('{"worksheets": [], "nbformat": 3}', "not a notebook of format 4"),
        ('{"cells": [{"cell_type": "code"}], "nbformat": 4}', "not a notebook: cell 1 has no source"),
    ],
)
def test_a_broken_notebook_is_one_line_and_2(project: Any, content: str | bytes, reason: str) -> None:
    project.write("broken.ipynb", content)
    assert project.lint("broken.ipynb") == 2
    (line,) = project.err.splitlines()
    assert line.startswith(f"gradcheck-accum: broken.ipynb: {reason}")


def test_a_cell_that_is_not_python_is_named(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook(("markdown", "x"), HEAD, "x = 1\ny = = 2", LOOP))
    assert project.lint("train.ipynb") == 2
    grammar = "Python {}.{}".format(*sys.version_info)
    assert project.err == (f"gradcheck-accum: train.ipynb: not valid {grammar} (line 2 of cell 3): invalid syntax\n")


def test_cells_in_other_languages_are_nobodys_mistake(project: Any, notebook: Any) -> None:
    project.write("r.ipynb", notebook("fit <- backward(x)", language_info={"name": "R"}))
    assert project.lint("r.ipynb") == 0
    foreign = json.loads(notebook("let x = 1;", HEAD, LOOP, kernelspec={"language": "python"}))
    foreign["cells"][0]["metadata"]["vscode"] = {"languageId": "javascript"}
    assert places(json.dumps(foreign)) == [("GA101", 3, 3)]


def test_places_and_lines_are_each_others_inverse(notebook: Any) -> None:
    book = Notebook(notebook("a = 1\nb = 2\n", ("markdown", "text"), "", "%%bash\nls", "c = 3"))
    for line in range(1, book.source.count("\n") + 1):
        assert book.line(*book.place(line)) == line
    assert book.place(book.source.splitlines().index("c = 3") + 1) == (5, 1)


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_replacing_a_cell_changes_nothing_else(notebook: Any, indent: Any) -> None:
    document = json.loads(notebook("a = 'ä'", "%time b\nc", ("markdown", "x"), "", accelerator="GPU"))
    document["cells"][0]["source"] = "a = 'ä'"  # a plain string is as good as a list of lines
    document["cells"][1]["outputs"] = [{"text": "\ud83d\ude00 é", "data": [1.0, 1e-05, {}, []], "source": "no"}]
    text = json.dumps(document, indent=indent, ensure_ascii=False) + "\n"
    text = text.replace("é", "\\u00e9").replace("1e-05", "1.0E-5").replace("[]", "[ ]")
    book = Notebook(text)
    assert book.replaced({}) == text
    assert book.replaced({number: book.cell(number) for number in (1, 2, 3)}) == text
    assert book.cell(2) == "%time b\nc"
    assert book.replaced({1: "b = 'ä'", 2: "%time d\nc"}) == text.replace("a = ", "b = ").replace("time b", "time d")
    assert Notebook(book.replaced({2: "1\n2\n3", 4: "x"})).cells() == {1: "a = 'ä'", 2: "1\n2\n3", 4: "x"}
    assert Notebook(book.replaced({2: ""})).cell(2) == ""


def test_standard_input_can_be_a_notebook(project: Any, notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    from types import SimpleNamespace

    text = notebook(HEAD, LOOP).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert project.lint("-", "--stdin-filename", "train.ipynb") == 1
    assert project.out.startswith("train.ipynb:cell 2:3:5: GA101")
    assert "3 |     loss.backward()" in project.out


def test_no_notebook_is_an_error_of_its_own() -> None:
    with pytest.raises(NotebookError, match="format 4"):
        Notebook("{}")

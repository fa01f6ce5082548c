"""--fix and --diff on notebooks: the lines of a cell change, and nothing else of the file does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gradcheck_accum.lint.fixes import fix_source

HEAD = "%pip install torch\nimport torch\nK = 4"
LOOP = """\
for i, (x, y) in enumerate(loader):
    !nvidia-smi
    loss = criterion(model(x), y)
    loss.backward()  # why
    %time
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()"""
NEVER_CLEARED = """\
for i, (x, y) in enumerate([next(loader)] * 8):
    (criterion(model(x), y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()"""
STOPPED = "%%time\nprint('done')"


def with_pictures(text: str) -> str:
    """A notebook as a person has it: outputs, counts, and characters that are written in several ways."""
    document = json.loads(text)
    for number, cell in enumerate(document["cells"], 1):
        if cell["cell_type"] == "code":
            cell["execution_count"] = number
            cell["outputs"] = [{"output_type": "stream", "text": ["loss.backward()\n", "é"], "source": ["x"]}]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def sources(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


def test_a_fix_is_written_to_its_cell_and_magics_survive(project: Any, notebook: Any) -> None:
    before = with_pictures(notebook(("markdown", "# Training"), HEAD, LOOP, STOPPED))
    file = project.write("train.ipynb", before)
    assert project.lint("--fix", "train.ipynb") == 0
    assert project.out == "Fixed 1 mistake in 1 file.\nNo mistakes found in 1 file.\n"
    after = file.read_text(encoding="utf-8")
    assert project.lint("train.ipynb") == 0
    fixed = LOOP.replace("    !nv", "    window = min(K, len(loader) - i // K * K)\n    !nv")
    assert sources(after) == [
        "# Training",
        HEAD,
        fixed.replace("loss.backward()", "(loss / window).backward()"),
        STOPPED,
    ]
    kept = [line for line in before.splitlines() if "loss.backward()  # why" not in line]
    assert [line for line in after.splitlines() if "window" not in line] == kept
    assert project.lint("--fix", "--unsafe-fixes", "train.ipynb") == 0
    assert file.read_text(encoding="utf-8") == after


def test_an_addition_at_the_end_of_a_cell_stays_in_it(project: Any, notebook: Any) -> None:
    for text in (NEVER_CLEARED, NEVER_CLEARED + "\n", NEVER_CLEARED + "\n\n"):
        file = project.write("train.ipynb", notebook(HEAD, text, STOPPED))
        assert project.lint("--fix", "train.ipynb") == 0
        end = text[len(text.rstrip()) :]
        fixed = f"{text.rstrip()}\n        optimizer.zero_grad(){end}"
        assert sources(file.read_text()) == [HEAD, fixed, STOPPED]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("indent", [None, 1, "\t"])
def test_the_writing_of_the_file_is_kept(project: Any, notebook: Any, newline: str, mark: str, indent: Any) -> None:
    document = json.loads(
        notebook(HEAD, "# ä\n" + NEVER_CLEARED + "\n# \u2028 ö", nbformat_stuff={"b": 1, "a": [1e-05]})
    )
    document["cells"][0]["source"] = HEAD
    before = json.dumps(document, indent=indent, ensure_ascii=False).replace("ä", "\\u00e4").replace("1e-05", "1.0E-5")
    before = mark + before.replace("\n", newline)
    file = project.write("train.ipynb", before)
    assert project.lint("--fix", "train.ipynb") == 0
    after = file.read_bytes().decode()
    start = after.index("        optimizer.zero_grad()")
    end = after.index('"', start) + 1
    assert after[end:].startswith("," if indent is None else f",{newline}")
    assert before.startswith(after[: start - 1].rstrip())
    assert before.endswith(after[end:].lstrip(","))


def test_the_diff_names_the_cell_and_nothing_is_written(project: Any, notebook: Any) -> None:
    before = notebook(("markdown", "x"), HEAD, NEVER_CLEARED)
    file = project.write("train.ipynb", before)
    assert project.lint("--diff", "train.ipynb") == 1
    assert project.out == (
        "--- train.ipynb:cell 3\n+++ train.ipynb:cell 3\n@@ -2,3 +2,4 @@\n"
        "     (criterion(model(x), y) / K).backward()\n     if (i + 1) % K == 0:\n         optimizer.step()\n"
        "+        optimizer.zero_grad()\n"
    )
    assert file.read_text() == before


def test_the_edits_of_a_fix_are_told_by_cell(project: Any, notebook: Any) -> None:
    project.write("train.ipynb", notebook(HEAD, NEVER_CLEARED + "\n", STOPPED))
    (finding,) = project.report("train.ipynb")["findings"]
    assert (finding["cell"], finding["fix"]["applicability"]) == (2, "safe")
    (edit,) = finding["fix"]["edits"]
    assert (edit["cell"], edit["line"], edit["end_line"]) == (2, 5, 5)
    assert edit["content"] == "        optimizer.zero_grad()\n"


def test_what_a_magic_stands_for_is_left_alone(project: Any, notebook: Any) -> None:
    before = notebook(HEAD, LOOP.replace("loss.backward()  # why", "%time loss.backward()"))
    file = project.write("train.ipynb", before)
    assert project.lint("--fix", "train.ipynb") == 1
    assert "GA101" in project.out and "fix:" not in project.out
    assert file.read_text() == before


def test_several_cells_are_fixed_at_once(notebook: Any) -> None:
    helper = "def step(optimizer):\n    optimizer.step()"
    loop = NEVER_CLEARED.replace("(criterion(model(x), y) / K)", "criterion(model(x), y)")
    text = notebook(HEAD, helper, loop.replace("optimizer.step()", "step(optimizer)"))
    done = fix_source(text, "train.ipynb", unsafe=True)
    assert sorted(finding.mistake.code for finding in done.fixed) == ["GA101", "GA203"]
    assert [finding.where.cell for finding in done.remaining] == []
    first, second, third = sources(done.source)
    assert first == HEAD
    assert second == helper + "\n    optimizer.zero_grad()"
    assert "(criterion(model(x), y) / K).backward()" in third
    again = fix_source(done.source, "train.ipynb", unsafe=True)
    assert (again.source, again.fixed) == (done.source, ())


def test_standard_input_can_be_a_notebook(project: Any, notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    from types import SimpleNamespace

    written = io.BytesIO()
    text = notebook(HEAD, NEVER_CLEARED).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=written, isatty=lambda: False, flush=lambda: None))
    assert project.lint("--fix", "-", "--stdin-filename", "train.ipynb") == 0
    assert sources(written.getvalue().decode())[1] == f"{NEVER_CLEARED}\n        optimizer.zero_grad()"

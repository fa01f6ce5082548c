"""Results where Python shows them by itself, in a notebook above all, and the magic that makes one of a cell."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

import gradcheck_accum
import gradcheck_accum.verify
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import Accepted, ReferenceReport, Verdict, VerifyResult, WindowReport


def window(index: int, *weights: float | None, verdict: Verdict = Verdict.EQUIVALENT) -> WindowReport:
    return WindowReport(index, "SGD", len(weights), 15.0, weights, 0.25, 0.75, 1e-6, None, verdict)


RESULT = VerifyResult(
    "train <b>",
    Verdict.DEVIATES,
    "1 of 2 steps & more",
    "cpu",
    ReferenceReport("ledger", "float32", "cpu"),
    windows=(window(0, 1.0, 1.0, 1.0), window(1, 0.5, None, verdict=Verdict.DEVIATES)),
    diagnosis=(Diagnosis(CATALOGUE["GA103"], Location("t.py", 7), "the last window holds 2", "divide by 2", (1,)),),
)


class Read(HTMLParser):
    """The text of every element that holds any, and the tags that were opened and closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.found.append((self.open[-1], data))

    def texts(self, tag: str) -> list[str]:
        return [text for own, text in self.found if own == tag]


def test_the_text_is_the_verdict_and_the_causes() -> None:
    assert str(RESULT) == (
        "train <b>: deviates: 1 of 2 steps & more\n"
        "GA103 [remainder-misscaled] at t.py:7: the last window holds 2; divide by 2"
    )
    accepted = replace(RESULT, diagnosis=(), accepted=(Accepted(RESULT.diagnosis[0], "settings"),), help="look there")
    assert str(accepted).splitlines()[1:] == [
        "look there",
        "accepted: GA103 [remainder-misscaled] at t.py:7: the last window holds 2",
    ]
    assert str(VerifyResult.failed("train.py", "no such file")) == "train.py: error: no such file"


def test_the_representation_is_one_line() -> None:
    assert repr(RESULT) == "<VerifyResult of train <b>: deviates: 1 of 2 steps & more (2 windows; GA103 at t.py:7)>"
    assert repr(replace(RESULT, windows=RESULT.windows[:1], diagnosis=())).endswith("more (1 window)>")


def test_a_notebook_shows_the_windows() -> None:
    read = Read(RESULT._repr_html_())
    assert (read.texts("b"), read.texts("p")) == (["train <b>: deviates:"], [" 1 of 2 steps & more"])
    assert len(read.texts("li")) == 1
    rows = [read.texts("td")[i : i + 8] for i in (0, 8)]
    assert rows[0] == ["0", "3", "15", "1", "0.25", "1e-06", "0.75", "equivalent"]
    assert rows[1] == ["1", "2", "15", "-", "0.25", "1e-06", "0.75", "deviates"]


def test_of_many_windows_those_that_decide_are_shown() -> None:
    wrong = (window(70, 0.5, 2.0, verdict=Verdict.DEVIATES), window(90, 1.0, verdict=Verdict.INCONCLUSIVE))
    waived = replace(window(91, 3.0, verdict=Verdict.DEVIATES), accepted=("GA101",))
    many = replace(RESULT, windows=(*(window(i, 1.0) for i in range(50)), *wrong, waived))
    read = Read(many._repr_html_())
    cells = read.texts("td")
    assert [cells[i] for i in range(0, len(cells), 8)] == [*map(str, range(10)), "70", "90"]
    assert "0.5 to 2" in cells
    assert read.texts("li")[-1] == "41 more windows"
    assert "deviates (accepted)" in replace(many, windows=(waived,))._repr_html_()


def test_a_result_without_windows_has_no_table() -> None:
    assert "table" not in replace(RESULT, windows=())._repr_html_()


def test_the_doors_are_offered() -> None:
    assert {"check", "watch", "AccumulationError", "AccumulationWarning"} <= set(dir(gradcheck_accum))
    assert {"check", "watch", "observe", "verify_script"} <= set(dir(gradcheck_accum.verify))
    assert {"verdict", "windows", "metrics"} <= set(dir(RESULT))


CELL = """\
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for i in range(6):
    ((torch.randn(5, 3) @ weight) ** 2).mean().div({divisor}).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def magic(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``%%accum`` of a shell that runs cells as IPython does: what they raise is shown, and not raised."""
    monkeypatch.chdir(tmp_path)
    magics: dict[str, Any] = {}

    def run_cell(cell: str) -> SimpleNamespace:
        try:
            exec(compile(cell, "<ipython-input-3-abc>", "exec"), {"__name__": "__main__"})
        except LookupError:
            return SimpleNamespace(success=False)
        return SimpleNamespace(success=True)

    def register(function: Any, *, magic_kind: str, magic_name: str) -> None:
        magics[magic_kind, magic_name] = function

    gradcheck_accum.load_ipython_extension(
        SimpleNamespace(run_cell=run_cell, register_magic_function=register, execution_count=4)
    )
    return magics["cell", "accum"]


def test_the_magic_judges_a_cell(magic: Any) -> None:
    right = magic("", CELL.format(divisor=3))
    assert (right.verdict, len(right.windows)) == (Verdict.EQUIVALENT, 2)
    wrong = magic("", CELL.format(divisor=1))
    assert [(d.mistake.code, d.where.line) for d in wrong.diagnosis] == [("GA101", 6)]  # below %%accum
    assert magic("", CELL.format(divisor=1) + "raise LookupError") is None


def test_the_magic_accepts_what_the_project_accepts(magic: Any, tmp_path: Any) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.gradcheck-accum]\nignore = ["GA101"]\n')
    result = magic("", CELL.format(divisor=1))
    assert (result.exit_status, [one.by for one in result.accepted]) == (0, ["settings"])
    with pytest.raises(ValueError, match="takes no options, not '-x'"):
        magic(" -x ", "raise SystemExit")

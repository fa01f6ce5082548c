"""The text report of lint: exact output for hand-made findings."""

from __future__ import annotations

import io

import pytest

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.frame import Sources, code_frame
from gradcheck_accum.report.lint_text import lint_text, unreadable_text
from gradcheck_accum.report.paint import Paint
from gradcheck_accum.results.findings import Finding, LintResult, Unreadable

SOURCE = """\
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)

    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
"""


def finding(where: Location, code: str = "GA101", help: str = "divide the loss by 4") -> Finding:
    return Finding(CATALOGUE[code], where, "the loss is not divided", help)


def test_a_finding_is_a_place_a_frame_and_a_remedy() -> None:
    result = LintResult((finding(Location("train.py", 4, 5, 4, 20)),), (), files=1)
    assert lint_text(result, Sources({"train.py": SOURCE})) == (
        "train.py:4:5: GA101 [missing-loss-scaling] the loss is not divided\n"
        "  |\n"
        "2 |     loss = criterion(model(x), y)\n"
        "3 |\n"
        "4 |     loss.backward()\n"
        "  |     ^^^^^^^^^^^^^^^\n"
        "5 |     if (i + 1) % 4 == 0:\n"
        "6 |         optimizer.step()\n"
        "  |\n"
        "help: divide the loss by 4\n"
        "\n"
        "Found 1 mistake in 1 file."
    )


def test_the_summary_counts_files_with_findings_and_what_was_left_out() -> None:
    found = (finding(Location("a.py", 1)), finding(Location("a.py", 2)), finding(Location("b.py", 1)))
    result = LintResult(found, (Unreadable("c.py", "not UTF-8 (byte 3)"),), files=7, suppressed=2)
    assert lint_text(result, Sources({"a.py": "", "b.py": ""})).splitlines()[-1] == (
        "Found 3 mistakes in 2 files (2 suppressed, 1 path could not be analyzed)."
    )
    assert unreadable_text(result) == ["c.py: not UTF-8 (byte 3)"]


def test_nothing_found() -> None:
    assert lint_text(LintResult((), (), files=5)) == "No mistakes found in 5 files."
    assert lint_text(LintResult((), (), files=1)) == "No mistakes found in 1 file."


def test_a_source_that_is_gone_costs_the_frame_only() -> None:
    result = LintResult((finding(Location("no/such/file.py", 4)),), (), files=1)
    first, second, *_ = lint_text(result).splitlines()
    assert first.startswith("no/such/file.py:4:1: GA101")
    assert second == "help: divide the loss by 4"


@pytest.mark.parametrize(
    ("text", "where", "underlined"),
    [
        ("x = loss.backward()", Location("t.py", 1, 5, 1, 20), "loss.backward()"),
        ("\tloss.backward()", Location("t.py", 1, 2, 1, 17), "loss.backward()"),
        ("    loss.backward()  # why", Location("t.py", 1), "loss.backward()"),
        ("loss.backward(", Location("t.py", 1, 1, 3, 2), "loss.backward("),
        ("short", Location("t.py", 1, 40, 1, 50), None),
    ],
)
def test_the_underline_is_under_what_is_meant(text: str, where: Location, underlined: str | None) -> None:
    frame = code_frame(Sources({"t.py": text}), where)
    shown, marks = frame[1], frame[2]
    covered = "".join(c for c, mark in zip(shown, marks.ljust(len(shown)), strict=False) if mark == "^")
    assert covered == (underlined or "")
    assert "^" in marks


def test_wide_characters_take_two_columns() -> None:
    frame = code_frame(Sources({"t.py": 'f("学習"); loss.backward()'}), Location("t.py", 1, 10, 1, 25))
    assert frame[2].index("^") == len('1 | f("学習"); ') + 2


def test_a_line_past_the_end_has_no_frame() -> None:
    assert code_frame(Sources({"t.py": "x"}), Location("t.py", 2)) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_color_only_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Paint.for_stream(Terminal()).enabled
    assert not Paint.for_stream(io.StringIO()).enabled
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Paint.for_stream(Terminal()).enabled


def test_color_changes_no_word() -> None:
    import re

    result = LintResult((finding(Location("train.py", 4, 5, 4, 20)),), (), files=1)
    sources = Sources({"train.py": SOURCE})
    colored = lint_text(result, sources, Paint(True))
    assert "\x1b[1;31mGA101\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == lint_text(result, sources)

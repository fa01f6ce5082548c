"""The page of a mistake as a terminal shows it."""

from __future__ import annotations

import ast
import io
import re
from types import SimpleNamespace

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.explain_text import explain_text
from gradcheck_accum.report.paint import Paint
from gradcheck_accum.rule_pages import RulePage, read_page

COLOR = re.compile(r"\x1b\[[0-9;]*m")


def page(code: str) -> RulePage:
    found = read_page(CATALOGUE[code])
    assert found is not None
    return found


@pytest.mark.parametrize("code", CATALOGUE)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_sentences_fit_and_code_stays_as_it_is(code: str, width: int) -> None:
    text = explain_text(page(code), width=width)
    for line in text.splitlines():
        # What is code is not cut, nor is what has no spaces (an address).
        assert len(line) <= width or line.startswith("    ") or " " not in line.strip(), line
    for line in page(code).difference.splitlines():
        assert f"\n    {line}".rstrip() + "\n" in text
    assert "```" not in text
    assert "severity =" not in text and "dynamic =" not in text  # the block for programs


@pytest.mark.parametrize("code", CATALOGUE)
def test_color_adds_nothing_but_color(code: str) -> None:
    plain = explain_text(page(code), width=200)
    colored = explain_text(page(code), paint=Paint(True), width=200)
    assert "\x1b" not in plain
    assert COLOR.sub("", colored).replace("`", "") == plain.replace("`", "")
    assert "`" not in colored


@pytest.mark.parametrize("code", CATALOGUE)
def test_the_difference_makes_the_right_loop_of_the_wrong_one(code: str) -> None:
    shown = [line for line in page(code).difference.splitlines() if line != "  ..."]
    for kind, drop in (("bad", "+"), ("good", "-")):
        script = page(code).examples[kind].splitlines()
        left = [line[1:] for line in shown if not line.startswith(drop)]
        rest = iter(script)
        assert all(line in rest for line in left), kind  # in this order
        ast.parse("\n".join(script))
    assert any(line.startswith(("+", "-")) for line in shown)


def test_links_are_written_out_and_neighbours_are_named() -> None:
    text = explain_text(page("GA101"), width=200)
    assert "- GA102 double-loss-scaling: divided once too often" in text
    assert "AMP examples (https://docs.pytorch.org/docs/stable/notes/amp_examples.html)" in text
    assert "](" not in text


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("GA101", "`lint` then does not report it, and `verify` lists it as accepted: it decides no verdict."),
        ("GA802", "`lint` then does not report it."),
        ("GA901", "`verify` then lists it as accepted: it decides no verdict."),
    ],
)
def test_how_to_switch_it_off(code: str, says: str) -> None:
    text = explain_text(page(code), width=200)
    section = text[text.index("How to switch it off") : text.index("Known limits")]
    assert f"# gradcheck-accum: ignore[{code}]" in section
    assert f'ignore = ["{code}"]' in section
    assert section.rstrip().endswith(says)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "widest"), [(30, 60), (72, 72), (500, 200)])
def test_a_terminal_gets_its_width_and_color(monkeypatch: pytest.MonkeyPatch, columns: int, widest: int) -> None:
    stdout = Terminal()
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: SimpleNamespace(columns=columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["explain", "GA601"]) == 0
    assert "\x1b[1mscheduler-every-batch (GA601)\x1b[0m" in stdout.getvalue()
    lines = [COLOR.sub("", line) for line in stdout.getvalue().splitlines()]
    prose = [line for line in lines if not line.startswith("    ") and "https://" not in line]
    assert widest - 20 < max(map(len, prose)) <= widest


def test_what_is_no_terminal_gets_80_columns_and_no_color(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "GA601"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert 70 < max(len(line) for line in out.splitlines() if not line.startswith("    ")) <= 80

"""The documentation site: its pictures, its links, the pages written from something else, and the whole of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import generated
import links
import pictures
import pytest

from gradcheck_accum.cli import command_line
from gradcheck_accum.mistakes import CATALOGUE

ROOT = Path(__file__).parents[1]


def bars(svg: str) -> list[tuple[str, float]]:
    """The bars of a picture: what they are called, and how high they are."""
    found = ElementTree.fromstring(svg).iter("rect")
    return [(bar.attrib["class"], float(bar.attrib["height"])) for bar in found]


def test_a_bar_is_as_high_as_its_weight() -> None:
    svg = pictures.svg(pictures.read("window 0: 1, 0.5\nwindow 1: 3, 0\n"))
    (right, one), (half, lower), (_, higher), (none, nothing) = bars(svg)
    assert (right, half, none) == ("ga-right", "ga-wrong", "ga-wrong")
    assert (lower / one, higher / one) == pytest.approx((0.5, 3), rel=1e-4)
    assert 0 < nothing < 0.1 * one  # a line: there is a micro-batch, with the weight 0
    assert 'aria-label="window 0: 1, 0.5; window 1: 3, 0"' in svg


def test_a_bar_that_would_leave_the_page_says_how_much_it_weighs() -> None:
    svg = pictures.svg(pictures.read("window 0: 1, 256\n"))
    (_, one), (_, highest) = bars(svg)
    assert highest / one == pytest.approx(6, rel=1e-4)
    assert ">256</text>" in svg


def test_a_label_may_hold_a_colon_and_what_html_does_not() -> None:
    (window,) = pictures.read("a < b: with the rest: 1.5\n")
    assert window == pictures.Window("a < b: with the rest", (1.5,))
    ElementTree.fromstring(pictures.svg([window]))


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("index.md", "[a](docs/lint.md#limits)", "[a](lint.md#limits)"),
        ("index.md", "[c](CHANGELOG.md)", "[c](changelog.md)"),
        ("verify.md", "[i](../README.md#install)", "[i](index.md#install)"),
        ("verify.md", "[GA101](../rules/GA101.md)", "[GA101](rules/GA101.md)"),
        ("verify.md", "[s](schemas/lint.json)", "[s](schemas/lint.json)"),
        ("rules/GA101.md", "[n](GA102.md)", "[n](GA102.md)"),
        ("benchmarks.md", "[cost](../docs/cost.md)", "[cost](cost.md)"),
        # What is no page of the site is named; what is nowhere is left for MkDocs to complain of.
        ("frameworks.md", "[fixtures](../fixtures/frameworks)", "fixtures"),
        ("verify.md", "[gone](gone.md) [too](../gone.py)", "[gone](gone.md) [too](../gone.py)"),
        ("verify.md", "[out](https://x.org) [here](#limits)", "[out](https://x.org) [here](#limits)"),
        ("verify.md", "```md\n[a](../README.md)\n```", "```md\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_where_their_files_are_on_the_site(page: str, before: str, after: str) -> None:
    assert links.relinked(before, page, ROOT) == after


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = generated.commands()
    parser = command_line()
    (commands,) = (action.choices for action in parser._actions if action.dest == "==SUPPRESS==" and action.choices)
    assert re.findall(r"^### (\S+)$", page, re.MULTILINE) == list(commands)
    for name, command in commands.items():
        section = page[page.index(f"### {name}\n") :].split("\n### ")[0]
        for option in set(re.findall(r"--[a-z][a-z-]+", command.format_help())) - {"--help"}:
            assert option in section, (name, option)


def test_the_page_of_a_mistake_shows_its_ledger_and_the_whole_loops() -> None:
    page = generated.rule_pages()["rules/GA103.md"]
    assert "```ledger\nwindow 0: 1, 1, 1, 1\nwindow 1: 1, 1, 1, 1\nwindow 2: 0.75, 0.75, 0.75\n```" in page
    assert "```toml\ncode" not in page and "# error:" not in page
    assert page.count("    batches = [") == 2
    assert set(generated.rule_pages()) == {f"rules/{code}.md" for code in CATALOGUE}


class Loaded(HTMLParser):
    """What a page loads by itself when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "link"):
            self.found += [value for name in ("src", "href") if (value := given.get(name))]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="make docs installs what builds the site")
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for code in CATALOGUE:
        assert (tmp_path / "rules" / f"{code}.html").is_file()
    for page in tmp_path.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert [address for address in loaded.found if "//" in address] == [], page
    assert "<svg" in (tmp_path / "ledger.html").read_text(encoding="utf-8")
    assert "AccumulationError" in (tmp_path / "api.html").read_text(encoding="utf-8")

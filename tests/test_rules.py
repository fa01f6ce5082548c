"""Every example on every rule page: flagged by lint at its line, shown to deviate by verify, clean once repaired."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from loop_pages import marked_errors
from pages import Page, for_verify, pages
from watching import found, watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import Verdict

SECTIONS = [
    "## What it does",
    "## Why it is wrong",
    "## Example",
    "## Use instead",
    "## Fix safety",
    "## Known limits",
    "## Related mistakes",
    "## References",
]
NEIGHBOUR = re.compile(r"^- \[(GA\d+) ([a-z-]+)\]\(\1\.md\): (.+)$", re.MULTILINE)


def by_code(page: Page) -> str:
    return page.path.stem


every_page = pytest.mark.parametrize("page", pages(), ids=by_code)


def test_catalogue_and_pages_name_the_same_mistakes() -> None:
    assert [page.path.stem for page in pages()] == list(CATALOGUE)


@every_page
def test_the_page_says_what_the_catalogue_says(page: Page) -> None:
    mistake = CATALOGUE[page.path.stem]
    assert page.title == f"{mistake.name} ({mistake.code})"
    assert page.settings["code"] == mistake.code
    assert page.settings["name"] == mistake.name
    assert page.settings["severity"] == mistake.severity.value
    assert page.settings["static"] == ("where visible" if mistake.where_visible else mistake.static)
    assert page.settings["dynamic"] is mistake.dynamic
    text = page.path.read_text(encoding="utf-8")
    places = [text.index(section) for section in SECTIONS]
    assert places == sorted(places)


@every_page
def test_the_page_opens_with_a_sentence_that_has_its_numbers_first(page: Page) -> None:
    text = page.path.read_text(encoding="utf-8")
    (lead,) = re.findall(r"\n```\n\n(.+?)\n\n## What it does\n", text, re.DOTALL)
    assert re.match(r"\d", lead) and lead.endswith(".")
    assert not re.search(r"\.\s", lead)


@every_page
def test_neighbours_are_neighbours_of_each_other(page: Page) -> None:
    text = page.path.read_text(encoding="utf-8")
    section = text[text.index("## Related mistakes\n") : text.index("## References\n")]
    found = NEIGHBOUR.findall(section)
    assert found and section.count("\n- ") == len(found)
    for code, name, _ in found:
        assert CATALOGUE[code].name == name
        assert f"]({page.settings['code']}.md): " in page.path.with_name(f"{code}.md").read_text(encoding="utf-8")


UNEVEN = """\
import torch
from torch import nn

model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in ({sizes})]
for x, y in batches:
    (nn.functional.cross_entropy(model(x), y) / 3).backward()
optimizer.step()
"""


def test_lint_reports_what_it_sees_only_where_the_source_shows_it() -> None:
    """Every code that `lint` reports is one that the catalogue says it sees."""
    (found,) = lint_source(UNEVEN.format(sizes="5, 5, 2"), "train.py")
    assert found.mistake.code == "GA104"
    assert found.mistake.static
    assert found.mistake.where_visible
    assert lint_source(UNEVEN.format(sizes="5, 5, 5"), "train.py") == []


@every_page
def test_lint_flags_exactly_the_marked_lines(page: Page) -> None:
    (bad,) = page.examples["bad"]
    got = {(f.where.line, f.mistake.name) for f in lint_source(bad, "bad.py")}
    wanted = marked_errors(bad)
    assert {name for _, name in wanted} == {page.settings["name"]}
    assert got == (wanted if page.settings["static"] else set())


@every_page
def test_lint_finds_nothing_in_the_good_example(page: Page) -> None:
    for good in (*page.examples["good"], *page.examples.get("fixed", [])):
        assert lint_source(good, "good.py") == []


@every_page
def test_verify_measures_the_bad_example(page: Page, tmp_path: Path) -> None:
    (bad,) = page.examples["bad"]
    result = watch_source(bad, tmp_path)
    if not page.settings["dynamic"]:
        assert found(result) == set()
        return
    assert result.verdict is Verdict(page.settings["verdict"])
    assert found(result) == marked_errors(for_verify(bad))
    assert result.exit_status == (3 if result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION else 1)
    ratio = page.settings.get("norm_ratio")
    if ratio is not None:
        measured = [w.grad_norm_ratio for w in result.windows]
        assert measured == pytest.approx(ratio if isinstance(ratio, list) else [ratio] * len(measured), rel=1e-5)
    weights = page.settings.get("weights")
    if weights is not None:
        assert [list(w.weights) for w in result.windows] == [pytest.approx(each, abs=1e-5) for each in weights]


@every_page
def test_verify_calls_the_good_example_equivalent(page: Page, tmp_path: Path) -> None:
    for good in (*page.examples["good"], *page.examples.get("fixed", [])):
        result = watch_source(good, tmp_path)
        assert result.verdict is Verdict.EQUIVALENT, result.reason
        assert result.diagnosis == ()
        assert result.exit_status == 0

"""What README.md and docs/ show is what happens: commands, Python, settings, links."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from samples import (
    NOT_RUN,
    NOT_RUN_PYTHON,
    PAGES,
    ROOT,
    blocks,
    commands,
    exchanges,
    follow,
    prepare,
    same_line,
    same_output,
)

from gradcheck_accum import cli
from gradcheck_accum.run_options import SETTINGS as RUN_SETTINGS
from gradcheck_accum.settings import settings_for

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

READ_FIRST = {"README", "tutorial", "verify"}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if p.stem in READ_FIRST else [pytest.mark.thorough], id=p.stem) for p in PAGES],
)
def test_what_the_page_shows_happens(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    for command, shown, done in follow(page, tmp_path):
        if "\n" in command:
            assert done.returncode == 0, command + done.stdout + done.stderr
        else:
            # Torchrun prints a traceback of its own for every exit status but 0.
            traceback = "internal error" if command.startswith("torchrun") else "Traceback"
            assert done.returncode != 2 and traceback not in done.stderr, f"$ {command}\n{done.stderr}"
            printed = done.stdout.splitlines()
            assert not shown or same_output(shown, printed), f"$ {command}\n" + done.stdout


@every_page
def test_python_compiles(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(block.body, page.name, "exec")


@every_page
def test_our_own_commands_are_understood(page: Path) -> None:
    for command, _ in commands(page.read_text(encoding="utf-8")):
        for words in command.partition(" | ")[0].split(" && "):
            program, *arguments = shlex.split(words, comments=True)
            if program == "gradcheck-accum":
                own = arguments[: arguments.index("--")] if "--" in arguments else arguments
                assert cli.command_line().parse_known_args(own)[1] == [], command


@every_page
def test_settings_are_settings(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    for block in blocks(page.read_text(encoding="utf-8"), "toml"):
        assert tomllib.loads(block.body)
        file.write_text(block.body, encoding="utf-8")
        settings_for([str(tmp_path)])
    for block in blocks(page.read_text(encoding="utf-8"), "json"):
        assert json.loads(block.body)


def test_every_setting_is_on_its_page() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    names = [*RUN_SETTINGS, "select", "extend-select", "ignore", "per-file-ignores", "baseline", "exclude"]
    assert [name for name in [*names, "extend-exclude"] if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "rules").glob("*.md"))])
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target


def test_the_readme_is_short_and_ends_every_way_to_the_docs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    linked = set(re.findall(r"\]\(docs/([a-z]+\.md)", text))
    # One of them is the reference that the built site alone has.
    assert {page.name for page in PAGES[1:]} - linked <= {"api.md"}


def test_what_is_not_run_is_still_shown() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    shown = [command for text in texts.values() for command, _ in commands(text)]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in shown)] == []
    for name, first in NOT_RUN_PYTHON:
        assert any(block.body.startswith(first) for block in blocks(texts[name], "python"))


def test_the_script_of_the_tutorial_is_the_one_of_the_readme() -> None:
    (script, _) = (block.body for block in blocks((ROOT / "docs" / "tutorial.md").read_text("utf-8")) if block.title)
    assert script == (ROOT / "fixtures" / "demo" / "train_options.py").read_text(encoding="utf-8")


def test_output_is_compared_line_by_line() -> None:
    assert exchanges("$ a b\n1\n$ c\n") == [("a b", ["1"]), ("c", [])]
    assert same_line("3.000  8.9e-07", "3.001  4.1e-07")
    assert not same_line("4 windows", "5 windows")
    assert same_line("1.000        0  equivalent", "1.000  2.8e-07  equivalent")
    assert not same_line("1.000        0  equivalent", "1.000  2.8e-05  equivalent")
    assert not same_line("1.000        0  equivalent", "1.000        1  equivalent")
    assert not same_line("0.500", "0.600")
    assert same_output(["a", "...", "d"], ["a", "b", "c", "d"])
    assert not same_output(["a", "...", "d"], ["a", "b", "c"])
    assert not same_output(["a"], ["a", "b"])

"""Reads the rule pages as the tests need them: their settings, and the scripts in their fences."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = Path(__file__).parents[1] / "rules"
_MARK = re.compile(r"  # (?:error|verify): \[[a-z-]+\]")
_FENCE = re.compile(r"```(\S+)(?: (\w+))?\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """One rule page: its title, its toml block, and its examples by kind (bad, good, fixed)."""

    path: Path
    title: str
    settings: dict[str, Any]
    examples: dict[str, list[str]]


def fences(text: str) -> list[tuple[str, str, str]]:
    """The fences of a page, in order: the language, the word behind it, and what is in the fence."""
    return _FENCE.findall(text)


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    settings: dict[str, Any] = {}
    examples: dict[str, list[str]] = {}
    for language, kind, body in fences(text):
        if language == "toml":
            settings = tomllib.loads(body)
        elif language == "py":
            examples.setdefault(kind, []).append(body)
    return Page(path, text.splitlines()[0].removeprefix("# "), settings, examples)


def unmarked(source: str) -> str:
    """An example without the comments that say what is wrong with it."""
    return _MARK.sub("", source)


def for_verify(source: str) -> str:
    """An example with the marks of verify for those of lint, where the two name different lines."""
    return (
        re.sub(r"  # error: \[[a-z-]+\]", "", source).replace("# verify: [", "# error: [")
        if "# verify: [" in source
        else source
    )


def pages() -> list[Page]:
    return [read_page(path) for path in sorted(RULES.glob("GA*.md"))]

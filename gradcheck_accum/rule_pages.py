"""The pages in ``rules/``: one for each mistake, found by code or name."""

from __future__ import annotations

import re
from pathlib import Path

from gradcheck_accum.mistakes import CATALOGUE, Mistake


def find_mistake(code_or_name: str) -> Mistake | None:
    """The mistake that a code (``GA101``) or a name (``missing-loss-scaling``) means; case does not matter."""
    wanted = code_or_name.strip().casefold()
    return next((m for m in CATALOGUE.values() if wanted in (m.code.casefold(), m.name)), None)


def rules_directory() -> Path:
    """Where the pages are: inside the package once installed, beside it in a checkout or an editable install."""
    installed = Path(__file__).with_name("rules")
    return installed if installed.is_dir() else Path(__file__).parents[1] / "rules"


def page_path(mistake: Mistake) -> Path | None:
    """The page of ``mistake``, or None where it has none."""
    return next(iter(sorted(rules_directory().glob(f"{mistake.code}*.md"))), None)


def read_page(mistake: Mistake) -> str | None:
    """The text of the page of ``mistake``, or None where it has none."""
    path = page_path(mistake)
    return path.read_text(encoding="utf-8") if path else None


def readable_page(mistake: Mistake) -> str | None:
    """The page without the block that is meant for programs, or None where there is none."""
    page = read_page(mistake)
    return None if page is None else re.sub(r"```toml\n.*?\n```\n\n", "", page, count=1, flags=re.DOTALL)

"""What MkDocs calls while it builds the site (mkdocs.yml): adds the pages that are written from something else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import generated
import links
import pictures
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_PICTURE = re.compile(r"!\[[^\]]*\]\((pictures/[\w-]+\.svg)\)")


def on_files(files: Files, *, config: Any, **_: object) -> Files:
    """Add the pages that are no files of docs/."""
    pages = {there: (ROOT / here).read_text(encoding="utf-8") for here, there in links.ELSEWHERE.items()}
    for place, text in {**pages, **generated.rule_pages()}.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Draw the ledgers, put pictures into the page (there they have its colors), and make links lead on the site."""
    place = page.file.src_uri
    if place == "commands.md":
        markdown = markdown.replace("<!-- commands -->", generated.commands())
    markdown = _PICTURE.sub(lambda picture: _inlined(ROOT / "docs" / picture[1]), markdown)
    return links.relinked(pictures.drawn(markdown), place, ROOT)


def _inlined(path: Path) -> str:
    # Markdown takes an empty line for the end of the picture.
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return f'<figure class="ga-figure">{"".join(lines)}</figure>'

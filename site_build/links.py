"""Links between the files of the repository, as they lead on the site.

Every page has the links of its file in the repository. On the site some files are pages, at another place. What is no
page there (a script, a folder of fixtures) is named and not linked: the site does not know where the repository is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md"}
"""Pages of the site that are not in docs/ or rules/."""

_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])+)\]\((?!https?://|#)([^)\s#]+)(#[^)\s]+)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def page_of(file: str) -> str | None:
    """The page that a file of the repository is on the site, or None."""
    if file in ELSEWHERE:
        return ELSEWHERE[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return file if re.fullmatch(r"rules/GA\d+\.md", file) else None


def file_of(page: str) -> str:
    """The file of the repository that a page of the site is made of."""
    made_of = {there: here for here, there in ELSEWHERE.items()}
    return made_of.get(page) or (page if page.startswith("rules/") else f"docs/{page}")


def relinked(markdown: str, page: str, root: Path) -> str:
    """The text of a page with its links as they lead on the site; what leads nowhere stays, for MkDocs to see."""
    folder = PurePosixPath(file_of(page)).parent

    def relink(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        file = os.path.normpath(folder / target)
        there = page_of(file)
        if there is not None:
            return f"[{text}]({os.path.relpath(there, PurePosixPath(page).parent)}{anchor})"
        return text if (root / file).exists() else link[0]

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(relink, part) for part in parts)

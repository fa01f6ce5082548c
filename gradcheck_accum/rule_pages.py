"""The pages in ``rules/``: one for each mistake, found by code or name.

A page has three uses. Programs read its ``toml`` block, tests run its examples, and people read what
:meth:`RulePage.parts` makes of it: the examples become a diff from the wrong loop to the right one, and a section on
suppressing the mistake, the same for all pages, is added.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from gradcheck_accum.mistakes import CATALOGUE, Mistake

_FENCE = re.compile(r"^```(\S+)(?: (\w+))?\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
_MARK = re.compile(r"  # (?:error|verify): \[[a-z-]+\]")
_FLAGGED = re.compile(r"^ *(.*?)  # error: ", re.MULTILINE)
_LINK_TO_A_PAGE = re.compile(r"\[([^\]]+)\]\(GA\d+\.md\)")

_SEEN_BY = {
    "both": "Reported by `lint` and `verify`.",
    "where visible": "Reported by `verify`, and by `lint` only where the source shows the numbers.",
    "lint": "Reported by `lint` only: no gradient shows it, so `verify` does not.",
    "verify": "Reported by `verify` only: the source does not show it.",
}

_WHAT_THEN = {
    "both": "`lint` then does not report it, and `verify` lists it as accepted: it decides no verdict.",
    "where visible": "`lint` then does not report it, and `verify` lists it as accepted: it decides no verdict.",
    "lint": "`lint` then does not report it.",
    "verify": "`verify` then lists it as accepted: it decides no verdict.",
}


@dataclass(frozen=True)
class RulePage:
    """One page: its title, its first sentence, its sections by heading, its examples by kind.

    ``flagged`` is the statement of the wrong example at which the mistake is reported.
    """

    mistake: Mistake
    title: str
    lead: str
    sections: dict[str, str]
    examples: dict[str, str]
    flagged: str

    @property
    def seen(self) -> str:
        """Its severity, and which engines detect it."""
        return f"{self.mistake.severity.value.capitalize()}. {_SEEN_BY[_sees(self.mistake)]}\n"

    @property
    def difference(self) -> str:
        """A diff from the wrong loop to the right one."""
        return _diff(self.examples["bad"], self.examples["good"])

    @property
    def safety(self) -> str:
        """What the fix does; if there is one, with its result for the wrong loop."""
        text = self.sections["Fix safety"]
        return _FENCE.sub(lambda _: _fenced(_diff(self.examples["bad"], self.examples["fixed"])), text)

    @property
    def switching_off(self) -> str:
        """How a project suppresses the mistake."""
        code = self.mistake.code
        return (
            f"At one place, by a comment on the statement:\n\n"
            f"```python\n{self.flagged}  # gradcheck-accum: ignore[{code}]\n```\n\n"
            f"Everywhere or in some files, in `pyproject.toml` (for one run, `--ignore {code}`):\n\n"
            f'```toml\n[tool.gradcheck-accum]\nignore = ["{code}"]\n\n'
            f'[tool.gradcheck-accum.per-file-ignores]\n"examples/**" = ["{code}"]\n```\n\n'
            f"{_WHAT_THEN[_sees(self.mistake)]}\n"
        )

    def parts(self) -> dict[str, str]:
        """The page as people read it, by heading, in order, as Markdown."""
        told = self.sections
        return {
            "What it does": told["What it does"],
            "The difference": _fenced(self.difference),
            "Why it is wrong": told["Why it is wrong"],
            "Fix safety": self.safety,
            "How to switch it off": self.switching_off,
            "Known limits": told["Known limits"],
            "Related mistakes": told["Related mistakes"],
            "References": told["References"],
        }

    def markdown(self) -> str:
        """The page as people read it; links to other pages are names."""
        parts = "\n".join(f"## {heading}\n\n{text}" for heading, text in self.parts().items())
        return _LINK_TO_A_PAGE.sub(r"\1", f"# {self.title}\n\n{self.lead}\n{self.seen}\n{parts}")


def find_mistake(code_or_name: str) -> Mistake | None:
    """The mistake that a code (``GA101``) or a name (``missing-loss-scaling``) means; case does not matter."""
    wanted = code_or_name.strip().casefold()
    return next((m for m in CATALOGUE.values() if wanted in (m.code.casefold(), m.name)), None)


def rules_directory() -> Path:
    """The directory of the pages: in the package once installed, next to it in a checkout or an editable install."""
    installed = Path(__file__).with_name("rules")
    return installed if installed.is_dir() else Path(__file__).parents[1] / "rules"


def page_path(mistake: Mistake) -> Path | None:
    """The page of ``mistake``; None if it has none."""
    return next(iter(sorted(rules_directory().glob(f"{mistake.code}*.md"))), None)


def read_page(mistake: Mistake) -> RulePage | None:
    """The page of ``mistake``; None if it has none."""
    path = page_path(mistake)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    marked = {kind: body for language, kind, body in _FENCE.findall(text) if language == "py"}
    examples = {kind: _MARK.sub("", body) for kind, body in marked.items()}
    (flagged, *_) = _FLAGGED.findall(marked["bad"])
    opening, *found = _HEADING.split(text)
    title, _, rest = opening.partition("\n")
    sections = {heading: body.strip("\n") + "\n" for heading, body in zip(found[::2], found[1::2], strict=True)}
    lead = _FENCE.sub("", rest).strip() + "\n"
    return RulePage(mistake, title.removeprefix("# "), lead, sections, examples, flagged)


def readable_page(mistake: Mistake) -> str | None:
    """The page of ``mistake`` as people read it, in Markdown; None if it has none."""
    page = read_page(mistake)
    return None if page is None else page.markdown()


def _sees(mistake: Mistake) -> str:
    if mistake.static and mistake.dynamic:
        return "where visible" if mistake.where_visible else "both"
    return "lint" if mistake.static else "verify"


def _fenced(diff: str) -> str:
    return f"```diff\n{diff}```\n"


def _diff(before: str, after: str) -> str:
    """The changes from one script to the other with the lines around them; a gap is a line of its own."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=3, lineterm="")
    shown = ["  ..." if line.startswith("@@") else line for line in lines if not line.startswith(("---", "+++"))]
    return "".join(f"{line}\n" for line in shown[1:])

"""Loops as data: many in one text, each below a line with its label and its name.

::

    #: GA101: a loss that nothing divides
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        ...

    #= right: a loss that is divided by K
    -    criterion(model(x), y).backward()
    +    (criterion(model(x), y) / K).backward()

``#: `` begins a loop, and ``#= `` a twin of the loop before it, which is written as what differs: a diff of lines,
in which a line that begins with a space is the same in both. A long name continues on a second line that begins with
``#: ``. ``## `` begins a line about the loops that follow, which is part of none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(r"^#(?P<kind>[:=]) (?P<label>[^:\n]+): (?P<name>.+(?:\n#: .+)*)\n", re.MULTILINE)
_GROUP = re.compile(r"^## .*\n", re.MULTILINE)


@dataclass(frozen=True)
class LabelledLoop:
    """A loop with what is expected of it (``label``), in words or codes."""

    label: str
    name: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {self.label}"

    @property
    def codes(self) -> list[str]:
        """The codes of a label that consists of them; none where it is "right"."""
        return [] if self.label == "right" else self.label.split()

    def codes_of(self, engine: str) -> set[str]:
        """Of a label like "deviates, GA101, GA802 (lint)", the codes that this engine reports."""
        found = re.findall(r"\b(GA\d{3})(?: \((\w+)\))?", self.label)
        return {code for code, only in found if only in ("", engine)}


def labelled_loops(text: str) -> list[LabelledLoop]:
    """The loops of a text, in order."""
    text = _GROUP.sub("", text)
    headers = list(_HEADER.finditer(text))
    assert headers and not text[: headers[0].start()].strip(), "a loop without a label"
    ends = [header.start() for header in headers[1:]] + [len(text)]
    loops: list[LabelledLoop] = []
    base = ""
    for header, end in zip(headers, ends, strict=True):
        body = text[header.end() : end].strip("\n") + "\n"
        base = base if header["kind"] == "=" else body
        source = changed(base, body) if header["kind"] == "=" else body
        loops.append(LabelledLoop(header["label"], header["name"].replace("\n#: ", " "), source))
    assert len({str(loop) for loop in loops}) == len(loops), "two loops of one name and label"
    return loops


def changed(base: str, changes: str) -> str:
    """A loop with each change made, which are separated by empty lines; what one replaces must be there once."""
    for change in changes.strip("\n").split("\n\n"):
        lines = change.split("\n")
        assert all(line[0] in " -+" for line in lines), change
        before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", sign)) for sign in "-+")
        assert before and f"\n{base}".count(f"\n{before}") == 1, f"not there once:\n{before}"
        base = f"\n{base}".replace(f"\n{before}", f"\n{after}")[1:]
    return base

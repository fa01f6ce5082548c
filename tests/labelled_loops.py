"""Loops as data: many in one text, each below a line with its label and its name."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^#: (?P<label>[^:\n]+): (?P<name>.+(?:\n#: .+)*)\n", re.MULTILINE)
_GROUP = re.compile(r"^## .*\n", re.MULTILINE)


def labelled_loops(text: str) -> dict[str, tuple[str, str]]:
    """The loops of a text by their names, each with its label.

    ``#: label: name`` begins a loop; a long name continues on a second line that begins with ``#: ``. ``## `` begins a
    line about the loops that follow it, which is part of none.
    """
    text = _GROUP.sub("", text)
    headers = list(_HEADER.finditer(text))
    assert headers and not text[: headers[0].start()].strip(), "a loop without a label"
    ends = [header.start() for header in headers[1:]] + [len(text)]
    loops = {
        header["name"].replace("\n#: ", " "): (header["label"], text[header.end() : end].strip("\n") + "\n")
        for header, end in zip(headers, ends, strict=True)
    }
    assert len(loops) == len(headers), "two loops of one name"
    return loops

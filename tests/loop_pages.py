"""Training loops on pages by subject: each is a fence with its name, and marks its own mistakes.

````md
```py shared
import torch
```

```py right_scaled
for x, y in loader:
    ...
```

```diff bad_scaled_twice
-    loss = criterion(model(x), y) / K
-    loss.backward()
+    loss = criterion(model(x), y) / K / K
+    loss.backward()  # error: [double-loss-scaling]
```
````

A loop says in ``# error: [name]`` comments what is wrong with it, and on which line; one that is called ``right_...``
says nothing. What is shared comes before each loop of the page. A ``diff`` is a twin of the last loop that is written
out, changed as in `labelled_loops`. The loops of ``tests/loops`` were written before the linter ran on them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from labelled_loops import changed
from pages import fences

_PAGES = Path(__file__).parent / "loops"
_ERROR = re.compile(r"# error: \[([a-z0-9, -]+)\]")


def marked_errors(source: str) -> set[tuple[int, str]]:
    """The (line, rule name) pairs that a loop's own comments declare."""
    return {
        (number, name.strip())
        for number, line in enumerate(source.splitlines(), 1)
        for found in _ERROR.findall(line)
        for name in found.split(",")
    }


def loops_of(page: Path) -> dict[str, str]:
    """The source of each loop of a page, by its name."""
    loops: dict[str, str] = {}
    shared = base = ""
    for language, name, body in fences(page.read_text(encoding="utf-8")):
        if name == "shared":
            shared = f"{body}\n"
            continue
        assert name not in loops, f"two loops are called {name}"
        base = body if language == "py" else base
        loops[name] = shared + (body if language == "py" else changed(base, body))
    return loops


@cache
def written_loops() -> dict[str, str]:
    """The loops of all pages of ``tests/loops``, in the order of their names."""
    named = [loop for page in sorted(_PAGES.glob("*.md")) for loop in loops_of(page).items()]
    assert len(dict(named)) == len(named), "two loops of one name"
    return dict(sorted(named))

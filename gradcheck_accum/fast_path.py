"""The short way through ``lint``: scripts given by name, no option, and no training loop in any of them.

That is what a commit hook and an editor ask most of the time, so it is answered before the parser of the command line,
the reports and the engine are loaded. Whatever is not as plain as that is left to them.
"""

from __future__ import annotations

import os

from gradcheck_accum.report.words import no_mistakes
from gradcheck_accum.sources.grammar import objection
from gradcheck_accum.sources.prefilter import LARGEST_FILE, may_train_with_others
from gradcheck_accum.sources.pyproject import settings_files


def answer(arguments: list[str]) -> str | None:
    """All that these arguments of the command line would print, with exit status 0; None where the long way is needed.

    A project with settings goes the long way too: they may be wrong, which has to be said.
    """
    command, paths = arguments[:1], arguments[1:]
    if command != ["lint"] or not paths or any(path.startswith("-") or not path.endswith(".py") for path in paths):
        return None
    if not all(map(_is_without_loop, paths)) or any(settings_files(paths)):
        return None
    return no_mistakes(len(set(map(os.path.realpath, paths))))


def _is_without_loop(path: str) -> bool:
    """Whether a file is Python that neither trains nor is to be complained about."""
    if not os.path.isfile(path):
        return False  # what comes out of a pipe could not be read again
    try:
        with open(path, "rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE or may_train_with_others(content, path):
            return False
    except (OSError, ValueError):
        return False
    return objection(content) is None

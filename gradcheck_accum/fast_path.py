"""The fast path of ``lint``: files given by name, no options, and no training loop in any of them.

This is the most common case for commit hooks and editors, so it is handled before the argument parser, the reports and
the engine are loaded. Everything else is left to them.
"""

from __future__ import annotations

import os

from gradcheck_accum.report.words import no_mistakes
from gradcheck_accum.sources.grammar import objection
from gradcheck_accum.sources.prefilter import LARGEST_FILE, may_train_with_others
from gradcheck_accum.sources.pyproject import settings_files


def answer(arguments: list[str]) -> str | None:
    """All that ``lint`` would print for these arguments, with exit status 0; None if the full command line is needed.

    A project with settings needs it too: invalid settings have to be reported.
    """
    command, paths = arguments[:1], arguments[1:]
    if command != ["lint"] or not paths or any(path.startswith("-") or not path.endswith(".py") for path in paths):
        return None
    if not all(map(_is_without_loop, paths)) or any(settings_files(paths)):
        return None
    return no_mistakes(len(set(map(os.path.realpath, paths))))


def _is_without_loop(path: str) -> bool:
    """Whether a file is valid Python without a training loop, with nothing to report."""
    if not os.path.isfile(path):
        return False  # a pipe could not be read again
    try:
        with open(path, "rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE or may_train_with_others(content, path):
            return False
    except (OSError, ValueError):
        return False
    return objection(content) is None

"""How a command ends: its exit status, and a one-line error message."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gradcheck_accum.errors import UsageError

PROGRAM = "gradcheck-accum"

OK, FOUND, ERROR = 0, 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141
"""The exit status that a shell shows for a program killed by SIGINT or SIGPIPE."""


def complain(message: str) -> int:
    """Print a one-line error on standard error; returns the exit status of a command that ends with it."""
    from gradcheck_accum.control_characters import visible

    with contextlib.suppress(OSError):
        print(f"{PROGRAM}: {visible(message)}", file=sys.stderr)
    return ERROR


def needs(command: str, package: str) -> None:
    """Raise an error if a package is missing that ``command`` requires."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{command} needs {package}, which is not installed here: pip install {package}")


@contextmanager
def settings_are_usage() -> Iterator[None]:
    """An invalid setting is reported in one line, like an invalid option."""
    from gradcheck_accum.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        raise UsageError(str(error)) from None

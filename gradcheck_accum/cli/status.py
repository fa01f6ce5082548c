"""How a command ends: its exit status, and the one line that says what is wrong."""

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
"""What a shell shows for a program that SIGINT or SIGPIPE ended."""


def complain(message: str) -> int:
    """Say what is wrong on standard error, in one line; the exit status of a command that ends so."""
    from gradcheck_accum.control_characters import visible

    with contextlib.suppress(OSError):
        print(f"{PROGRAM}: {visible(message)}", file=sys.stderr)
    return ERROR


def needs(command: str, package: str) -> None:
    """Complain where a package is missing that ``command`` does not work without."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{command} needs {package}, which is not installed here: pip install {package}")


@contextmanager
def settings_are_usage() -> Iterator[None]:
    """A setting that makes no sense is said in one line, as an option that does not."""
    from gradcheck_accum.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        raise UsageError(str(error)) from None

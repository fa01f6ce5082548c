"""Starts the processes that run scripts. Never imports torch."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The working directory is not on the path until PyTorch is loaded: a `random.py` there must not break it. The package
# must be found from any directory, but its parent must not shadow the script's modules, so that is on the path only for
# the import.
_CHILD = (
    "import signal, sys; sys.path[:] = [*filter(None, sys.path), sys.argv[3]]; "
    "signal.getsignal(2) is signal.SIG_IGN or signal.signal(2, signal.SIG_DFL); {unblock}"
    "from gradcheck_accum.verify.process.{module} import main{imports}; sys.path.pop(); {first}main({classes})"
)
"""An interrupt before the script begins ends the child silently (signal 2 is SIGINT on every system).

Python itself would print a traceback while it starts, so interrupts are blocked until ``unblock``. ``imports`` are
those of the ``classes`` that the request has instances of, since the request itself is only data. ``first`` is run
before `main`."""

_UNBLOCK = "signal.pthread_sigmask(signal.SIG_UNBLOCK, {2}); "

_SERVE = "from gradcheck_accum.verify.process.fork_server import serve; serve(); "
"""`main` is called where a child that is started by itself calls it: in the copies of this process."""


def start_child(
    arguments: Sequence[str],
    classes: Sequence[type[Any]],
    variables: Mapping[str, str],
    *,
    copied_by: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that runs a request, whose companions are of ``classes``, with ``variables`` as environment.

    ``copied_by`` is the descriptor of the socket that asks for copies of it, if each copy is to run a request.
    """
    first, passed = ("", ()) if copied_by is None else (_SERVE, (copied_by,))
    with _interrupts_wait() as unblock:
        command = _command("child", arguments, classes, unblock, first)
        return subprocess.Popen(command, stdout=standard_error(), env=variables, pass_fds=passed)


def start_apart(
    module: str, arguments: Sequence[str], classes: Sequence[type[Any]], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that runs another of the modules here, and is not interrupted together with this one."""
    command = _command(module, arguments, classes, "", "")
    return subprocess.Popen(command, stdout=standard_error(), env=variables, start_new_session=True)


def _command(
    module: str, arguments: Sequence[str], classes: Sequence[type[Any]], unblock: str, first: str
) -> list[str]:
    imports = "".join(f"; from {kind.__module__} import {kind.__qualname__}" for kind in classes)
    named = ", ".join(kind.__qualname__ for kind in classes)
    code = _CHILD.format(module=module, imports=imports, classes=named, unblock=unblock, first=first)
    package = str(Path(__file__).resolve().parents[3])
    return [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", code, *arguments, package]


@contextmanager
def _interrupts_wait() -> Iterator[str]:
    """Block interrupts in the block, and in a process that is started there until it runs the code that is yielded."""
    if not hasattr(signal, "pthread_sigmask"):
        yield ""
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield "" if signal.SIGINT in before else _UNBLOCK
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def standard_error() -> int:
    """The descriptor that a script's output goes to."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # A notebook or a test has put something else in its place.
        return 2

"""The standard streams as reports need them: a report is written completely, or its loss is reported."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class StreamError(Exception):
    """A standard stream that is closed or can no longer be written to; the message is one line that says so."""


def prepare() -> None:
    """Keep characters that a stream cannot encode, or a closed standard error, from losing a report.

    Raises StreamError if standard output is closed: the findings would be lost.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as we run)
        os.set_inheritable(sys.stderr.fileno(), True)  # the number of the closed one, which processes of ours expect
    if sys.stdout is None:
        raise StreamError("standard output is closed: the report cannot be written")
    with _stdout_that_takes_it():
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")


def write(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Print to standard output, or to another stream. Raises StreamError if that fails."""
    with _stdout_that_takes_it():
        print(text, file=stream or sys.stdout, end=end)


def write_bytes(content: bytes) -> None:
    """Write bytes to standard output. Raises StreamError if that fails."""
    with _stdout_that_takes_it():
        sys.stdout.buffer.write(content)


def flush() -> None:
    """Flush standard output. Raises StreamError if that fails."""
    with _stdout_that_takes_it():
        # The language server closes it when its client is done, and a replacement for it may have no such attribute.
        if not getattr(sys.stdout, "closed", False):
            sys.stdout.flush()


def read_stdin() -> bytes:
    """All of standard input. Raises StreamError if it is closed."""
    if sys.stdin is None:
        raise StreamError("standard input is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise StreamError(f"standard input: {error.strerror}") from None


def discard_stdout() -> None:
    """Redirect the rest of standard output to nowhere: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _stdout_that_takes_it() -> Iterator[None]:
    """A full disk is not our error. A closed pipe (`| head`) is no error at all: BrokenPipeError stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise StreamError(f"standard output: {error.strerror}") from None

"""The standard streams as a report needs them: it is written whole, or its loss is said."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class StreamError(Exception):
    """A standard stream that is not there, or takes nothing more; the message is one line that says so."""


def prepare() -> None:
    """Let no report be lost to a character that its stream lacks, nor to a stream for errors that is closed.

    Raises StreamError where standard output is closed: nobody would hear of what is found.
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
    """Print to standard output, or to another stream. Raises StreamError where it takes nothing more."""
    with _stdout_that_takes_it():
        print(text, file=stream or sys.stdout, end=end)


def write_bytes(content: bytes) -> None:
    """Write to standard output as it is. Raises StreamError where it takes nothing more."""
    with _stdout_that_takes_it():
        sys.stdout.buffer.write(content)


def flush() -> None:
    """Hand over what was written to standard output. Raises StreamError where it takes nothing more."""
    with _stdout_that_takes_it():
        # The language server closes it when its client is done; what stands in for it may have no such thing.
        if not getattr(sys.stdout, "closed", False):
            sys.stdout.flush()


def read_stdin() -> bytes:
    """All of standard input. Raises StreamError where there is none."""
    if sys.stdin is None:
        raise StreamError("standard input is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise StreamError(f"standard input: {error.strerror}") from None


def discard_stdout() -> None:
    """Give what is left to write somewhere to go: Python flushes standard output once more at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _stdout_that_takes_it() -> Iterator[None]:
    """A full disk is no error of ours. A reader that went away (`| head`) is none at all: BrokenPipeError stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise StreamError(f"standard output: {error.strerror}") from None

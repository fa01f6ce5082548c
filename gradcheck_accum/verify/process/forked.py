"""Runs as copies (forks) of one process, which has imported PyTorch and this package once for all of them.

The other end is `gradcheck_accum.verify.process.fork_server`. Never imports torch.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from gradcheck_accum.verify.process.starting import start_child


class Child(Protocol):
    """A process that was started: what `subprocess.Popen` has of one."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Raises `subprocess.TimeoutExpired` after ``timeout`` seconds."""

    def kill(self) -> None:
        """Kill it, if it has not ended."""

    def terminate(self) -> None:
        """Send it SIGTERM, if it has not ended."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""


class Copies:
    """Makes the copies; ``process`` is what they are made of, and takes the ``requests``."""

    def __init__(self, process: subprocess.Popen[bytes], requests: socket.socket) -> None:
        self._process, self._requests = process, requests
        self._lock = threading.Lock()
        self._answer: bytes | None = None

    def copy(self, arguments: Sequence[str]) -> Child | None:
        """A copy that runs the request in the file that the first of the ``arguments`` names.

        None if the process cannot be copied; and what has ended it, where that was a signal, has ended the run too.
        """
        with self._lock:
            if self._answer is None:
                self._answer = os.read(self._requests.fileno(), 1)
        if not self._answer:
            return self._process if self._process.wait() < 0 else None
        return self._asked_for(arguments) if self._answer == b"1" else None

    def _asked_for(self, arguments: Sequence[str]) -> Child | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            try:
                socket.send_fds(self._requests, [json.dumps(list(arguments)).encode()], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        return _Copy.of(ours)

    def kill(self) -> None:
        """Make no more copies, even if one is being waited for."""
        self._process.kill()

    def close(self) -> None:
        """All copies have ended: the process is no longer needed."""
        self._process.kill()
        self._process.wait()
        self._requests.close()


@contextmanager
def copies_of_one(
    classes: Sequence[type[Any]], variables: Mapping[str, str], modules: Sequence[str]
) -> Iterator[Copies | None]:
    """Copies of a process with ``variables`` as its environment, for requests whose companions are of ``classes``.

    It imports ``modules`` too, before it is copied. None where the system cannot copy processes safely.
    """
    if not (sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "send_fds")):
        yield None
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        arguments = [str(theirs.fileno()), json.dumps(list(modules))]
        copies = Copies(start_child(arguments, classes, variables, copied_by=theirs.fileno()), ours)
    try:
        yield copies
    finally:
        copies.close()


class _Copy:
    """One of the copies: ``process`` is its descriptor, and its end is reported on ``reports``."""

    def __init__(self, process: int | None, reports: socket.socket) -> None:
        self._process, self._reports = process, reports
        self._lock = threading.Lock()
        self._status: int | None = None

    @classmethod
    def of(cls, reports: socket.socket) -> Child | None:
        """The copy whose number is reported; None if it was not made."""
        number = os.read(reports.fileno(), 64)
        if not number:
            reports.close()
            return None
        process = None
        with suppress(ProcessLookupError):  # it may have ended already
            process = os.pidfd_open(int(number))
        return cls(process, reports)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; as `Child` says."""
        with self._lock:
            status = self._status
        if status is not None:
            return status
        ready, _, _ = select.select([self._reports], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired("the script", timeout or 0.0)
        reported = os.read(self._reports.fileno(), 64)
        if not reported:
            # The process that it is a copy of was killed: how it ends will not be reported.
            self.kill()
            if self._process is not None:
                select.select([self._process], [], [])
        with self._lock:
            self._status = int(reported) if reported else -signal.SIGKILL
            if self._process is not None:
                os.close(self._process)
            self._reports.close()
            return self._status

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""
        with self._lock, suppress(OSError):
            if self._status is None and self._process is not None:
                signal.pidfd_send_signal(self._process, sig)

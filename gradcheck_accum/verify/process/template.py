"""A process that has loaded PyTorch and gradcheck-accum and runs nothing: runs of one script begin as copies of it.

To load them takes seconds of processor time, for each run that starts from nothing. A copy (a fork) has them at once,
before anything of the script, PyTorch's own threads or a device is there. Never imports torch where it is started from.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_LONGEST = 1 << 16
"""Bytes of what is asked for at once: two paths."""

_LOADED = (
    "torch",
    "torch._dynamo",  # where an optimizer is first used, PyTorch imports it for a second
    "gradcheck_accum.verify.session",
    "gradcheck_accum.verify.ranks.gathering",
)

_KILLED = -int(getattr(signal, "SIGKILL", 9))


_ENDS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class NoCopies(Exception):
    """Processes cannot be copied here, or the template is gone: a run has to start from nothing."""


class Copy:
    """A copy, with what is used of a `subprocess.Popen`; its process is the template's child and not this one's."""

    def __init__(self, told: int) -> None:
        self._told, self._lock = told, threading.Lock()
        self._read = b""
        self.returncode: int | None = None
        self.pid = self._number(None)
        if self.pid is None:
            os.close(told)
            raise NoCopies

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, as that of a Popen. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            status = self._number(timeout)
            with self._lock:
                # Where the template is gone without a word, so is what it has started.
                self.returncode = _KILLED if status is None else status
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        with self._lock:
            if self.returncode is None and self.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _number(self, timeout: float | None) -> int | None:
        """The next number that is told of it; None where nobody tells any more. Raises subprocess.TimeoutExpired."""
        while b"\n" not in self._read:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
            more = os.read(self._told, 64)
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return int(line)


class Template:
    """The process, from where it is started; ``begin`` does that where it is first needed, with a socket to inherit."""

    def __init__(self, begin: Callable[[int], subprocess.Popen[bytes]]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None

    def copy(self, arguments: list[str]) -> Copy:
        """A copy that goes on with these arguments. Raises NoCopies."""
        with self._lock:
            if sys.platform != "linux":
                raise NoCopies  # elsewhere system libraries may not survive it
            if self._ours is None:
                self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = self._begin(theirs.fileno())
            reading, writing = os.pipe()
            try:
                socket.send_fds(self._ours, [json.dumps(arguments).encode()], [writing])
            except OSError:
                os.close(reading)
                raise NoCopies from None
            finally:
                os.close(writing)
        return Copy(reading)

    def close(self) -> None:
        """It is needed no more: it ends as soon as its copies have."""
        if self._ours is not None and self._process is not None:
            self._ours.close()
            self._process.wait()


def copied(number: int, *more: str) -> None:
    """Load everything, and wait at the socket ``number``; returns in each copy, with the arguments that it is given.

    ``more`` are modules to load besides. The template itself ends here when nobody can ask for copies any more and
    all have ended.
    """
    try:
        for name in (*_LOADED, *more):
            importlib.import_module(name)
    except Exception:
        os._exit(1)  # a run that starts from nothing says why
    # What ends all that a terminal has started reaches it too: its copies heed that, and it tells how they have ended.
    heeded = {each: signal.signal(each, signal.SIG_IGN) for each in _ENDS}
    asking, told = socket.socket(fileno=number), dict[int, int]()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    is_asked = True
    while is_asked or told:
        waiting = [ended, asking.fileno()] if is_asked else [ended]
        ready, _, _ = select.select(waiting, [], [])
        if ended in ready:
            os.read(ended, _LONGEST)
            _tell_of_ended(told)
        if asking.fileno() not in ready:
            continue
        asked, given, _, _ = socket.recv_fds(asking, _LONGEST, 1)
        is_asked = bool(asked)
        if not is_asked:
            continue
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (asking.detach(), ended, wake, *given, *told.values()):
                os.close(own)
            sys.argv[1:] = json.loads(asked)
            for each, handler in heeded.items():
                signal.signal(each, handler)
            return
        (told[pid],) = given
        _tell(told[pid], pid)
    os._exit(0)


def _tell_of_ended(told: dict[int, int]) -> None:
    """Tell of the copies that have ended how they have."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        to = told.pop(pid)
        _tell(to, os.waitstatus_to_exitcode(status))
        os.close(to)


def _tell(to: int, number: int) -> None:
    with suppress(OSError):  # nobody waits for it any more
        os.write(to, b"%d\n" % number)

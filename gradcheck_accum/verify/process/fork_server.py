"""The process that runs are copied from: it has imported PyTorch and this package, and forks a child for each request.

A copy sees its process as a child that was started by itself does: nothing of a script has happened here yet, no thread
of Python's runs, and signals, descriptors and arguments are put in order. Where that cannot be done, this process says
so and ends, and every run is started by itself (`gradcheck_accum.verify.process.forked`).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gradcheck_accum.verify.process.child import load

_OUTLASTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or a launcher sends to a whole group of processes: the children answer them."""


def serve() -> None:
    """Serve the requests that come from the socket in the first argument, once the modules in the second are imported.

    Returns in the copies, each with the arguments of a child. Does not return in this process: it ends when the socket
    is closed.
    """
    requests = socket.socket(fileno=int(sys.argv[1]))
    was_alone = len(os.listdir("/proc/self/task")) == 1
    load()
    for name in json.loads(sys.argv[2]):
        importlib.import_module(name)
    handlers = {each: signal.getsignal(each) for each in _OUTLASTED}
    can_be_copied = (
        was_alone
        and threading.active_count() == 1
        and None not in handlers.values()
        and not _is_traced()
        and not _has_accelerator()
    )
    _send(requests, int(can_be_copied))
    if can_be_copied and _Copies(requests, handlers).is_one():
        return
    # What was registered for the end of a process, or has been printed and not yet written, is for the runs.
    os._exit(0)


def _is_traced() -> bool:
    """Whether a debugger or a measurement of coverage follows this process; few of them follow its copies."""
    tools = getattr(sys, "monitoring", None)
    is_monitored = tools is not None and any(tools.get_tool(number) for number in range(6))
    return is_monitored or sys.gettrace() is not None or sys.getprofile() is not None


def _has_accelerator() -> bool:
    """Whether PyTorch was built for more than a CPU: the state of a device cannot be copied."""
    import torch

    others = torch._C._get_privateuse1_backend_name() != "privateuseone"
    return others or any(getattr(torch.version, name, None) is not None for name in ("cuda", "hip", "xpu"))


class _Copies:
    """The children of this process."""

    def __init__(self, requests: socket.socket, handlers: Mapping[signal.Signals, Any]) -> None:
        self._requests, self._handlers = requests, handlers
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def is_one(self) -> bool:
        """Fork a child for each request and report its end; True in the children, False where none is wanted."""
        waiting = select.poll()
        waiting.register(self._requests, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor in self._children:
                    waiting.unregister(descriptor)
                    self._report(descriptor)
                    continue
                request, received, _, _ = socket.recv_fds(self._requests, 1 << 16, 1)
                if not request:
                    return False
                reports = socket.socket(fileno=received[0])
                child = self._forked()
                if not child:
                    self._become_child(reports, json.loads(request))
                    return True
                process = os.pidfd_open(child)
                self._children[process] = child, reports
                waiting.register(process, select.POLLIN)
                _send(reports, child)

    def _forked(self) -> int:
        """Fork; returns 0 in the child, where signals are as they were, and the child's number here."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OUTLASTED)
        try:
            with warnings.catch_warnings():
                # The threads of numerical libraries end before a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            for each, handler in self._handlers.items():
                signal.signal(each, signal.SIG_IGN if child else handler)
            return child
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become_child(self, reports: socket.socket, arguments: list[str]) -> None:
        for process, (_, others) in self._children.items():
            os.close(process)
            others.close()
        reports.close()
        self._requests.close()
        sys.argv[1:3] = arguments
        # Some versions of Python leave the main thread with its number in the process that it was copied from.
        getattr(threading.main_thread(), "_set_native_id", lambda: None)()

    def _report(self, process: int) -> None:
        child, reports = self._children.pop(process)
        os.close(process)
        _, status = os.waitpid(child, 0)
        _send(reports, os.waitstatus_to_exitcode(status))
        reports.close()


def _send(reports: socket.socket, number: int) -> None:
    # Whoever asked for the child may have ended.
    with suppress(OSError):
        reports.send(str(number).encode())

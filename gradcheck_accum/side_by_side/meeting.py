"""Where runs are led from: each comes to a socket that it knows the address of. Never imports torch."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gradcheck_accum.side_by_side.lockstep import Lockstep
from gradcheck_accum.side_by_side.messages import Arrival, Order, Over, Seat
from gradcheck_accum.verdict import VerifyResult

_LONGEST_ADDRESS = 90
"""Characters that the address of a socket may have, on every system."""

Results = dict[int, VerifyResult | None]


@dataclass(frozen=True, slots=True)
class Manner:
    """How runs are compared: whether each trains its own weights, without dropout, with a tolerance of the user's."""

    is_free: bool = False
    no_dropout: bool = False
    rtol: float | None = None
    atol: float | None = None

    def seat(self, address: str, number: int) -> Seat:
        """The place of one of the runs."""
        tolerance = None if self.rtol is None or self.atol is None else (self.rtol, self.atol)
        return Seat(address, number, self.no_dropout, tolerance)


def led(
    start: Callable[[int, Seat], Callable[[], VerifyResult]], count: int, manner: Manner
) -> tuple[Results, Lockstep]:
    """Lead ``count`` runs to their ends: what each came to, and what became of them side by side.

    ``start`` is called for each of them in this thread, and what it returns in one of its own: it waits for its end.
    """
    with _folder() as folder, ExitStack() as stack:
        address = str(Path(folder) / "meeting")
        meeting = stack.enter_context(socket.socket(socket.AF_UNIX))
        meeting.bind(address)
        meeting.listen()
        waiting = [start(number, manner.seat(address, number)) for number in range(count)]
        hall = _Hall(meeting)
        for number, until_end in enumerate(waiting):
            hall.runs[number] = _Child(hall, until_end)
            stack.callback(hall.runs[number].join)
        # Who is led no more ends, and is then waited for.
        stack.callback(hall.close)
        lockstep = Lockstep(dict(hall.runs), Path(folder), is_free=manner.is_free)
        lockstep.lead()
    return {number: run.result for number, run in hall.runs.items()}, lockstep


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for what is handed over; its path is short enough for the address of a socket."""
    found = tempfile.TemporaryDirectory(prefix="gradcheck-accum-")
    if len(found.name) <= _LONGEST_ADDRESS:
        return found
    found.cleanup()
    return tempfile.TemporaryDirectory(prefix="gradcheck-accum-", dir="/tmp")


class _Child:
    """One run: the thread that waits for its process, and the connection to it once it has come to the meeting."""

    def __init__(self, hall: _Hall, run: Callable[[], VerifyResult]) -> None:
        self._hall = hall
        self._run = run
        self.connection: Connection | None = None
        self.result: VerifyResult | None = None
        self.ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.result = self._run()
        finally:
            os.close(self._end)

    def receive(self) -> Arrival | Over | None:
        """What it has come to; None where it is gone without a word. Waits."""
        while self.connection is None:
            if not self._hall.admit(self):
                return None
        try:
            # What a run forks may keep its connection open longer than it lives.
            wait([self.connection, self.ended])
            return self._received(self.connection.recv()) if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    @staticmethod
    def _received(told: Any) -> Arrival | Over | None:
        return told if isinstance(told, (Arrival, Over)) else None

    def tell(self, order: Order, path: str = "") -> Any:
        """Give an order; what it answers, where it does: nothing where it is gone."""
        if self.connection is None:
            return None
        try:
            self.connection.send((order, path))
            if order in (Order.GO, Order.ALONE, Order.STOP):
                return None
            wait([self.connection, self.ended])
            return self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()
        os.close(self.ended)


class _Hall:
    """Where runs come to be led: a socket that they know the address of."""

    def __init__(self, meeting: socket.socket) -> None:
        self._meeting = meeting
        self.runs: dict[int, _Child] = {}

    def admit(self, awaited: _Child) -> bool:
        """Let in who comes next; False where the one that is waited for has ended."""
        if self._meeting not in wait([self._meeting, awaited.ended]):
            return False
        visitor, _ = self._meeting.accept()
        connection = Connection(visitor.detach())
        self.runs[connection.recv()].connection = connection
        return True

    def close(self) -> None:
        """Lead nobody any more: who still runs then ends."""
        for run in self.runs.values():
            if run.connection is not None:
                run.connection.close()
                run.connection = None

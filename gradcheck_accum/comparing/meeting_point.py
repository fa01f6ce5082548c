"""Where runs are led from: each connects to a socket whose address it knows. Never imports torch."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gradcheck_accum.comparing.lockstep import Lockstep, Run
from gradcheck_accum.comparing.messages import Arrival, Numbers, Order, Over, receive, send
from gradcheck_accum.comparing.ranks import Ranks
from gradcheck_accum.comparing.seat import Seat
from gradcheck_accum.comparing.working import Started, Working, until_all_end
from gradcheck_accum.results.verdict import VerifyResult

_LONGEST_ADDRESS = 90
"""Characters that the address of a socket may have, on every system."""


class NoFolder(Exception):
    """There is no place for the exchange of data between runs; the message is one line that says why."""


Results = dict[int, VerifyResult | None]


@dataclass(frozen=True, slots=True)
class Led:
    """The results of runs, by their numbers, and their courses; ``failure`` is why leading them ended early.

    ``is_interrupted`` means that the user stopped them before their ends.
    """

    results: Results
    lockstep: Lockstep
    failure: tuple[int, str] | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Manner:
    """How runs are compared: whether each trains its own weights, without dropout, with a tolerance of the user's."""

    is_free: bool = False
    no_dropout: bool = False
    rtol: float | None = None
    atol: float | None = None

    def seat(self, address: str, number: int, rank: int = 0) -> Seat:
        """The place of one of the runs, or of one of its ranks."""
        tolerance = None if self.rtol is None or self.atol is None else (self.rtol, self.atol)
        return Seat(address, number, self.no_dropout, tolerance, self.is_free, rank)


Start = Callable[[int, Seat], Started]
"""Starts the run of a number, which takes the seat; called in the thread that leads."""


def led(
    start: Start,
    count: int,
    manner: Manner,
    *,
    ranks: Sequence[int] = (),
    announce: Callable[[str], object] | None = None,
) -> Led:
    """Lead ``count`` runs to their ends, or to where somebody interrupts that.

    ``ranks`` says how many processes each of them has, one where it says nothing. The first of each is started here;
    the others come by themselves, once they know the address that is announced. Raises NoFolder.
    """
    with _folder() as folder, socket.socket(socket.AF_UNIX) as meeting:
        address = str(Path(folder) / "meeting")
        meeting.bind(address)
        meeting.listen()
        if announce is not None:
            announce(address)
        hall = _Hall(meeting)
        # No thread may be there yet where processes are copied.
        started = [start(number, manner.seat(address, number)) for number in range(count)]
        working = [Working(one) for one in started]
        for number, run in enumerate(working):
            hall.expect(number, ranks[number] if ranks else 1, run.ended)
        runs = {number: hall.run(number) for number in range(count)}
        lockstep = Lockstep(runs, Path(folder), is_free=manner.is_free)

        def lead() -> None:
            lockstep.lead()
            # Who is led no more ends, and is then waited for.
            hall.close()

        try:
            is_interrupted = until_all_end(working, before=lead)
        finally:
            hall.close()
        failures = [(number, run.failure) for number, run in runs.items() if isinstance(run, Ranks) and run.failure]
    results = {number: run.result for number, run in enumerate(working)}
    return Led(results, lockstep, failures[0] if failures else None, is_interrupted)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the exchange of data; its path is short enough for the address of a socket. Raises NoFolder."""
    try:
        found = tempfile.TemporaryDirectory(prefix="gradcheck-accum-")
        if len(found.name) <= _LONGEST_ADDRESS:
            return found
        found.cleanup()
        return tempfile.TemporaryDirectory(prefix="gradcheck-accum-", dir="/tmp")
    except OSError as error:
        raise NoFolder(f"no temporary folder can be created ({error.strerror}): set TMPDIR to one") from None


class _Visitor:
    """One process of a run, once it has come to the meeting; ``ended`` can be read from when the run has ended."""

    def __init__(self, hall: _Hall, ended: int) -> None:
        self._hall = hall
        self.ended = ended
        self.connection: Connection | None = None

    def receive(self) -> Arrival | Over | None:
        """Wait for its next step or its end; None if it died."""
        found = self._hall.next_of([self], None)
        return None if found is None else found[1]

    def tell(self, order: Order, path: str = "") -> Any:
        """Give an order; returns the answer, None if there is none or it died."""
        self.order(order, path)
        return self.answer() if order.is_answered else None

    def order(self, order: Order, path: str = "") -> None:
        """Give an order, if it is there to take one."""
        if self.connection is not None:
            with suppress(OSError):
                send(self.connection, (order, path))

    def answer(self) -> Any:
        """Its answer to an order that requires one; None if it died."""
        answer = self.heard() if self.connection is not None and self._comes_to_something() else None
        # One that cannot carry it out comes to its end instead.
        return answer if isinstance(answer, Numbers) else None

    def _comes_to_something(self) -> bool:
        # What a run forks may keep its connection open longer than it lives.
        wait([self.connection or self.ended, self.ended])
        return self.connection is not None and self.connection.poll()

    def heard(self) -> Any:
        """Its message, None if it died."""
        try:
            return None if self.connection is None else receive(self.connection)
        except (EOFError, OSError):
            return None

    def leave(self) -> None:
        """Stop leading it: it ends at its next step."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class _Hall:
    """Where runs connect to be led: a socket whose address they know."""

    def __init__(self, meeting: socket.socket) -> None:
        self._meeting = meeting
        self._visitors: dict[int, list[_Visitor]] = {}

    def expect(self, number: int, ranks: int, ended: int) -> None:
        """A run of so many processes will connect, as long as it has not ended."""
        self._visitors[number] = [_Visitor(self, ended) for _ in range(ranks)]

    def run(self, number: int) -> Run:
        """One of the runs."""
        own = self._visitors[number]
        if len(own) == 1:
            return own[0]

        def next_of(awaited: Sequence[int], patience: float | None) -> tuple[int, Arrival | Over | None] | None:
            found = self.next_of([own[rank] for rank in awaited], patience)
            return None if found is None else (own.index(found[0]), found[1])

        return Ranks(own, next_of)

    def next_of(
        self, awaited: Sequence[_Visitor], patience: float | None
    ) -> tuple[_Visitor, Arrival | Over | None] | None:
        """The next of some processes with a step or its end, and which; None where none has in ``patience`` seconds.

        For one that died it is None.
        """
        latest = None if patience is None else time.monotonic() + patience
        while True:
            connected = [visitor for visitor in awaited if visitor.connection is not None]
            heard = {visitor.connection: visitor for visitor in connected}
            ends = {visitor.ended: visitor for visitor in awaited}
            left = None if latest is None else max(latest - time.monotonic(), 0.0)
            ready = wait(
                [*filter(None, heard), *ends, *([self._meeting] if len(connected) < len(awaited) else [])], left
            )
            if not ready:
                return None
            for connection, visitor in heard.items():
                if connection in ready:
                    message = visitor.heard()
                    return visitor, message if isinstance(message, (Arrival, Over)) else None
            if self._meeting in ready:
                self._admit()
            else:
                return next(visitor for ended, visitor in ends.items() if ended in ready), None

    def _admit(self) -> None:
        """Accept the next connection."""
        newcomer, _ = self._meeting.accept()
        connection = Connection(newcomer.detach())
        try:
            number, rank = receive(connection)
            self._visitors[number][rank].connection = connection
        except (EOFError, OSError, KeyError, IndexError, TypeError, ValueError):
            connection.close()  # none of the runs

    def close(self) -> None:
        """Stop leading: the runs that are still running end."""
        for visitors in self._visitors.values():
            for visitor in visitors:
                visitor.leave()

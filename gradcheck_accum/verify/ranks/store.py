"""The mailbox of ranks on several machines: the store where ``torchrun`` had its ranks meet.

It belongs to the launcher of the first machine and is open from before the script begins until rank 0 has ended. It has
no authentication: what is read from it is only data (`gradcheck_accum.portable`), but may be forged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from gradcheck_accum.verify.ranks.mailbox import START, LaunchError

_SILENCE = 30.0
"""Seconds without a heartbeat after which a rank is considered dead. It sends one every half second."""

_ANSWER = timedelta(seconds=20)
"""How long the store may take to answer before its machine is considered dead."""

_PIECE = 1 << 20
"""Bytes of one value: the store takes no more than 8 MiB."""


_MOST_PIECES = 1 << 12
"""The most pieces of one value: no report comes close."""

_T = TypeVar("_T")


class Store:
    """A mailbox at ``host``:``port``, under keys that begin with ``run``. It connects when it is first used."""

    def __init__(self, host: str, port: int, run: str) -> None:
        self._host, self._port, self._run = host, port, run
        self._connected: PrefixStore | None = None
        self._heard: dict[int, tuple[int, float]] = {}
        """By rank: how many heartbeats were received, and when that number was first seen."""
        self.lost = ""
        """Why it can no longer be reached, empty if it can."""

    @property
    def address(self) -> list[Any]:
        """Its host, port and key prefix; the connection itself cannot leave its process."""
        return [self._host, self._port, self._run]

    def _ask(self, question: Callable[[PrefixStore], _T], otherwise: _T) -> _T:
        """What the store answers; ``otherwise`` where it is lost."""
        answers: list[_T] = []
        problems = ["no answer"]

        def ask() -> None:
            try:
                if self._connected is None:
                    meeting = TCPStore(self._host, self._port, timeout=_ANSWER, wait_for_workers=False)
                    self._connected = PrefixStore(self._run, meeting)
                answers.append(question(self._connected))
            except RuntimeError as error:
                problems.append(str(error).splitlines()[0] if str(error) else type(error).__name__)

        if not self.lost:
            # If its machine hangs, the call would block for as long as that lasts.
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(_ANSWER.total_seconds())
            if not answers:
                self.lost = f"torchrun's store at {self._host}:{self._port} cannot be reached ({problems[-1]})"
        return answers[0] if answers else otherwise

    def enter(self, rank: int) -> None:
        """Connect, and note that a rank has begun. Raises LaunchError."""
        self.beat(rank)
        if self.lost:
            raise LaunchError(self.lost)

    def leave(self) -> None:
        """Do nothing: the store ends with its launcher."""

    def put(self, name: str, content: bytes) -> None:
        """Leave ``content`` piece by piece; the number of pieces is written last."""
        pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]
        for number, piece in enumerate(pieces):
            self._set(f"{name}.{number}", piece)
        self._set(name, str(len(pieces)).encode())

    def _set(self, key: str, value: bytes) -> None:
        # Bytes are taken as well as text.
        self._ask(lambda store: store.set(key, value), None)  # type: ignore[arg-type]

    def has(self, name: str) -> bool:
        """Whether anything was left under a name."""
        return self._ask(lambda store: store.check([name]), False)

    def get(self, name: str) -> bytes | None:
        """What was left under a name, or None."""
        if not self.has(name):
            return None
        count = self._value(name)
        if not count.isdigit() or int(count) > _MOST_PIECES:
            return None  # nothing of ours
        pieces = [self._value(f"{name}.{number}") for number in range(int(count))]
        return None if self.lost else b"".join(pieces)

    def _value(self, key: str) -> bytes:
        return self._ask(lambda store: store.get(key), b"")

    def tell(self, rank: int, content: bytes) -> None:
        """Send all ranks a message about one of them, in the order in which the store receives them."""
        self.put(f"told-{self._count('told', 1)}", content)

    def told(self) -> list[bytes]:
        """The messages so far, in order."""
        found = (self.get(f"told-{number}") for number in range(1, self._count("told", 0) + 1))
        return [content for content in found if content is not None]

    def beat(self, rank: int) -> None:
        """Count a heartbeat of a rank."""
        self._count(f"beat-{rank}", 1)

    def is_running(self, rank: int, waited: float) -> bool:
        """Whether a rank has sent a heartbeat recently, or has yet to begin."""
        beats, now = self._count(f"beat-{rank}", 0), time.monotonic()
        if self.lost:
            return False
        if not beats:
            return waited < START
        before, since = self._heard.get(rank, (0, now))
        if beats != before:
            self._heard[rank] = beats, now
            return True
        return now - since < _SILENCE

    def _count(self, name: str, more: int) -> int:
        """A counter of the store's, after ``more`` was added to it; 0 where the store is lost."""
        return self._ask(lambda store: store.add(f"count-{name}", more), 0)

"""One rank of several that a launcher (``torchrun``) started, each of them under ``verify``.

Every rank watches its own part of the run and leaves a report on it in a shared mailbox; rank 0 makes the one report
from these. Nothing is exchanged while the script runs: its own collectives are not disturbed, and no rank waits for
another that has died. Imports torch only where the ranks run on several machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcheck_accum.verify.ranks.folder import Folder
from gradcheck_accum.verify.ranks.mailbox import LaunchError, Mailbox

_POLL = 0.05

ORPHANED = "rank 0 exited without a report: "
"""The beginning of another rank's error if rank 0 will not report it."""

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by ``torchrun``: whether its ranks meet at the launcher's own store, which is open before the script starts."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank's script failed.

    ``cut_off`` means that it lost its connection to another rank, so that one may have failed first.
    """

    message: str
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's ``rank`` among ``ranks``, and their mailbox."""

    rank: int
    ranks: int
    mailbox: Mailbox

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """The launch that this process belongs to, from a launcher's variables; None where it runs alone.

        Raises LaunchError where the ranks run on several machines and have no store to meet at.
        """
        try:
            rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            here = int(environment.get("LOCAL_WORLD_SIZE", ranks))
        except (KeyError, ValueError):
            return None
        if ranks < 2:
            return None
        names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"
        run = "\n".join(environment.get(name, "") for name in names)
        if here == ranks:
            # All ranks of this machine are children of one launcher.
            name = hashlib.sha256(f"{os.getppid()}\n{run}".encode()).hexdigest()[:16]
            return cls(rank, ranks, Folder(Path(tempfile.gettempdir()) / f"gradcheck-accum-{os.getuid()}-{name}"))
        if environment.get(_AGENT) != "True":
            raise LaunchError(
                f"{ranks} ranks on several machines, not started by torchrun: they have no common store before the "
                "script creates one"
            )
        from gradcheck_accum.verify.ranks.store import Store

        address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not address or not port.isdigit():
            raise LaunchError("MASTER_ADDR and MASTER_PORT are not set")
        return cls(rank, ranks, Store(address, int(port), f"gradcheck-accum\n{run}"))

    def enter(self) -> None:
        """Note that this rank has begun. Raises LaunchError."""
        self.mailbox.enter(self.rank)

    def leave(self) -> None:
        """Remove the mailbox, when the report has been made."""
        self.mailbox.leave()

    def address(self) -> list[Any]:
        """The plain values from which another process makes the same launch (`at`)."""
        return [self.rank, self.ranks, *self.mailbox.address]

    @classmethod
    def at(cls, address: list[Any]) -> Launch:
        """The launch with this `address`."""
        rank, ranks, *of_mailbox = address
        if len(of_mailbox) == 1:
            return cls(rank, ranks, Folder(Path(of_mailbox[0])))
        from gradcheck_accum.verify.ranks.store import Store

        return cls(rank, ranks, Store(*of_mailbox))

    def deliver(self, account: bytes) -> None:
        """Leave this rank's report for rank 0."""
        self.mailbox.put(f"account-{self.rank}", account)

    def account(self, rank: int) -> bytes | None:
        """Another rank's report, None if it is not there yet."""
        return self.mailbox.get(f"account-{rank}")

    def fail(self, message: str, *, cut_off: bool = False) -> None:
        """Report to the other ranks that this one's script failed (`RankFailure`); only the first report counts."""
        self._tell(self.rank, message, cut_off)

    def _tell(self, rank: int, message: str, cut_off: bool) -> None:
        if rank not in self.failures():
            self.mailbox.tell(rank, json.dumps([rank, message, cut_off]).encode())

    def failures(self) -> dict[int, RankFailure]:
        """The reported failures by rank, in order."""
        found = {0: RankFailure(self.mailbox.lost)} if self.mailbox.lost else {}
        for told in self.mailbox.told():
            said = _failure(told)
            if said is not None:
                found.setdefault(*said)
        return found

    def beat(self) -> None:
        """Signal that this rank is still running; rank 0 reports those that have died silently to the others."""
        self.mailbox.beat(self.rank)
        if self.rank:
            return
        for rank in range(1, self.ranks):
            # A rank delivers or reports before it ends, so check for that last.
            if not self.mailbox.is_running(rank, 0.0) and not self.mailbox.has(f"account-{rank}"):
                self._tell(rank, "exited without reporting (process or host lost)", False)

    def orphaned(self) -> str:
        """Why rank 0 can no longer receive this rank's report; empty if it can."""
        return ORPHANED + self.mailbox.lost if self.rank and self.mailbox.lost else ""

    def wait_for(self, rank: int, patience: float | None) -> bytes | None:
        """Another rank's report, or None where it has failed or died without one.

        ``patience`` is how many seconds to wait for a rank that is still running; None waits as long as it runs.
        """
        begun, seen_failed = time.monotonic(), 0.0
        while True:
            account = self.account(rank)
            if account is not None:
                return account
            now = time.monotonic()
            if rank in self.failures():
                # Its report follows immediately, if it can make one.
                seen_failed = seen_failed or now
                if now - seen_failed > 2.0:
                    return None
            elif not self.mailbox.is_running(rank, now - begun) or (patience is not None and now - begun > patience):
                return self.account(rank)
            time.sleep(_POLL)


def _failure(told: bytes) -> tuple[int, RankFailure] | None:
    """The rank and its failure in a message, None where it is not such a message."""
    try:
        rank, message, cut_off = json.loads(told)
    except (ValueError, TypeError, RecursionError):
        return None
    if type(rank) is not int or not isinstance(message, str):
        return None
    return rank, RankFailure(" ".join(message.split()), bool(cut_off))


def is_other_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that leaves the report to rank 0."""
    try:
        return int(environment["RANK"]) > 0 and int(environment["WORLD_SIZE"]) > 1
    except (KeyError, ValueError):
        return False


def is_orphan(error: str) -> bool:
    """Whether a rank has to print its error itself, because rank 0 cannot."""
    return error.startswith(ORPHANED)


def origin(failures: Mapping[int, RankFailure]) -> int | None:
    """The rank that failed first; one that only lost its connection comes after others."""
    return min(failures, key=lambda rank: failures[rank].cut_off, default=None)

"""One rank of several that a launcher (``torchrun``) started, each of them under ``verify``.

Every rank watches its own part of the run and leaves an account of it in a mailbox that they share; rank 0 puts the
accounts together and gives the one report. Nothing is exchanged while the script runs: its own collectives are not
disturbed, and no rank waits for another that has died. Imports torch only where the ranks run on several machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

START = 60.0
"""Seconds after which a rank that has not begun is taken for one that never will."""

_POLL = 0.05

ORPHANED = "rank 0 is gone and reports nothing: "
"""How the error of another rank begins where nobody else will tell of it."""

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""What ``torchrun`` says of the store that its ranks meet at: whether it is its own, and open before the script is."""


class LaunchError(Exception):
    """The ranks can not be watched together; the message says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank's script failed.

    ``cut_off`` says that it lost its connection to another, and so may only follow that one's failure.
    """

    message: str
    cut_off: bool = False


class Mailbox(Protocol):
    """Where the ranks of one launch leave what they have to tell. Nothing waits for anybody."""

    @property
    def lost(self) -> str:
        """Why it can not be reached any more, or nothing."""

    def enter(self, rank: int) -> None:
        """Be ready for what a rank leaves, and say that it has begun. Raises LaunchError."""

    def leave(self) -> None:
        """Remove it: the report has been given."""

    def put(self, name: str, content: bytes) -> None:
        """Leave ``content`` whole or not at all; where rank 0 has left already, nobody will read it."""

    def get(self, name: str) -> bytes | None:
        """What was left under a name, or None."""

    def has(self, name: str) -> bool:
        """Whether anything was left under a name."""

    def tell(self, rank: int, content: bytes) -> None:
        """Tell all ranks something of one of them."""

    def told(self) -> list[bytes]:
        """What has been told, in order."""

    def beat(self, rank: int) -> None:
        """Say that a rank is still running."""

    def is_running(self, rank: int, waited: float) -> bool:
        """Whether a rank that was waited for so many seconds is still running, or has yet to begin."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's ``rank`` among ``ranks``, and the mailbox where their accounts are left."""

    rank: int
    ranks: int
    mailbox: Mailbox

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """The place that a launcher gave this process; None where it runs alone.

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
                f"{ranks} ranks on several machines, not started by torchrun: they have no store to meet at before the "
                "script itself makes one"
            )
        from gradcheck_accum.verify.machines import Store

        address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not address or not port.isdigit():
            raise LaunchError("MASTER_ADDR and MASTER_PORT do not say where the ranks meet")
        return cls(rank, ranks, Store(address, int(port), f"gradcheck-accum\n{run}"))

    def enter(self) -> None:
        """Say that this rank has begun. Raises LaunchError."""
        self.mailbox.enter(self.rank)

    def leave(self) -> None:
        """Leave nothing behind, when the report has been given."""
        self.mailbox.leave()

    def deliver(self, account: object) -> None:
        """Leave this rank's account for rank 0."""
        self.mailbox.put(f"account-{self.rank}", pickle.dumps(account))

    def account(self, rank: int) -> Any:
        """Another rank's account once it is there, or None."""
        content = self.mailbox.get(f"account-{rank}")
        return None if content is None else pickle.loads(content)

    def fail(self, message: str, *, cut_off: bool = False) -> None:
        """Tell the other ranks that this one's script has failed, as in `Failure`; what was told first stays."""
        self._tell(self.rank, message, cut_off)

    def _tell(self, rank: int, message: str, cut_off: bool) -> None:
        if rank not in self.failures():
            self.mailbox.tell(rank, json.dumps([rank, message, cut_off]).encode())

    def failures(self) -> dict[int, Failure]:
        """The failures that have been told, by rank, in the order in which they were."""
        found = {0: Failure(self.mailbox.lost)} if self.mailbox.lost else {}
        for told in self.mailbox.told():
            rank, message, cut_off = json.loads(told)
            found.setdefault(rank, Failure(message, cut_off))
        return found

    def beat(self) -> None:
        """Say that this rank is still running; rank 0 tells the others of those that have died without a word."""
        self.mailbox.beat(self.rank)
        if self.rank:
            return
        for rank in range(1, self.ranks):
            # Who ends delivers or tells first: what is asked last is whether it has.
            if not self.mailbox.is_running(rank, 0.0) and not self.mailbox.has(f"account-{rank}"):
                self._tell(rank, "died without a word: its process is gone, or its machine", False)

    def orphaned(self) -> str:
        """Why rank 0 will never hear of this one, where it will not; else nothing."""
        return ORPHANED + self.mailbox.lost if self.rank and self.mailbox.lost else ""

    def wait_for(self, rank: int, patience: float | None) -> Any:
        """Another rank's account, or None where it has failed or died without one.

        ``patience`` is how many seconds to wait for a rank that is still running; None waits as long as it runs.
        """
        begun, seen_failed = time.monotonic(), 0.0
        while True:
            account = self.account(rank)
            if account is not None:
                return account
            now = time.monotonic()
            if rank in self.failures():
                # Its account follows at once, if it can give one.
                seen_failed = seen_failed or now
                if now - seen_failed > 2.0:
                    return None
            elif not self.mailbox.is_running(rank, now - begun) or (patience is not None and now - begun > patience):
                return self.account(rank)
            time.sleep(_POLL)


@dataclass(frozen=True, slots=True)
class Folder:
    """The mailbox of ranks on one machine: a folder for all of them."""

    path: Path

    @property
    def lost(self) -> str:
        """A folder that rank 0 has removed is not missed by anybody."""
        return ""

    def enter(self, rank: int) -> None:
        """Make the folder, or find it, and say that a rank has begun. Raises LaunchError."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.lstat()
        except OSError as error:
            raise LaunchError(f"{self.path}: {error.strerror}") from None
        # What is read from it is trusted: nobody else may have put it there.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LaunchError(f"{self.path} is not a folder of this user's own")
        for left in (self.path / f"account-{rank}", *self.path.glob(f"told-*-{rank}")):
            # A run that was killed may have left them.
            left.unlink(missing_ok=True)
        self.put(f"begun-{rank}", str(os.getpid()).encode())

    def leave(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def put(self, name: str, content: bytes) -> None:
        """Write a file at once, so that nobody reads half of it."""
        part = self.path / f"{os.getpid()}.part"
        try:
            part.write_bytes(content)
            part.replace(self.path / name)
        except FileNotFoundError:
            pass

    def get(self, name: str) -> bytes | None:
        """What a file holds, or None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Whether there is a file of a name."""
        return (self.path / name).exists()

    def tell(self, rank: int, content: bytes) -> None:
        """Write a file that is named by the time, which is the same for all ranks."""
        self.put(f"told-{time.time_ns():020d}-{rank}", content)

    def told(self) -> list[bytes]:
        """What has been told, in order."""
        found = (self.get(path.name) for path in sorted(self.path.glob("told-*")))
        return [content for content in found if content is not None]

    def beat(self, rank: int) -> None:
        """Nothing: whether a process is still there can be seen."""

    def is_running(self, rank: int, waited: float) -> bool:
        """Whether the process of a rank is still there, or has yet to begin."""
        pid = self.get(f"begun-{rank}")
        if pid is None:
            return waited < START
        try:
            os.kill(int(pid), 0)
        except OSError:
            return False
        return True


def is_other_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that leaves the report to rank 0."""
    try:
        return int(environment["RANK"]) > 0 and int(environment["WORLD_SIZE"]) > 1
    except (KeyError, ValueError):
        return False


def is_orphan(error: str) -> bool:
    """Whether another rank has to tell of its error itself, because rank 0 can not."""
    return error.startswith(ORPHANED)


def origin(failures: Mapping[int, Failure]) -> int | None:
    """The rank that failed first: one that only lost its connection follows another's failure."""
    return min(failures, key=lambda rank: failures[rank].cut_off, default=None)

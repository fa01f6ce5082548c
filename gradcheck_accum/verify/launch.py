"""One rank of several that a launcher (``torchrun``) started on this machine, each of them under ``verify``.

Every rank watches its own part of the run and leaves an account of it in a folder that they share; rank 0 puts the
accounts together and gives the one report. Nothing is exchanged while the script runs: its own collectives are not
disturbed, and no rank waits for another that has died. Never imports torch.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_START = 60.0
"""Seconds after which a rank that has not begun is taken for one that never will."""

_POLL = 0.05


class LaunchError(Exception):
    """The ranks can not be watched together; the message says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank's script failed, and when (seconds since the epoch).

    ``cut_off`` says that it lost its connection to another, and so may only follow that one's failure.
    """

    message: str
    at: float
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's ``rank`` among ``ranks``, and the folder where their accounts are left."""

    rank: int
    ranks: int
    folder: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """The place that a launcher gave this process; None where it runs alone.

        Raises LaunchError where the ranks run on several machines.
        """
        try:
            rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            here = int(environment.get("LOCAL_WORLD_SIZE", ranks))
        except (KeyError, ValueError):
            return None
        if ranks < 2:
            return None
        if here != ranks:
            raise LaunchError(f"{ranks} ranks on several machines: ranks are watched together on one machine only")
        # All ranks of this machine are children of one launcher.
        names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"
        run = "\n".join([str(os.getppid()), *(environment.get(name, "") for name in names)])
        name = f"gradcheck-accum-{os.getuid()}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
        return cls(rank, ranks, Path(tempfile.gettempdir()) / name)

    def enter(self) -> None:
        """Make the folder, or find it, and say that this rank has begun. Raises LaunchError."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            found = self.folder.lstat()
        except OSError as error:
            raise LaunchError(f"{self.folder}: {error.strerror}") from None
        # What is read from it is trusted: nobody else may have put it there.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LaunchError(f"{self.folder} is not a folder of this user's own")
        for kind in ("account", "failed"):
            # A run that was killed may have left them.
            self._path(kind).unlink(missing_ok=True)
        self._write(self._path("begun"), str(os.getpid()).encode())

    def leave(self) -> None:
        """Remove the folder, when the report has been given."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def deliver(self, account: object) -> None:
        """Leave this rank's account for rank 0."""
        self._write(self._path("account"), pickle.dumps(account))

    def fail(self, failure: Failure) -> None:
        """Tell the other ranks that this one's script has failed; what was told first stays."""
        if not self._path("failed").exists():
            self._write(self._path("failed"), json.dumps(asdict(failure)).encode())

    def failures(self) -> dict[int, Failure]:
        """The failures that have been told, by rank."""
        found = {}
        for rank in range(self.ranks):
            text = self._read(self._path("failed", rank))
            if text is not None:
                found[rank] = Failure(**json.loads(text))
        return found

    def account(self, rank: int) -> Any:
        """Another rank's account once it is there, or None."""
        content = self._read(self._path("account", rank))
        return None if content is None else pickle.loads(content)

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
            elif not self._is_running(rank, now - begun) or (patience is not None and now - begun > patience):
                return self.account(rank)
            time.sleep(_POLL)

    def _is_running(self, rank: int, waited: float) -> bool:
        pid = self._read(self._path("begun", rank))
        if pid is None:
            return waited < _START
        try:
            os.kill(int(pid), 0)
        except OSError:
            return False
        return True

    def _path(self, kind: str, rank: int | None = None) -> Path:
        return self.folder / f"rank-{self.rank if rank is None else rank}.{kind}"

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except OSError:
            return None

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        """Write a file at once, so that nobody reads half of it; where rank 0 has left already, nobody will."""
        part = path.with_suffix(path.suffix + f".{os.getpid()}")
        try:
            part.write_bytes(content)
            part.replace(path)
        except FileNotFoundError:
            pass


def is_other_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that leaves the report to rank 0."""
    try:
        return int(environment["RANK"]) > 0 and int(environment["WORLD_SIZE"]) > 1
    except (KeyError, ValueError):
        return False


def origin(failures: Mapping[int, Failure]) -> int | None:
    """The rank that failed first: one that only lost its connection follows another's failure."""
    return min(failures, key=lambda rank: (failures[rank].cut_off, failures[rank].at), default=None)

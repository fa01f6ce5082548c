"""The mailbox of ranks on one machine: a folder of this user's own."""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcheck_accum.verify.ranks.mailbox import START, LaunchError


@dataclass(frozen=True, slots=True)
class Folder:
    """The mailbox of ranks on one machine: a folder for all of them."""

    path: Path

    @property
    def address(self) -> list[Any]:
        """Its path."""
        return [str(self.path)]

    @property
    def lost(self) -> str:
        """Always empty: once rank 0 has removed the folder, no rank needs it."""
        return ""

    def enter(self, rank: int) -> None:
        """Create the folder, or find it, and note that a rank has begun. Raises LaunchError."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.lstat()
        except OSError as error:
            raise LaunchError(f"{self.path}: {error.strerror}") from None
        # Its content is trusted, so no other user may be able to write to it.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LaunchError(f"{self.path} is not a directory owned by this user")
        for left in (self.path / f"account-{rank}", *self.path.glob(f"told-*-{rank}")):
            # A run that was killed may have left them.
            left.unlink(missing_ok=True)
        self.put(f"begun-{rank}", str(os.getpid()).encode())

    def leave(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def put(self, name: str, content: bytes) -> None:
        """Write a file atomically, so that it is never read half written."""
        part = self.path / f"{os.getpid()}.part"
        try:
            part.write_bytes(content)
            part.replace(self.path / name)
        except FileNotFoundError:
            pass

    def get(self, name: str) -> bytes | None:
        """The content of a file, None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Whether there is a file of a name."""
        return (self.path / name).exists()

    def tell(self, rank: int, content: bytes) -> None:
        """Write a file named by the time, so that the messages of all ranks are in order."""
        self.put(f"told-{time.time_ns():020d}-{rank}", content)

    def told(self) -> list[bytes]:
        """The messages of all ranks, in order."""
        found = (self.get(path.name) for path in sorted(self.path.glob("told-*")))
        return [content for content in found if content is not None]

    def beat(self, rank: int) -> None:
        """Do nothing: whether a process is still running can be checked."""

    def is_running(self, rank: int, waited: float) -> bool:
        """Whether the process of a rank is still running, or has yet to begin."""
        pid = self.get(f"begun-{rank}")
        if pid is None:
            return waited < START
        try:
            os.kill(int(pid), 0)
        except (OSError, ValueError, OverflowError):
            return False
        return True

"""What the ranks of one launch share: a mailbox, and what none of its kinds can do without."""

from __future__ import annotations

from typing import Any, Protocol

START = 60.0
"""Seconds after which a rank that has not begun is taken for one that never will."""


class LaunchError(Exception):
    """The ranks can not be watched together; the message says why."""


class Mailbox(Protocol):
    """Where the ranks of one launch leave what they have to tell. Nothing waits for anybody."""

    @property
    def address(self) -> list[Any]:
        """What another process makes the same mailbox of: plain values."""

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

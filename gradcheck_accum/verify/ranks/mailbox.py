"""The mailbox that the ranks of one launch share: its interface, and what all implementations need."""

from __future__ import annotations

from typing import Any, Protocol

START = 60.0
"""Seconds after which a rank that has not begun is considered lost."""


class LaunchError(Exception):
    """The ranks cannot be watched together; the message says why."""


class Mailbox(Protocol):
    """Where the ranks of one launch leave their reports and messages. No operation waits for another rank."""

    @property
    def address(self) -> list[Any]:
        """The plain values from which another process makes the same mailbox."""

    @property
    def lost(self) -> str:
        """Why it can no longer be reached, empty if it can."""

    def enter(self, rank: int) -> None:
        """Prepare the mailbox for a rank, and note that it has begun. Raises LaunchError."""

    def leave(self) -> None:
        """Remove it after the report has been made."""

    def put(self, name: str, content: bytes) -> None:
        """Leave ``content`` under a name, atomically; ignored if rank 0 has removed the mailbox already."""

    def get(self, name: str) -> bytes | None:
        """What was left under a name, or None."""

    def has(self, name: str) -> bool:
        """Whether anything was left under a name."""

    def tell(self, rank: int, content: bytes) -> None:
        """Send all ranks a message about one of them."""

    def told(self) -> list[bytes]:
        """The messages so far, in order."""

    def beat(self, rank: int) -> None:
        """Signal that a rank is still running."""

    def is_running(self, rank: int, waited: float) -> bool:
        """Whether a rank that was waited for so many seconds is still running, or has yet to begin."""

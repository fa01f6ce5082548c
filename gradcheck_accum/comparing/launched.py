"""A comparison whose script runs on several ranks: a launcher (``torchrun``) started each of them under ``compare``.

Every rank starts its own process of each configuration, and rank 0 leads them all. The processes of a configuration
meet at a port of their own: where the launcher has its ranks meet, all configurations would meet at once. Never imports
torch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from gradcheck_accum.verify.ranks.launch import Launch
from gradcheck_accum.verify.ranks.mailbox import LaunchError

_POLL = 0.05
_MEETING = "meeting"
_LAST_WORD = 20.0
"""Seconds that rank 0 waits for the others to have ended their processes, when it has ended its own."""


class NotLaunched(Exception):
    """The ranks cannot be compared; the message is one line that says why."""


class NoMeeting(Exception):
    """Rank 0 leads no comparison: it has failed, and says why."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the processes of each configuration meet."""

    ports: Sequence[int]

    @classmethod
    def free(cls, count: int) -> Ports:
        """As many unused ports as there are configurations."""
        with ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in range(count)]
            for one in held:
                one.bind(("", 0))
            return cls([one.getsockname()[1] for one in held])

    def variables(self, number: int, own: Mapping[str, str]) -> dict[str, str]:
        """What a process of configuration ``number`` has in its environment, which sets ``own``."""
        # The store that torchrun has opened is for one meeting only.
        met = {"MASTER_PORT": str(self.ports[number]), "TORCHELASTIC_USE_AGENT_STORE": "False", **own}
        if "WORLD_SIZE" in own:
            met.setdefault("LOCAL_WORLD_SIZE", own["WORLD_SIZE"])
        return met


def ranks_of(own: Mapping[str, str], launch: Launch | None) -> int:
    """How many of the ranks that were launched a configuration has, which sets ``own``. Raises NotLaunched."""
    if launch is None:
        return 1
    launched = launch.ranks
    wanted = own.get("WORLD_SIZE", str(launched))
    if not wanted.isdecimal() or not 1 <= int(wanted) <= launched:
        raise NotLaunched(
            f"a configuration sets WORLD_SIZE={wanted}, and {launched} ranks were launched: set 1 to {launched}"
        )
    return int(wanted)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a comparison is led from, and where the processes of each of its configurations meet."""

    address: str
    ports: Ports


@contextmanager
def launch_of(environment: Mapping[str, str] = os.environ) -> Iterator[Launch | None]:
    """The launch of this process, None where it is no rank; removed when all ranks have ended. Raises NotLaunched."""
    try:
        launch = Launch.from_environment(environment)
        if launch is not None and int(environment.get("LOCAL_WORLD_SIZE", launch.ranks)) != launch.ranks:
            raise NotLaunched("compare supports ranks on one machine, and these are on several")
        if launch is not None:
            launch.enter()
    except LaunchError as error:
        raise NotLaunched(str(error)) from None
    try:
        yield launch
    finally:
        if launch is not None:
            _leave(launch)


def _leave(launch: Launch) -> None:
    """Rank 0 ends last: a launcher ends the others as soon as it sees that one has not ended well."""
    launch.deliver(b"ended")
    if launch.rank == 0 and launch.mailbox.has(_MEETING):
        latest = time.monotonic() + _LAST_WORD
        for rank in range(1, launch.ranks):
            launch.wait_for(rank, max(latest - time.monotonic(), 0.0))
    if launch.rank == 0 or not launch.mailbox.has("begun-0"):
        launch.leave()


def announce(launch: Launch, meeting: Meeting) -> None:
    """Let the other ranks know where to meet."""
    launch.mailbox.put(_MEETING, json.dumps([meeting.address, list(meeting.ports.ports)]).encode())


def announced(launch: Launch) -> Meeting:
    """Wait until rank 0 announces where to meet. Raises NoMeeting."""
    begun = time.monotonic()
    while (told := launch.mailbox.get(_MEETING)) is None:
        has_ended = launch.mailbox.has("account-0") or not launch.mailbox.has(f"begun-{launch.rank}")
        if has_ended or not launch.mailbox.is_running(0, time.monotonic() - begun):
            raise NoMeeting
        time.sleep(_POLL)
    address, ports = json.loads(told)
    return Meeting(address, Ports(ports))

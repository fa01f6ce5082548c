"""The messages between the runs of one comparison. Imports no torch, which the leading process does not need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gradcheck_accum.comparing.rows import Rows
from gradcheck_accum.portable import Leaf, NotPortable, Portable
from gradcheck_accum.results.verdict import ByParameter, ParameterError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True, slots=True)
class NumberRead:
    """What the script has read as a number, where, and of which window (by its number) it is.

    ``is_of_gradient`` says that it was computed from gradients (a norm), and is no loss.
    """

    path: str
    line: int
    value: float
    window: int
    is_of_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of a step that several make together."""

    micro_batches: int
    rows: Rows | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A run has reached a step.

    ``rows`` are those since this optimizer's last step, None where they are not known; ``weights`` is a fingerprint of
    its weights before its first step, ``shapes`` one of their shapes. ``rates`` are the learning rates of its groups.
    ``random`` means that losses were computed with random numbers, ``couples`` names the modules that use several
    samples at once, ``loss_tolerance`` is the precision of its losses. ``window`` is its number in the run's own
    report, ``backward`` the path and the line of the last backward before it. ``epochs`` are the passes over the data
    that its micro-batches belong to, in order, as far as they are distinguished. ``is_idle`` means that there was no
    backward before it and none of its parameters has a gradient: it changes nothing. ``settings`` are those of its
    optimizer except the learning rate, group by group. Where several ranks make the step together, ``parts`` are
    theirs, and ``reads`` are the numbers that the first of them has read.
    """

    index: int
    optimizer: str
    path: str
    line: int
    micro_batches: int
    rows: Rows | None
    rates: tuple[float, ...]
    reads: tuple[NumberRead, ...]
    weights: bytes = b""
    shapes: tuple[tuple[int, ...], ...] = ()
    random: bool = False
    couples: tuple[str, ...] = ()
    loss_tolerance: float = 0.0
    window: int = 0
    backward: tuple[str, int] = ("", 0)
    epochs: tuple[int, ...] = ()
    is_idle: bool = False
    settings: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks make the step."""
        return max(len(self.parts), 1)

    @property
    def micro_batches_of_reader(self) -> int:
        """How many micro-batches the rank has whose losses are known."""
        return self.parts[0].micro_batches if self.parts else self.micro_batches


@dataclass(frozen=True, slots=True)
class GradientDistance:
    """How far two gradients are from each other: the relative error, what is allowed of it, the ratio of norms.

    ``by_parameter`` takes the error apart where it is more than is allowed, in the first such steps and in those that
    are far worse than any before.
    """

    error: float | None
    allowed: float
    ratio: float | None
    by_parameter: ByParameter | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """How far an update of the weights is from the reference's: the relative error, and the ratio of their lengths.

    ``ratio`` is None where they are no further apart than the gradients. ``is_same`` says whether both are one
    optimizer's updates for the two gradients, None where that could not be decided.
    """

    error: float | None
    ratio: float | None
    is_same: bool | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a run measured of its step, compared with the reference's.

    ``before_clip`` is None where one of them is not known; ``spread`` is how far two draws of random numbers move the
    reference's own gradient, where any are drawn. ``is_coupled`` means that the samples of its micro-batches were shown
    to influence each other, which is tested where the gradients differ. ``update`` is what the step did to the weights,
    None where those before it are not known.
    """

    used: GradientDistance
    before_clip: GradientDistance | None
    drift: float | None
    spread: float | None
    is_coupled: bool = False
    update: Moved | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """A run has come to its end, with rows that no step has used, by optimizer, and the numbers read since the last."""

    left: dict[str, Rows | None]
    reads: tuple[NumberRead, ...]


class Order(Enum):
    """What a run that has come to a step does there, before it goes on to its next.

    ``PUBLISH``: writes what it stepped on, and what it has become, to a file. ``COMPARE``: compares its own with a
    file. ``SETTLE``: becomes what is in it, and ``BOTH``: first compares. These are answered when they are done.
    ``GO``: nothing. ``ALONE``: nothing, and it goes on to its end without coming back. ``STOP``: ends.
    """

    PUBLISH = "publish"
    COMPARE = "compare"
    SETTLE = "settle"
    BOTH = "both"
    GO = "go"
    ALONE = "alone"
    STOP = "stop"

    @property
    def is_answered(self) -> bool:
        """Whether a run answers it."""
        return self in (Order.PUBLISH, Order.COMPARE, Order.SETTLE, Order.BOTH)


def _parts_of_rows(rows: Rows) -> object:
    # Fingerprints are many, small, and of one size: together they take the least.
    columns = [[column, b"".join(seen), list(seen.values())] for column, seen in rows.columns.items()]
    return [columns, rows.silent, rows.count, rows.counting]


def _rows(parts: Any) -> Rows:
    columns, silent, count, counting = parts
    found = {}
    for column, seen, counts in columns:
        size = len(seen) // max(len(counts), 1)
        each = (seen[start : start + size] for start in range(0, len(seen), size or 1))
        found[column] = Counter(dict(zip(each, counts, strict=True)))
    return Rows(found, silent, count, counting)


_MESSAGES = Portable(
    [GradientDistance, Arrival, ByParameter, Moved, NumberRead, Numbers, Order, Over, ParameterError],
    [Leaf(Rows, _parts_of_rows, _rows)],
)


def send(connection: Connection, message: object) -> None:
    """Send a message. Raises OSError where the other end is gone."""
    connection.send_bytes(_MESSAGES.dumps(message))


def receive(connection: Connection) -> Any:
    """Wait for a message. Raises EOFError where the other end is gone, or sends anything else."""
    try:
        return _MESSAGES.loads(connection.recv_bytes())
    except NotPortable as problem:
        raise EOFError(str(problem)) from None

"""What the runs of one comparison tell each other. Imports no torch: the process that leads them has none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gradcheck_accum.side_by_side.rows import Rows
from gradcheck_accum.verdict import ByParameter

if TYPE_CHECKING:
    from gradcheck_accum.verify.companion import Companion


@dataclass(frozen=True, slots=True)
class LossRead:
    """A loss that the script has read as a number, where, and of which window (by its number) it is."""

    path: str
    line: int
    value: float
    window: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A run has come to a step.

    ``rows`` are those since this optimizer's last step, None where they are not known; ``weights`` is a fingerprint of
    its weights before its first step, and of what shape they are (``shapes``). ``rates`` are the learning rates of its
    groups. ``random`` says that losses were computed with random numbers, ``couples`` names what looks at several
    samples at once, ``loss_tolerance`` is how exact its losses are. ``window`` is its number in the run's own report,
    ``backward`` the path and the line of the last backward before it.
    """

    index: int
    optimizer: str
    path: str
    line: int
    micro_batches: int
    rows: Rows | None
    rates: tuple[float, ...]
    reads: tuple[LossRead, ...]
    weights: bytes = b""
    shapes: tuple[tuple[int, ...], ...] = ()
    random: bool = False
    couples: tuple[str, ...] = ()
    loss_tolerance: float = 0.0
    window: int = 0
    backward: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Apart:
    """How far two gradients are from each other: the relative error, what is allowed of it, the ratio of norms.

    ``by_parameter`` takes the error apart where it is more than is allowed, in the first such steps and in those that
    are far worse than any before.
    """

    error: float | None
    allowed: float
    ratio: float | None
    by_parameter: ByParameter | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a run measured of its step beside the reference's.

    ``before_clip`` is None where one of them is not known; ``spread`` is how far two draws of random numbers move the
    reference's own gradient, where any are drawn.
    """

    used: Apart
    before_clip: Apart | None
    drift: float | None
    spread: float | None


@dataclass(frozen=True, slots=True)
class Over:
    """A run has come to its end, with rows that no step has used, by optimizer, and the losses read since the last."""

    left: dict[str, Rows | None]
    reads: tuple[LossRead, ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of run ``number`` in a comparison that is led from ``address``; called in its process, it takes it.

    ``tolerance`` is what stands in the place of the derived one (rtol and atol), where it is given.
    """

    address: str
    number: int
    no_dropout: bool
    tolerance: tuple[float, float] | None

    def __call__(self) -> Companion:
        """What goes along with the run."""
        from gradcheck_accum.side_by_side.side import Side

        return Side(self)


class Order(Enum):
    """What a run that has come to a step does next.

    ``PUBLISH``: writes what it stepped on, and what it has become, to a file. ``COMPARE``: compares its own with a
    file. ``SETTLE``: becomes what is in it, and ``BOTH``: first compares. ``GO``: goes on to its next step, and
    ``ALONE``: on to its end without coming back. ``STOP``: ends.
    """

    PUBLISH = "publish"
    COMPARE = "compare"
    SETTLE = "settle"
    BOTH = "both"
    GO = "go"
    ALONE = "alone"
    STOP = "stop"

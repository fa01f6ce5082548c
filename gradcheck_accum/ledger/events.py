"""What a training loop does to its gradients, in order.

Both engines speak these words: ``lint`` emits them while it interprets a loop's skeleton, ``verify`` while it
watches the loop run. Nothing here knows which engine spoke.

A *store* is a set of parameters whose gradients are filled, cleared and read together (the parameters of one
model, or of one optimizer); its name only has to be the same wherever the same parameters are meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from gradcheck_accum.ledger.location import Location


class Reduction(Enum):
    """How a loss became one number: the mean of its units, their sum, or no units at all (a weight penalty)."""

    MEAN = "mean"
    SUM = "sum"
    NONE = "none"


class Operation(Enum):
    """How a factor was applied: a division is far likelier to be loss scaling than a multiplication is."""

    DIVIDE = "divide"
    MULTIPLY = "multiply"


class Purpose(Enum):
    """What a factor is there for, where the engine that saw it can tell (the source can, a number can not)."""

    ACCUMULATION = "accumulation"
    OBJECTIVE = "objective"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Factor:
    """One constant that a loss was multiplied by on its way to ``backward``.

    ``value`` is the multiplier (0.25 for a division by 4), or None where it is not known; ``where`` is the source that
    applied it, where the engine can tell. ``origins`` is what the source has for the number, as far as the engine can
    tell: the names that it was bound to, and the places of the constants that it was made from.
    """

    value: float | None
    operation: Operation = Operation.MULTIPLY
    purpose: Purpose = Purpose.UNKNOWN
    where: Location | None = field(default=None, compare=False)
    origins: frozenset[str] = field(default=frozenset(), compare=False)


def product_of(factors: Iterable[Factor]) -> float | None:
    """What a loss is multiplied by in all, None where one of its factors is not known."""
    values = [factor.value for factor in factors]
    return None if None in values else math.prod(value for value in values if value is not None)


@dataclass(frozen=True, slots=True)
class Term:
    """One reduced loss inside the tensor that ``backward`` was called on.

    ``units`` is how many elements the reduction covered (the sum of class weights where there are any), ``rows``
    the leading dimension of what was reduced; either is None where it is not known. ``name`` tells the terms of
    one backward apart and is the same in every micro-batch. ``summed`` is how many numbers each element of a sum is
    itself the sum of. ``leaves_out`` says that as many units count as the data say (some are left out by value, or
    by a mask), so that ``units`` may be more than there are.
    """

    name: str
    reduction: Reduction
    units: float | None
    factors: tuple[Factor, ...] = ()
    rows: float | None = None
    summed: int = 1
    leaves_out: bool = False

    @property
    def kind(self) -> str:
        """The name without the number that tells it from others of its kind in the same backward (``MseLoss #2``)."""
        return self.name.partition(" #")[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """Something that happened to gradients at ``where``; two events that are alike are two all the same."""

    where: Location


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backward(Event):
    """One micro-batch's gradients were added to ``stores``.

    ``micro_batch`` numbers the batches of data from 0 over the whole run (two backwards over one batch share it);
    ``epoch`` is None where passes over the data can not be told apart; ``given`` is how many batches the pass had given
    by then, None where nobody counted them; ``batch`` is the same for those backwards of one
    window that ran on the very same data, None where that is not known. ``grad_scaled`` says that an AMP gradient
    scaler's scale is inside. ``synced`` says whether the gradients were averaged over the ranks of distributed training
    by the end of it, None where that is not known or there is nothing to average. ``ranks`` is what such an average
    divides the ranks' sum by, None where it is the number of ranks that still have data. ``kept_apart`` says that what
    is not averaged yet waits beside ``.grad`` for a later backward that averages: no clearing, clip or step reaches it.
    ``rescale`` is what the average is multiplied by on its way into ``.grad``.
    ``cut_off`` are the stores whose networks made data that the loss was computed from, with no graph that leads back
    to them, as far as the engine can tell.
    """

    micro_batch: int
    stores: frozenset[str]
    terms: tuple[Term, ...]
    epoch: int | None = None
    given: int | None = None
    batch: int | None = None
    grad_scaled: bool = False
    synced: bool | None = None
    ranks: int | None = 1
    kept_apart: bool = False
    rescale: float = 1.0
    cut_off: frozenset[str] = frozenset()

    @property
    def waits(self) -> bool:
        """Whether it left its gradients beside ``.grad``."""
        return self.kept_apart and self.synced is False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataGradientRead(Event):
    """The gradient that the last backward gave to data, and not to weights, was read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZeroGrad(Event):
    """The gradients in ``stores`` were cleared (zeroed or set to None).

    ``counted`` is what the counters that decide on the steps of optimizers, by their names, had come to, where the loop
    that they count the turns of was going on; ``within`` are the optimizers in whose loop, the innermost around their
    steps, it happened. ``seen_later`` says that it was no call (``p.grad = None``): when it happened is not known.
    """

    stores: frozenset[str]
    counted: tuple[tuple[str, int], ...] = ()
    within: frozenset[str] = frozenset()
    seen_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScaleGrads(Event):
    """The gradients in ``stores`` were multiplied in place by ``factor`` (``p.grad.div_(K)`` and its like)."""

    stores: frozenset[str]
    factor: Factor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip(Event):
    """The gradients in ``stores`` were clipped by norm or by value."""

    stores: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unscale(Event):
    """An AMP gradient scaler divided its scale out of the gradients in ``stores``."""

    stores: frozenset[str]


@dataclass(frozen=True, slots=True)
class WindowBound:
    """The number that the source counts micro-batches up to before it steps: K of ``if (i + 1) % K == 0``.

    ``steps`` is what it is at the step, None where that is not known without running code of the user's; ``origins``
    are as those of a `Factor`: a divisor that shares one of them is that number. ``reached`` is what the counter has
    come to, where that goes on from window to window (``i + 1`` of the same test), and ``first`` what it is when its
    loop begins, None where that is not written.
    """

    steps: int | None
    origins: frozenset[str] = frozenset()
    reached: int | None = None
    first: int | None = None

    def counted_since(self, before: int | None) -> int | None:
        """How many micro-batches were counted since the counter had come to ``before``, None if it was not seen there.

        A counter that falls, or is seen first, has counted from the first turn of its loop. None where that is not
        written, or the counter does not go on.
        """
        if self.reached is None:
            return None
        if before is not None and self.reached > before:
            return self.reached - before
        return None if self.first is None else self.reached - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step(Event):
    """An optimizer read the gradients in ``stores``.

    ``accumulation_steps`` is K where the caller states it, or the engine can read it; ``counted_by`` is what a counter
    is tested against where the source decides on this step, or the bound of the loop that ends right before it, None
    where the engine sees neither. ``through_scaler`` says that an AMP gradient scaler made the step, ``skipped`` that
    the scaler found inf or nan and made none.
    """

    optimizer: str
    stores: frozenset[str]
    accumulation_steps: int | None = None
    counted_by: WindowBound | None = field(default=None, compare=False)
    through_scaler: bool = False
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalerUpdate(Event):
    """An AMP gradient scaler chose its scale anew."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerStep(Event):
    """A learning rate scheduler moved on.

    ``scheduler`` tells it from others; ``horizon`` is the number of moves that it was made for, where it says, and
    ``since`` the first micro-batch that ran after it was made. ``by_hand`` says that there is none, and the loop gave
    an optimizer another rate itself. ``stores`` are those that the optimizer whose rate it is steps on, none where that
    is not known.
    """

    scheduler: str = ""
    stores: frozenset[str] = frozenset()
    horizon: int | None = None
    since: int = 0
    by_hand: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AverageUpdate(Event):
    """A moving average of the weights took in the weights; ``average`` tells it from others.

    ``since`` is the first micro-batch that ran after it was made, ``stores`` are those of the weights, none where they
    are not known.
    """

    average: str = ""
    stores: frozenset[str] = frozenset()
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphsHeld(Event):
    """At a step the graphs of ``count`` micro-batches' losses were still held, though their backwards had run.

    ``where`` is the step or, if the engine has ``read`` in the source what holds them, that place.
    """

    count: int
    read: bool = False


@dataclass(frozen=True, slots=True)
class ShownLoss:
    """The loss of one micro-batch in a number that is shown: ``share`` times what ``backward`` got.

    But for the factors ``left_out``, by which the loss was multiplied for ``backward`` alone.
    """

    share: float
    left_out: tuple[Factor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossShown(Event):
    """A number made of the ``losses`` of several micro-batches was shown to a person at ``shown_at``.

    ``where`` is the place that read it, ``backward`` that of the backward of those losses. Their shares add up to 1 in
    the mean of them, to K in the sum over a window.
    """

    shown_at: Location
    backward: Location
    losses: tuple[ShownLoss, ...]


class Cause(Enum):
    """What makes something unknown, as far as anything depends on it."""

    NOT_FINITE = "a gradient has overflowed"
    ZERO = "a gradient is zero"
    UNSHARED = "not all ranks that are averaged over are watched"
    BY_HAND = "gradients or weights were modified manually"
    PARTLY_CLEARED = "only some of the gradients that a step uses were cleared"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is unknown: in words, for a person, and the cause that is decided by."""

    words: str
    cause: Cause = Cause.OTHER


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opaque(Event):
    """Something happened to ``stores`` that the engine could not follow; what comes after it is unknown."""

    stores: frozenset[str]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Count:
    """A place where the source names a number that the loop counts by: a modulus, a bound, a number of chunks."""

    where: Location
    value: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one loop, in order.

    ``complete`` is False where watching ended before the loop did, so that what is left over at the end means
    nothing. ``assumed_length`` says that the number of micro-batches of a pass is the engine's own choice, made to show
    full windows and a remainder, and not the loop's; ``assumed_turns`` that the number of passes is, or that of the
    turns of a loop without an end that the source shows; ``assumed_units`` is a number that the engine took for the
    units of every micro-batch whose size it does not know. ``precision`` is the unit roundoff of the dtype that the
    factors were read in: the relative error to allow when two of them are compared. ``from_start`` is False where
    watching began in the middle of the loop, so that a short first window may be an earlier pass's last. ``counts`` are
    the places that name a number which the loop counts by, each once. ``assumed_steps`` are the
    names of K that the source leaves open, each with the number that was taken for it; only those that the loop counts
    its windows by, or divides its losses by. ``skips_at`` is the place that skips a micro-batch where the engine has
    made it do so.
    """

    events: tuple[Event, ...]
    complete: bool = True
    assumed_length: bool = False
    assumed_turns: bool = False
    assumed_units: float | None = None
    precision: float = 0.0
    from_start: bool = True
    counts: tuple[Count, ...] = ()
    assumed_steps: tuple[tuple[str, int], ...] = ()
    skips_at: Location | None = None

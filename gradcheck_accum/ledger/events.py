"""The events of a training loop, in order: what it does to its gradients.

Both engines emit them: ``lint`` while it interprets a loop's skeleton, ``verify`` while it watches the loop run.
Nothing here depends on which engine did.

A *store* is a set of parameters whose gradients are filled, cleared and read together (the parameters of one model, or
of one optimizer); its name only has to be the same wherever the same parameters are meant.
"""

from __future__ import annotations

from collections import Counter
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
    """The role of a factor, where the engine can tell it (from the source, not from a number)."""

    ACCUMULATION = "accumulation"
    OBJECTIVE = "objective"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Factor:
    """One constant that a loss was multiplied by on its way to ``backward``.

    ``value`` is the multiplier (0.25 for a division by 4), or None where it is not known; ``where`` is the place that
    applied it, where that is known. ``origins`` is where the source has the number from, as far as that is known: the
    names that it was bound to, and the places of the constants that it was made from.
    """

    value: float | None
    operation: Operation = Operation.MULTIPLY
    purpose: Purpose = Purpose.UNKNOWN
    where: Location | None = field(default=None, compare=False)
    origins: frozenset[str] = field(default=frozenset(), compare=False)


def product_of(factors: Iterable[Factor]) -> float | None:
    """The product of a loss's factors, None where one of them is not known."""
    product: float = 1
    for factor in factors:
        if factor.value is None:
            return None
        product *= factor.value
    return product


def kind_in(name: str) -> str:
    """A term's name without the number that distinguishes terms of one kind in a backward (``MseLoss #2``)."""
    return name.partition(" #")[0]


@dataclass(frozen=True, slots=True)
class Term:
    """One reduced loss inside the tensor that ``backward`` was called on.

    ``units`` is how many elements the reduction covered (the sum of class weights where there are any), ``rows``
    the leading dimension of what was reduced; either is None where it is not known. ``name`` identifies the term within
    its backward and is the same in every micro-batch. ``summed`` is how many numbers each element of a sum is itself
    the sum of. ``leaves_out`` means that how many units count depends on the data (some are excluded by value, or by a
    mask), so that ``units`` may be too many. ``samples`` is of how many losses of its kind it is one, each
    computed by the same model from data of its own; 0 where it is not known to be one of several. ``in_turn`` is of how
    many it is one, each of a row that the loop has taken out of what a model gave, with a target of its own.
    ``may_be_batches`` means that these may be micro-batches, whose sum should be divided by their number.
    """

    name: str
    reduction: Reduction
    units: float | None
    factors: tuple[Factor, ...] = ()
    rows: float | None = None
    summed: int = 1
    leaves_out: bool = False
    samples: int = 0
    in_turn: int = 0
    may_be_batches: bool = False

    @property
    def kind(self) -> str:
        """The name without the term's number."""
        return kind_in(self.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """Something that happened to gradients at ``where``; events compare by identity."""

    where: Location


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backward(Event):
    """One micro-batch's gradients were added to ``stores``.

    ``micro_batch`` numbers the batches of data from 0 over the whole run (two backwards over one batch share it);
    ``epoch`` is None where passes over the data cannot be distinguished; ``given`` is how many batches the pass had
    loaded by then, None where they were not counted; ``batch`` is the same for those backwards of one window that ran
    on the very same data, None where that is not known. ``grad_scaled`` means that the gradients are multiplied by the
    scale of an AMP gradient scaler. ``synced`` says whether the gradients were averaged over the ranks of distributed
    training by the end of it, None where that is not known or there is nothing to average. ``ranks`` is what such an
    average divides the ranks' sum by, None where it is the number of ranks that still have data. ``kept_apart`` means
    that what is not averaged yet is kept outside ``.grad`` until a later backward averages it: no clearing, clip or
    step reaches it. ``rescale`` is what the average is multiplied by on its way into ``.grad``. ``cut_off`` are the
    stores of the networks whose outputs the loss was computed from without a graph that leads back to them, as far as
    the engine can tell. ``computation`` is the same for losses that the same calls computed, of the same parts of
    batches that one data loader gave; None where that is not known, or no other place has run a backward yet.
    ``past_wrapper`` means that they were not averaged because what is wrapped for that was called itself.
    ``of_one_batch`` means that its losses are known to be those of one batch: terms of one kind come from one forward,
    or from samples that a model was given one by one.
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
    computation: int | None = None
    past_wrapper: bool = False
    of_one_batch: bool = False

    @property
    def waits(self) -> bool:
        """Whether its gradients are not in ``.grad`` yet."""
        return self.kept_apart and self.synced is False

    def gathers(self, turns: int) -> bool:
        """Whether so many turns may each have added as many terms of every kind to its loss; penalties do not count."""
        kinds = Counter(term.kind for term in self.terms if term.reduction is not Reduction.NONE)
        return turns > 1 and bool(kinds) and all(number % turns == 0 for number in kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataGradientRead(Event):
    """The gradient of data, not of weights, was read after the last backward."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZeroGrad(Event):
    """The gradients in ``stores`` were cleared (zeroed or set to None).

    ``counted`` holds, by optimizer name, the values of the counters that decide on steps, where their loop was still
    running; ``within`` are the optimizers in whose loop, the innermost around their steps, it happened. ``seen_later``
    means that it was not a call (``p.grad = None``): when it happened is not known.
    """

    stores: frozenset[str]
    counted: tuple[tuple[str, int], ...] = ()
    within: frozenset[str] = frozenset()
    seen_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScaleGrads(Event):
    """The gradients in ``stores`` were multiplied in place by ``factor`` (``p.grad.div_(K)`` and its like).

    ``read_between`` means that the loop had read gradients between the micro-batches of the window, or had hooks on
    them, so that the number may be computed from these.
    """

    stores: frozenset[str]
    factor: Factor
    read_between: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rework(Event):
    """The loop changed the gradients in ``stores`` itself, and not by one factor for all of them (it added noise, say).

    What it does to a window's whole gradient it would do to the large batch's too; what it does between the
    micro-batches of a window, it would not. ``only_adds`` means that it added something to the gradients, which makes
    up for no wrong scale. ``origins`` are those of the numbers that it used, as far as the source shows them.
    """

    stores: frozenset[str]
    only_adds: bool = False
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangedByStep(Event):
    """An optimizer's step changed the gradients in ``stores`` that it had used, and not by one factor for all of them.

    PyTorch's SGD with Nesterov momentum does where it updates all parameters together (``foreach``, the default on a
    GPU). It matters only to whoever uses what is left of them.
    """

    stores: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip(Event):
    """The gradients in ``stores`` were clipped by norm or by value."""

    stores: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unscale(Event):
    """An AMP gradient scaler divided its scale out of the gradients in ``stores``."""

    stores: frozenset[str]


@dataclass(frozen=True, slots=True)
class Listed:
    """The list that a loop runs over which ends right before a step: the window, as far as all of it was trained on.

    ``items`` is its length at the step; ``origins`` are those of a number that is this length.
    """

    items: int
    origins: frozenset[str]


@dataclass(frozen=True, slots=True)
class Quotient:
    """What a number is computed from that is a quotient: the origins of each factor above and below the line."""

    above: tuple[frozenset[str], ...]
    below: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class WindowBound:
    """The number that the source counts micro-batches up to before it steps: K of ``if (i + 1) % K == 0``.

    ``steps`` is its value at the step, None where that is not known without running the user's code; ``origins`` are as
    those of a `Factor`: a divisor that shares one of them is that number. ``reached`` is the counter's value, where it
    goes on counting from window to window (``i + 1`` of the same test), and ``first`` its value in the first turn of
    its loop, None where the source does not show it. ``listed`` is what a loop runs over that ends right before the
    step, None where none does, or where that is no list. ``quotient`` is what K is computed from, where it is one.
    ``parts`` are the origins of the number of parts that data are split into by the loop which steps after each.
    ``count`` are those of a count that each window starts, and that has just come to K (``if held == K:``).
    """

    steps: int | None
    origins: frozenset[str] = frozenset()
    reached: int | None = None
    first: int | None = None
    listed: Listed | None = None
    quotient: Quotient | None = None
    parts: frozenset[str] = frozenset()
    count: frozenset[str] = frozenset()

    def counted_since(self, before: int | None) -> int | None:
        """How many micro-batches were counted since the counter was at ``before``, None where that is not known.

        A counter that falls, or is seen for the first time, has counted from the first turn of its loop. None where its
        value there is not known, or where it does not go on from window to window.
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
    where the engine sees neither. ``through_scaler`` means that an AMP gradient scaler made the step, ``skipped`` that
    the scaler found inf or nan and skipped it. ``again`` means that it had read a gradient of its window
    before, with other weights (LBFGS). ``by_hand`` means that the script's own code made the update, and may
    have scaled the gradients in it, unless ``rates_alone``: then all numbers that it multiplied them by are known, and
    count nothing. ``used`` are the origins of the numbers that it wrote the weights with. ``unread`` means that the
    engine has not read the gradients of its window, so that changes of them by hand are unknown.
    """

    optimizer: str
    stores: frozenset[str]
    accumulation_steps: int | None = None
    counted_by: WindowBound | None = field(default=None, compare=False)
    through_scaler: bool = False
    skipped: bool = False
    again: bool = False
    by_hand: bool = False
    rates_alone: bool = False
    used: frozenset[str] = frozenset()
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalerUpdate(Event):
    """An AMP gradient scaler updated its scale."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerStep(Event):
    """A learning rate scheduler made a step.

    ``scheduler`` identifies it; ``horizon`` is the number of steps that it was made for, where that is known, and
    ``since`` the first micro-batch that ran after it was made. ``by_hand`` means that there is no scheduler, and the
    loop set the optimizer's learning rate itself. ``stores`` are those of that optimizer, empty where they are not
    known.
    """

    scheduler: str = ""
    stores: frozenset[str] = frozenset()
    horizon: int | None = None
    since: int = 0
    by_hand: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AverageUpdate(Event):
    """A moving average of the weights was updated; ``average`` identifies it.

    ``since`` is the first micro-batch that ran after it was made, ``stores`` are those of the weights, empty where they
    are not known.
    """

    average: str = ""
    stores: frozenset[str] = frozenset()
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphsHeld(Event):
    """At a step the graphs of ``count`` micro-batches' losses were still in memory, though their backwards had run.

    ``where`` is the step or, if the engine has ``read`` from the source what holds them, that place.
    """

    count: int
    read: bool = False


@dataclass(frozen=True, slots=True)
class ShownLoss:
    """The loss of one micro-batch in a reported number: ``share`` times the loss that ``backward`` was called on.

    The factors ``left_out`` are excluded: the loss was multiplied by them for ``backward`` alone. ``times_steps`` says
    that what was read was multiplied by K, by the origin of that number.
    """

    share: float
    left_out: tuple[Factor, ...] = ()
    micro_batch: int = -1
    times_steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossShown(Event):
    """A number computed from the ``losses`` of several micro-batches was reported at ``shown_at``.

    ``where`` is the place that read it, ``backward`` that of the backward of those losses. Their shares add up to 1 if
    it is their mean, to K if it is their sum over a window. ``as_read`` means that it is one loss, which was added to
    nothing, and that a person sees it.
    """

    shown_at: Location
    backward: Location
    losses: tuple[ShownLoss, ...]
    as_read: bool = False


class Cause(Enum):
    """Why something is unknown, as far as any decision depends on it."""

    NOT_FINITE = "a gradient has overflowed"
    ZERO = "a gradient is zero"
    UNREAD = "a gradient was not read"
    UNSHARED = "not all ranks that are averaged over are watched"
    BY_HAND = "gradients or weights were modified manually"
    USED_BY_HAND = "gradients were used by hand, and cannot be compared"
    PARTLY_CLEARED = "only some of the gradients that a step uses were cleared"
    LENGTH = "how many micro-batches a window has is not known, but what is done to each"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is unknown: in words for the reader, and as the cause that decisions depend on."""

    words: str
    cause: Cause = Cause.OTHER


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opaque(Event):
    """Something happened to ``stores`` that the engine could not follow; what comes after it is unknown."""

    stores: frozenset[str]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Count:
    """A place where the source has a number that the loop counts with: a modulus, a bound, a number of chunks."""

    where: Location
    value: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one loop, in order.

    ``complete`` is False where watching ended before the loop did, so that what is left over at the end means nothing.
    ``assumed_length`` means that the number of micro-batches of a pass is the engine's choice, made to show full
    windows and a remainder, and not the loop's; ``assumed_turns`` that the number of passes is, or the number of turns
    of a loop whose end the source does not show; ``assumed_units`` is the number of units that the engine assumed for
    every micro-batch of unknown size. ``precision`` is the unit roundoff of the dtype that the factors were read in:
    the relative error to allow when two of them are compared. ``from_start`` is False where watching began in the
    middle of the loop, so that a short first window may be an earlier pass's last. ``counts`` are the places of the
    numbers that the loop counts with, each once. ``assumed_steps`` are the names of K that the source does not define,
    each with the number that was assumed; only those that the loop counts its windows with, or divides its losses by.
    ``skips_at`` is the place that skips a micro-batch, where the engine made it do so.
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

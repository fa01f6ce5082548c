"""Loop variants: the properties of a generated training loop, and the mistakes that can be planted in it.

A variant is a value: `gradcheck_accum.fuzz.render` writes it as source, `gradcheck_accum.fuzz.oracle` computes the
weight of every micro-batch by plain arithmetic, and `gradcheck_accum.fuzz.strategies` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

COUNTED = ("i + 1", "i from 1", "K - 1", "not modulo", "counter", "while", "continue")
"""Boundary styles that test a counter at every micro-batch."""

WHOLE = ("nested", "islice")
"""Boundary styles that take a whole window's micro-batches from the data first, the remainder as a short window."""

BOUNDARIES = (*COUNTED, *WHOLE, "next", "running count", "chunks")
"""How a loop detects that a window is complete."""

PLAIN = "plain"
"""The boundary of a loop that does not accumulate: a step follows every micro-batch, and there is no K."""

MODELS = ("linear", "mlp", "conv", "rnn", "attention", "tied")
LOSSES = ("cross entropy", "functional", "mse", "smooth l1", "tokens", "ignored tokens")
OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW", "RMSprop")
SCHEDULES = ("decay", "steps", "micro-batches")
"""What a learning rate schedule was made for: no length, or a number of moves, one per step or per micro-batch."""
LAYOUTS = ("script", "function", "helpers", "class")
CLEARINGS = ("optimizer", "zeros", "model", "none")
"""``optimizer.zero_grad()``, the same with zeros instead of None, ``model.zero_grad()``, ``p.grad = None``."""
SPELLINGS = ("/", "statement", "in place", "inverse", "method", "function")
"""How the division of a loss is written."""

UNEVEN_SCALES = frozenset({"share", "total"})
"""The ways to scale that are right if micro-batches have different numbers of units."""

STAGNATING = 600
"""Micro-batches after which a sum of equal numbers in bfloat16 has lost a visible part.

Such a sum stops growing before it is 512 times the number: a number in [2^q, 2^(q+1)) is less than half of the distance
between adjacent numbers there. After 600, at least 14 % is lost, in every element of a gradient.
"""

PLACES = ("K", "accum", "ACCUM_STEPS", "n_micro", "literal", "argument", "config", "namespace")
"""Where a script defines K: a constant of this name, a literal, an argument, an entry or a field of settings."""

NEUTRAL_NAMES = ("SCALE", "factor", "weight")
"""Names for a number that do not show its role."""

TELLING_NAMES = ("num_heads", "n_losses", "TEMPERATURE", "loss_weight")
"""Names for a number that K would not have."""

REJECTIONS = ("", "never", "window", "batch")
"""What is discarded if a loss is too large: nothing (no loss is), a whole window, or the window so far."""

TOKENS = 3
"""Tokens in a row of token data, and classes or outputs of every model."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One way to plant one mistake.

    ``slot`` is the part of a loop that it changes: two operators can be planted together if their slots differ.
    ``needs`` are the values that a variant's fields must have for the mistake to exist at all.
    """

    name: str
    slot: str
    needs: Mapping[str, frozenset[object]] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The catalogue's code of the mistake."""
        return self.name.partition(":")[0]


def _operator(name: str, slot: str, **needs: object) -> Operator:
    return Operator(name, slot, {k: frozenset(v) if isinstance(v, tuple) else frozenset({v}) for k, v in needs.items()})


INDEXED = ("i + 1", "i from 1", "K - 1", "not modulo")
"""Boundary styles in which the index of a micro-batch in its pass is a variable of a for loop."""

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        _operator("GA101", "scale", scale=("steps", "window", "share", "gradients")),
        _operator("GA102", "scale", scale=("steps", "window", "share", "total")),
        _operator("GA102:rows", "scale", scale=("steps", "window"), loss=("cross entropy", "functional")),
        _operator("GA103", "scale", scale=("window", "gradients"), remainder=True),
        _operator("GA104", "scale", scale="share", uneven=True),
        _operator("GA201", "clearing", clears_first=False),
        _operator("GA201:late", "clearing", clears_first=False, boundary=COUNTED[:-1], flush=("", "or last")),
        _operator("GA202", "clearing", clears_first=False, amp=("", "autocast")),
        _operator("GA203", "clearing"),
        _operator(
            "GA204",
            "clearing",
            pair=True,
            uneven=False,
            clearing=("optimizer", "zeros"),
            loss=LOSSES[:4],
            amp=("", "scaler"),
        ),
        _operator("GA301", "boundary", boundary=COUNTED, remainder=True),
        _operator(
            "GA302",
            "boundary",
            boundary=COUNTED,
            flush=("", "or last"),
            clears_first=False,
            scale=("steps", "window", "share"),
        ),
        _operator("GA303", "boundary", boundary=INDEXED, remainder=False, clears_first=False, uneven=False),
        _operator("GA304", "boundary", boundary=INDEXED, remainder=False, scale="steps", amp="", clears_first=False),
        _operator("GA401", "clip", clip=("norm", "value"), amp=""),
        _operator("GA402", "clip", clip=("norm", "value"), amp=""),
        _operator("GA501", "clip", clip=("norm", "value"), amp="scaler"),
        _operator("GA502", "scaler", amp="scaler", clip="", boundary=INDEXED),
        _operator("GA503", "scaler", amp="scaler", clip=""),
        _operator("GA601", "schedule", schedule=("decay", "steps")),
        _operator("GA603", "schedule", schedule="micro-batches"),
        _operator("GA602", "average", average=True),
        _operator("GA801", "graphs"),
        _operator("GA802", "metrics", scale=("steps", "window"), metrics=True, boundary=BOUNDARIES[:-1]),
        _operator(
            "GA902",
            "model",
            boundary=INDEXED,
            scale="steps",
            amp="",
            clip="",
            pair=False,
            uneven=False,
            remainder=False,
            data_loader=False,
            loss=LOSSES[:4],
            clears_first=False,
        ),
        _operator("GA901", "model", batch_norm=True, amp="", pair=False, uneven=False, loss="cross entropy"),
    )
}
"""Every way to plant a mistake, by name: its code, and a word if a code has several."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a script: ``text`` where it is used, or ``name``, bound to it at the top."""

    text: str
    name: str = ""

    @property
    def value(self) -> Fraction:
        """Its value."""
        return Fraction(self.text)

    @property
    def shown(self) -> str:
        """How the script writes it where it is used."""
        return self.name or self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a loop minimizes for one batch; no part of it is due to accumulation.

    ``constant`` is what all of it is multiplied or divided by (``operation``), ``after`` the loss has been divided if
    that is set. There are ``terms`` losses, divided by ``mean`` if it is their mean. A further loss is ramped up over
    the first ``warm_up`` micro-batches, ``penalty`` multiplies the squares of the weights, and the model's outputs are
    divided by ``temperature``.
    """

    constant: Number | None = None
    operation: str = "/"
    after: bool = False
    terms: int = 1
    mean: Number | None = None
    warm_up: Number | None = None
    penalty: Number | None = None
    temperature: Number | None = None

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Every number in it."""
        every = (self.constant, self.mean, self.warm_up, self.penalty, self.temperature)
        return tuple(number for number in every if number is not None)

    @property
    def several(self) -> bool:
        """Whether it has more than one loss."""
        return self.terms > 1 or self.warm_up is not None or self.penalty is not None

    @property
    def factor(self) -> Fraction:
        """The factor of its first loss."""
        constant = Fraction(1) if self.constant is None else self.constant.value
        mean = Fraction(1) if self.mean is None else self.mean.value
        return (constant if self.operation == "*" else 1 / constant) / mean

    def factors(self, position: int) -> tuple[Fraction, ...]:
        """The factor of each of its losses in the micro-batch at ``position`` of a pass."""
        more = () if self.warm_up is None else (min(Fraction(1), position / self.warm_up.value) * self.factor,)
        return (*(self.factor,) * self.terms, *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One training loop. ``rows`` are the rows of each micro-batch of a pass, ``units`` what each loss averages over.

    ``flush`` says how a remainder gets its step, ``scale`` how the losses are scaled: divided by K ("steps") or by the
    micro-batches of their own window ("window"), weighted by their share of its units ("share"), summed and divided by
    the units ("total"), through the gradients, before the step ("gradients"), or not at all, if a window is one
    micro-batch ("whole"). A ``schedule`` moves as often as it was made for: once per step, or per micro-batch.
    ``mutations`` are names of `OPERATORS`.

    The fields after these are the wider dimensions, which a campaign draws. ``k_from`` is one of `PLACES`; every
    ``log_every`` micro-batches something is printed, every ``eval_every`` the model is evaluated. ``rejects`` is one of
    `REJECTIONS`, ``outliers`` the micro-batches of a pass whose losses are too large. ``rate`` is the K of a second
    model with its own optimizer and loss.

    ``joins`` is another loop: each batch of this one joins the rows of one of its windows.
    """

    k: int
    rows: tuple[int, ...]
    units: tuple[int, ...]
    epochs: int = 1
    boundary: str = "i + 1"
    flush: str = ""
    scale: str = "steps"
    spelling: str = "/"
    model: str = "linear"
    loss: str = "cross entropy"
    optimizer: str = "SGD"
    clearing: str = "optimizer"
    clears_first: bool = False
    clip: str = ""
    amp: str = ""
    double: bool = True
    data_loader: bool = False
    layout: str = "script"
    pair: bool = False
    schedule: str = ""
    average: bool = False
    batch_norm: bool = False
    metrics: bool = False
    disguise: tuple[str, ...] = ()
    seed: int = 0
    mutations: frozenset[str] = frozenset()
    objective: Objective = Objective()
    k_from: str = "K"
    log_every: Number | None = None
    eval_every: Number | None = None
    rejects: str = ""
    outliers: tuple[int, ...] = ()
    made_in_loop: bool = False
    rate: Number | None = None
    joins: Variant | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The wider dimensions that it uses, in words; none for a loop as the first campaigns drew them."""
        o = self.objective
        every = {
            "K beyond 4": 4 < self.k < STAGNATING,
            "K elsewhere": self.k_from != "K",
            "plain training": self.boundary == PLAIN,
            "objective's constant": o.constant is not None,
            "several losses": o.terms > 1,
            "warm-up": o.warm_up is not None,
            "penalty": o.penalty is not None,
            "temperature": o.temperature is not None,
            "log modulus": self.log_every is not None,
            "evaluation modulus": self.eval_every is not None,
            f"rejects: {self.rejects}": bool(self.rejects),
            "data made in the loop": self.made_in_loop,
            "two rates": self.rate is not None,
        }
        return tuple(feature for feature, used in every.items() if used)

    @property
    def hands_on_a_bare_k(self) -> bool:
        """Whether K is a literal passed to a function that divides the loss by it, under a parameter's name."""
        return self.k_from == "literal" and (self.spelling == "function" or self.layout == "helpers")

    @property
    def count(self) -> int:
        """The micro-batches of one pass."""
        return len(self.rows)

    @property
    def remainder(self) -> int:
        """The micro-batches of a pass that are in no full window."""
        return self.count % self.k

    @property
    def uneven(self) -> bool:
        """Whether micro-batches have different numbers of units."""
        return len(set(self.units)) > 1

    @property
    def skipped(self) -> int:
        """The micro-batch of a pass that GA303 skips: the first of the second window that is not its last."""
        return self.k

    def has(self, name: str) -> bool:
        """Whether the mutation ``name`` is planted; if ``name`` is only a code, in any of its variants."""
        return any(name in (own, OPERATORS[own].code) for own in self.mutations)

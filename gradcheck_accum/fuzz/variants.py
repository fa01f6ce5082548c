"""Loop variants: what is drawn of a training loop, and the mistakes that can be planted in it.

A variant is a value: `gradcheck_accum.fuzz.render` writes it as source, `gradcheck_accum.fuzz.oracle` says by plain
arithmetic what every micro-batch of it weighs, and `gradcheck_accum.fuzz.strategies` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COUNTED = ("i + 1", "i from 1", "K - 1", "not modulo", "counter", "while", "continue")
"""Boundary styles that test a counter at every micro-batch."""

WHOLE = ("nested", "islice")
"""Boundary styles that take a window's micro-batches out of the data first, the remainder as a short window."""

BOUNDARIES = (*COUNTED, *WHOLE, "next", "running count", "chunks")
"""How a loop knows that a window is complete."""

MODELS = ("linear", "mlp", "conv", "rnn", "attention", "tied")
LOSSES = ("cross entropy", "functional", "mse", "smooth l1", "tokens", "ignored tokens")
OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW", "RMSprop")
SCHEDULES = ("decay", "steps", "micro-batches")
"""What a learning rate's schedule was made for: no length, or the moves that it says, steps or micro-batches."""
LAYOUTS = ("script", "function", "helpers", "class")
CLEARINGS = ("optimizer", "zeros", "model", "none")
"""``optimizer.zero_grad()``, the same with zeros in place of None, ``model.zero_grad()``, ``p.grad = None``."""
SPELLINGS = ("/", "statement", "in place", "inverse", "method", "function")
"""How the division of a loss is written."""

UNEVEN_SCALES = frozenset({"share", "total"})
"""The ways to scale that are right where micro-batches hold different numbers of units."""

STAGNATING = 600
"""Micro-batches after which a sum of one and the same number in bfloat16 has lost a visible part of it.

Such a sum stops growing before it is 512 times the number: a number in [2^q, 2^(q+1)) is less than half of the distance
between its neighbours there. Of 600 that is at least 14 % lost, in every element of a gradient.
"""

TOKENS = 3
"""Tokens in a row of token data, and classes or outputs of every model."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One way to plant one mistake.

    ``slot`` is what it changes of a loop: two operators can be planted together if their slots differ. ``needs`` are
    the choices that a variant must be made of for the mistake to be there at all, by field.
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


_FLUSHED = ("or last", "after")
INDEXED = ("i + 1", "i from 1", "K - 1", "not modulo")
"""Boundary styles in which the number of a micro-batch in its pass is a variable of a for loop."""

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
"""Every way to plant a mistake, by name: its code, and a word where a code has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One training loop. ``rows`` are the rows of each micro-batch of a pass, ``units`` what each loss averages over.

    ``flush`` says how a remainder gets its step, ``scale`` how the losses become the large batch's: divided by K
    ("steps") or by the micro-batches of their own window ("window"), weighed by their share of its units ("share"),
    summed and divided by them ("total"), or through the gradients, before the step ("gradients"). A ``schedule`` moves
    as often as it was made for: once per step, or per micro-batch. ``mutations`` are names of `OPERATORS`.
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

    @property
    def count(self) -> int:
        """The micro-batches of one pass."""
        return len(self.rows)

    @property
    def remainder(self) -> int:
        """The micro-batches of a pass that no full window holds."""
        return self.count % self.k

    @property
    def uneven(self) -> bool:
        """Whether micro-batches hold different numbers of units."""
        return len(set(self.units)) > 1

    @property
    def skipped(self) -> int:
        """The micro-batch of a pass that GA303 never runs: the first of the second window, which has one after it."""
        return self.k

    def has(self, name: str) -> bool:
        """Whether the mutation ``name`` is planted, in any of its ways where ``name`` is only a code."""
        return any(name in (own, OPERATORS[own].code) for own in self.mutations)

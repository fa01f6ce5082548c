"""Writes down what the interpreted loop does, and turns it into events once all of it is known.

Which gradients belong together (the stores of `gradcheck_accum.events`) can only be told at the end: if one optimizer
steps there is one store, and if several do each owns the models whose parameters it was given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_accum.events import (
    AverageUpdate,
    Backward,
    Clip,
    Count,
    Event,
    Factor,
    GraphsHeld,
    LossShown,
    Opaque,
    Operation,
    Purpose,
    Reason,
    Reduction,
    ScaleGrads,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Term,
    Trace,
    Unscale,
    WindowBound,
    ZeroGrad,
)
from gradcheck_accum.folding import fold
from gradcheck_accum.ledger import Fate
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control import OutOfBudget
from gradcheck_accum.lint.values import UNITS, Figure, Num, Optimizer, Part, Scheduler, Tensor, whole_of
from gradcheck_accum.location import Location

_ONE_STORE = "the model"
_TO_A_WHOLE = frozenset({"zero", "scale"})
"""What is known of a model's gradients only if it happens to all of them."""
_MOST_WORK = 5_000_000
"""Steps times events beyond which no ledger is made: where nothing is cleared, each step reads all there is so far."""


@dataclass(slots=True)
class _Raw:
    """One thing that the loop did; ``owner`` is an optimizer, the names of models, or None for all gradients."""

    kind: str
    where: Location
    owner: Optimizer | frozenset[str] | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Recorder:
    """The record of one interpretation of one loop.

    ``units`` are those of a micro-batch: until the source shows its size, a number that the source does not hold.
    """

    path: str
    units: int
    raw: list[_Raw] = field(default_factory=list)
    micro_batch: int = -1
    epoch: int | None = None
    passes: int = 0
    schedulers: int = 0
    """How many learning rate schedulers were made."""
    entered: int = 0
    """The first micro-batch of the present call from outside."""
    averages: int = 0
    """How many moving averages were."""
    assumed_length: bool = False
    assumed_turns: bool = False
    """Whether the source leaves open how many passes over the data there are, or turns of a loop without an end."""
    relied_on: set[str] = field(default_factory=set)
    """The tags of the names that windows are counted by, or losses divided by."""
    knows_units: bool = False
    """Whether ``units`` is what the source shows, not the assumed number."""
    cuts: bool = False
    """Whether the micro-batch under way was cut out of a batch, and it is not known how many rows of it it holds."""
    counts: dict[Location, int] = field(default_factory=dict)
    """Where the source names numbers that the loop counts by."""
    counted: set[str] = field(default_factory=set)
    """What the loop counts by: tags of names, and of the lengths of what it runs over."""
    divisors: dict[int, frozenset[str]] = field(default_factory=dict)
    """The numbers, rounded, that losses have been divided by, with their origins."""
    ends: dict[str, dict[int, float]] = field(default_factory=dict)
    """The settings that a count of the loop is compared with to end training, with that count at each micro-batch."""
    graphs: dict[Hashable, Part] = field(default_factory=dict)
    """The losses that ``backward`` has run on, by their flow."""
    backwards: dict[Hashable, Location] = field(default_factory=dict)
    """Where it has, by the same."""
    keepers: dict[Location, None] = field(default_factory=dict)
    """The places that keep losses of several micro-batches, in the order of their first time."""
    _opened: int = 0
    """The first micro-batch of the present pass."""
    _assumed_units: int = field(init=False)
    _last: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _steps: int = 0
    _opaque: bool = False
    _differentiated: bool = False

    def __post_init__(self) -> None:
        self._assumed_units = self.units

    def learn_units(self, rows: int | None) -> None:
        """Note the size of the micro-batches to come, where the source shows it."""
        if rows is not None:
            self.units, self.knows_units = rows, True

    def learn_rows_of_part(self, rows: int | None) -> None:
        """Note the size of the micro-batch under way, which was cut out of a batch, where the source shows it."""
        self.cuts = rows is None
        self.learn_units(rows)

    def locate(self, node: syntax.Node) -> Location:
        """Where a node stands."""
        where = node.where
        return where if where.path == self.path else replace(where, path=self.path)

    @property
    def has_backward(self) -> bool:
        """Whether any gradient has been made yet."""
        return self._differentiated

    @property
    def lost_track(self) -> bool:
        """Whether anything happened that could not be followed."""
        return self._opaque

    def draw(self) -> None:
        """A new micro-batch of data begins."""
        self.micro_batch += 1
        self.cuts = False

    def backward(self, node: syntax.Node, tensor: Tensor, synced: bool | None) -> None:
        """``backward`` was called on ``tensor``; ``synced`` says whether its gradients are averaged over the ranks."""
        where = self.locate(node)
        batches = {part.micro_batch for part in tensor.parts if part.micro_batch >= 0}
        place = (where.line, where.column)
        if len(batches) > 1:
            self.opaque(node, "one backward over the losses of several micro-batches")
            return
        if self._last.get(place) == (self.micro_batch, self._steps):
            # The same line again over the same batch: a sum over tasks, samples or players, not micro-batches.
            self.opaque(node, "several backwards over one batch at the same place")
            return
        self._last[place] = (self.micro_batch, self._steps)
        self._differentiated = True
        self.graphs.update({part.flow: part for part in tensor.parts})
        self.backwards.update({part.flow: where for part in tensor.parts})
        self._note_divisors(tensor)
        self.raw.append(
            _Raw(
                "backward",
                where,
                tensor.models,
                {
                    "micro_batch": max(self.micro_batch, 0),
                    "epoch": self.epoch,
                    "given": self._given(),
                    "terms": _terms(tensor.parts, self.units),
                    "grad_scaled": tensor.grad_scaled,
                    "synced": synced,
                },
            )
        )

    @property
    def has_run(self) -> bool:
        """Whether the micro-batch that was drawn last has had a backward."""
        return any(batch == self.micro_batch for batch, _ in self._last.values())

    def open_pass(self) -> None:
        """A new pass over the data begins."""
        self.epoch = self.passes
        self.passes += 1
        self._opened = self.micro_batch + 1

    def _given(self) -> int | None:
        """How many batches the pass gave so far."""
        return None if self.epoch is None else self.micro_batch - self._opened + 1

    def _note_divisors(self, tensor: Tensor) -> None:
        """Note what a loss was divided by, all of it; the number of its terms makes their mean by any name."""
        each = [
            {round(1 / f.value): f.origins for f in part.factors if f.value and f.operation is Operation.DIVIDE}
            for part in tensor.parts
        ]
        for divisor in set.intersection(*map(set, each)) if each else set[int]():
            named = [one[divisor] for one in each if divisor != len(each)]
            origins = frozenset[str]().union(*named)
            self.divisors[divisor] = self.divisors.get(divisor, frozenset()) | origins

    def zero(self, node: syntax.Node, owner: Optimizer | frozenset[str] | None) -> None:
        """Gradients were cleared."""
        self.raw.append(_Raw("zero", self.locate(node), owner))

    def renew(self, node: syntax.Node, optimizer: Optimizer) -> None:
        """An optimizer was made once more inside the training loop, for a model that is new too (cross-validation).

        None of what its earlier steps used stands in the new gradients.
        """
        steps = [i for i, raw in enumerate(self.raw) if raw.kind == "step" and raw.owner is optimizer]
        if steps:
            self.raw.insert(steps[-1] + 1, _Raw("zero", self.locate(node), optimizer))

    def clip(self, node: syntax.Node, owner: frozenset[str] | None) -> None:
        """Gradients were clipped."""
        self.raw.append(_Raw("clip", self.locate(node), owner))

    def scale_grads(self, node: syntax.Node, owner: frozenset[str] | None, factor: Factor) -> None:
        """Gradients were multiplied in place."""
        self.raw.append(_Raw("scale", self.locate(node), owner, {"factor": factor}))

    def unscale(self, node: syntax.Node, optimizer: Optimizer) -> None:
        """A grad scaler's scale was divided out."""
        self.raw.append(_Raw("unscale", self.locate(node), optimizer))

    def update_scaler(self, node: syntax.Node) -> None:
        """A grad scaler chose its scale anew."""
        self.raw.append(_Raw("scaler update", self.locate(node)))

    def step(
        self,
        node: syntax.Node,
        optimizer: Optimizer,
        steps: int | None,
        counted_by: WindowBound | None = None,
        through_scaler: bool = False,
    ) -> None:
        """An optimizer stepped; ``steps`` is K where it is stated, ``counted_by`` what the loop counts to."""
        self._steps += 1
        if self._steps * len(self.raw) > _MOST_WORK:
            raise OutOfBudget
        details = {"steps": steps, "counted_by": counted_by, "through_scaler": through_scaler}
        self.raw.append(_Raw("step", self.locate(node), optimizer, details))

    def approach(self, end: str, count: Num) -> None:
        """The training loop asks whether a count of its own has come to where a setting, ``end``, has training end."""
        self.ends.setdefault(end, {})[self.micro_batch] = float(count.value)

    def move(self, node: syntax.Node, scheduler: Scheduler, horizon: Num | str) -> None:
        """A learning rate scheduler made a move; it was made for ``horizon`` moves, a number or a setting's."""
        details = {"scheduler": scheduler.name, "since": scheduler.since, "horizon": horizon}
        self.raw.append(_Raw("move", self.locate(node), scheduler.optimizer, details))

    def rate(self, node: syntax.Node, name: str, owner: frozenset[str] | None) -> None:
        """The learning rate of the weights of ``owner`` was changed by hand."""
        details = {"scheduler": name, "since": self.entered, "by_hand": True}
        self.raw.append(_Raw("rate", self.locate(node), owner, details))

    def average(self, node: syntax.Node, name: str, since: int, owner: frozenset[str] | None) -> None:
        """A moving average that was made before the micro-batch ``since`` took in the weights of ``owner``."""
        self.raw.append(_Raw("average", self.locate(node), owner, {"average": name, "since": since}))

    def show(self, node: syntax.Node, figure: Figure) -> None:
        """A number that was read off losses is shown to a person."""
        if figure.read_at is not None:
            self.raw.append(_Raw("show", figure.read_at, None, {"shown_at": self.locate(node), "figure": figure}))

    def held(self, where: Location, count: int) -> None:
        """The graphs of ``count`` micro-batches are still held by what stands at ``where``."""
        self.raw.append(_Raw("held", where, None, {"count": count}))

    def opaque(self, node: syntax.Node, reason: str) -> None:
        """Something happened that could not be followed."""
        self._opaque = True
        self.raw.append(_Raw("opaque", self.locate(node), None, {"reason": reason}))

    def trace(self) -> Trace:
        """The events of the loop."""
        owners = {id(r.owner): r.owner for r in self.raw if r.kind == "step"}
        optimizers = [o for o in owners.values() if isinstance(o, Optimizer)]
        stores = self._stores(optimizers)
        is_team = not stores and bool(optimizers)
        if is_team:
            stores = self._stores_of_a_team(optimizers)
        events: list[Event] = []
        everything = frozenset().union(*stores.values()) if stores else frozenset({_ONE_STORE})
        for raw in self.raw:
            reach = self._reach(raw, stores, everything, is_team)
            if raw.kind in _TO_A_WHOLE and self._is_a_part(raw, everything):
                events.append(
                    Opaque(where=raw.where, stores=everything, reason=Reason("which gradients of a model change"))
                )
                continue
            if raw.kind == "move":
                events.extend(self._move(raw, reach))
                continue
            if raw.kind == "show":
                events.extend(self._shown(raw))
                continue
            if raw.kind == "backward" and not reach:
                # No optimizer's model is among those that the loss came from: the flow was lost on the way.
                event: Event | None = Opaque(
                    where=raw.where, stores=everything, reason=Reason("which models a loss reaches")
                )
            else:
                event = _event(raw, reach)
            if event is not None:
                events.append(event)
        reason = self._doubt(events, stores)
        stained = _stained(events) and _stained(events) - _spilled(events)
        if stained:
            events.insert(
                0, Opaque(where=self.raw[0].where, stores=stained, reason=Reason("what another loss left there"))
            )
        if reason:
            events.insert(0, Opaque(where=self.raw[0].where, stores=everything, reason=Reason(reason)))
        counts = tuple(Count(where, value) for where, value in self.counts.items())
        return Trace(
            tuple(events),
            assumed_length=self.assumed_length,
            assumed_turns=self.assumed_turns,
            assumed_units=float(self._assumed_units),
            counts=counts,
        )

    def _move(self, raw: _Raw, stores: frozenset[str]) -> list[SchedulerStep]:
        """A scheduler's move, if what it was made for is counted by the loop too.

        A length is known if it is that of the data that the loop runs over, a number that stands for a name if the loop
        counts by it: another divisor may be a batch size, or the number of ranks.
        """
        horizon: Num | str = raw.details["horizon"]
        if isinstance(horizon, str):
            if not self._ends_after_micro_batches(horizon):
                return []
            details = raw.details | {"horizon": self.micro_batch + 1 - raw.details["since"]}
            return [SchedulerStep(where=raw.where, stores=stores, **details)]
        length_is_known = not self.assumed_length or bool(horizon.tags & self.counted - horizon.names)
        if not length_is_known or UNITS in horizon.tags or not horizon.names <= self.counted:
            return []
        details = raw.details | {"horizon": math.ceil(horizon.value)}
        return [SchedulerStep(where=raw.where, stores=stores, **details)]

    def _ends_after_micro_batches(self, end: str) -> bool:
        """Whether a setting, which a count of the loop is compared with to end training, counts its micro-batches.

        It does if that count has grown with each of them, and by one.
        """
        counts = self.ends.get(end, {})
        each = len(counts) > 1 and len(counts) == max(counts) - min(counts) + 1
        return each and len({count - micro_batch for micro_batch, count in counts.items()}) == 1

    def _shown(self, raw: _Raw) -> list[LossShown]:
        """What a number that was shown is made of, if that is known by now."""
        figure: Figure = raw.details["figure"]
        shares: dict[int, set[float]] = {}
        for part in figure.parts:
            sent = self.graphs.get(part.origin)
            share = _share(part, sent) if sent is not None else None
            if share is None:
                return []
            shares.setdefault(part.micro_batch, set()).add(round(share, 9))
        if any(len(several) > 1 for several in shares.values()):
            return []
        return [
            LossShown(
                where=raw.where,
                shown_at=raw.details["shown_at"],
                backward=self.backwards[figure.parts[-1].origin],
                micro_batches=len(shares),
                share=math.fsum(share for several in shares.values() for share in several),
            )
        ]

    @staticmethod
    def _doubt(events: list[Event], stores: dict[int, frozenset[str]]) -> str:
        """Why nothing of this record can be trusted, or nothing.

        A loop that does something unknown in one turn may do it in the others too; only what is unknown after the
        last step leaves the windows before it as they are.
        """
        if events and not any(isinstance(event, Backward) for event in events):
            # Whoever makes the gradients is not in sight.
            return "where the gradients of a step come from"
        if any(not owned for owned in stores.values()):
            return "whose gradients an optimizer owns"
        last = max((i for i, event in enumerate(events) if isinstance(event, Step)), default=-1)
        return next((event.reason.words for event in events[:last] if isinstance(event, Opaque)), "")

    @staticmethod
    def _stores(optimizers: list[Optimizer]) -> dict[int, frozenset[str]]:
        """The stores of each optimizer that steps, by its identity; none where it is not known whose it owns."""
        if len(optimizers) <= 1:
            return {id(optimizer): frozenset({_ONE_STORE}) for optimizer in optimizers}
        if not all(optimizer.sources for optimizer in optimizers):
            return {}
        every = frozenset().union(*(optimizer.sources or frozenset() for optimizer in optimizers))
        # Who owns a model owns every part of it.
        return {
            id(optimizer): frozenset(s for s in every if {s, whole_of(s)} & (optimizer.sources or frozenset()))
            for optimizer in optimizers
        }

    def _stores_of_a_team(self, optimizers: list[Optimizer]) -> dict[int, frozenset[str]]:
        """The same where it is not known whose parameters each owns: told only of optimizers that always act together.

        If all step between any two backwards or none does, and nothing is cleared but by them, every optimizer's
        parameters have its own history, whoever's they are. Each then has a store of its own.
        """
        everyone = {id(optimizer) for optimizer in optimizers}
        stepped: set[int] = set()
        together = True
        for raw in self.raw:
            if raw.kind == "backward":
                together = together and stepped in (set(), everyone)
                stepped = set()
            elif raw.kind == "step":
                stepped.add(id(raw.owner))
        cleared = {id(raw.owner) if isinstance(raw.owner, Optimizer) else 0 for raw in self.raw if raw.kind == "zero"}
        if together and stepped in (set(), everyone) and cleared and cleared <= everyone:
            return {id(optimizer): frozenset({optimizer.name}) for optimizer in optimizers}
        return {id(optimizer): frozenset() for optimizer in optimizers}

    @staticmethod
    def _reach(
        raw: _Raw, stores: dict[int, frozenset[str]], everything: frozenset[str], is_team: bool
    ) -> frozenset[str]:
        if isinstance(raw.owner, Optimizer):
            return stores.get(id(raw.owner), frozenset())
        if len(stores) <= 1 or raw.owner is None or is_team:
            return everything
        owner = raw.owner
        # What happens to a model happens to every part of it, and what happens to a part happens to the model.
        wholes = {whole_of(source) for source in owner}
        return frozenset(s for s in everything if s in owner or whole_of(s) in owner or (s in wholes))

    @staticmethod
    def _is_a_part(raw: _Raw, everything: frozenset[str]) -> bool:
        """Whether something was done to some parameters of a model of which no optimizer owns just those."""
        owner = raw.owner if isinstance(raw.owner, frozenset) else frozenset()
        return any(whole_of(source) != source and source not in everything for source in owner)


def _stained(events: list[Event]) -> frozenset[str]:
    """The stores in which another optimizer's loss leaves gradients that the next step of their own uses.

    A GAN's generator loss flows through the discriminator too; where that is cleared before, and not after, its next
    window begins with what the generator's loss has left. Unless the ledger tells it from the window's own, none of its
    entries counts what it seems to.
    """
    stained: set[str] = set()
    used: dict[str, set[int]] = {}
    entries: dict[str, list[Backward]] = {}
    for event in events:
        match event:
            case Backward():
                for store in event.stores:
                    entries.setdefault(store, []).append(event)
            case ZeroGrad():
                entries = {store: new for store, new in entries.items() if store not in event.stores}
            case Step():
                for store in event.stores:
                    new = entries.pop(store, [])
                    before = used.get(store, set())
                    if any(e.micro_batch in before and not e.stores <= event.stores for e in new):
                        stained.add(store)
                    used[store] = {e.micro_batch for e in new}
    return frozenset(stained)


def _spilled(events: list[Event]) -> frozenset[str]:
    """The stores in which the ledger itself takes what another's loss has left for stale: these are no secret."""
    ledger = fold(Trace(tuple(events)))
    return frozenset(window.store for window in ledger.windows if window.with_fate(Fate.STALE))


def _share(part: Part, sent: Part) -> float | None:
    """How often what was sent back stands in a part of the same loss; None where a factor is not known."""
    if part.reduction is not sent.reduction:
        return None
    pairs = zip(part.factors, sent.factors, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))
    own, other = ([f.value for f in p.factors[common:]] for p in (part, sent))
    if None in own or None in other or 0.0 in other:
        return None
    return math.prod(f or 0.0 for f in own) / math.prod(f or 1.0 for f in other)


def _terms(parts: tuple[Part, ...], units: int) -> tuple[Term, ...]:
    terms: list[Term] = []
    seen: dict[str, int] = {}
    for part in parts:
        seen[part.name] = seen.get(part.name, 0) + 1
        name = part.name if seen[part.name] == 1 else f"{part.name} #{seen[part.name]}"
        known = None if part.reduction is Reduction.NONE else float(units)
        factors = _read(part.factors)
        terms.append(Term(name, part.reduction, known, factors, known, leaves_out=part.leaves_out))
    return tuple(terms)


def _read(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """The factors of a loss without the unknown coefficients of the objective, where the division by K is in sight.

    Who divides by K does not hide another 1/K in a coefficient; without that division the coefficient may be it.
    """
    if not any(f.purpose is Purpose.ACCUMULATION and f.value is not None for f in factors):
        return factors
    return tuple(f for f in factors if f.value is not None or f.purpose is not Purpose.OBJECTIVE)


def _event(raw: _Raw, stores: frozenset[str]) -> Event | None:
    where, details = raw.where, raw.details
    match raw.kind:
        case "backward":
            return Backward(where=where, stores=stores, **details)
        case "zero":
            return ZeroGrad(where=where, stores=stores)
        case "clip":
            return Clip(where=where, stores=stores)
        case "scale":
            return ScaleGrads(where=where, stores=stores, factor=details["factor"])
        case "unscale":
            return Unscale(where=where, stores=stores)
        case "step" if isinstance(raw.owner, Optimizer):
            return Step(
                where=where,
                optimizer=raw.owner.name,
                stores=stores,
                accumulation_steps=details["steps"],
                counted_by=details["counted_by"],
                through_scaler=details["through_scaler"],
            )
        case "scaler update":
            return ScalerUpdate(where=where)
        case "rate":
            return SchedulerStep(where=where, stores=stores, **details)
        case "average":
            return AverageUpdate(where=where, stores=stores, **details)
        case "held":
            return GraphsHeld(where=where, read=True, **details)
        case "opaque":
            return Opaque(where=where, stores=stores, reason=Reason(details["reason"]))
    return None

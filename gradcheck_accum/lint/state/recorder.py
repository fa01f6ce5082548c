"""Records what the interpreted loop does.

`gradcheck_accum.lint.examination.tracing` turns the record into events once it is complete.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_accum.ledger.events import (
    Cause,
    Factor,
    Operation,
    Purpose,
    Reason,
    Reduction,
    Term,
    WindowBound,
)
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import parts_of_computed
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state.control import OutOfBudget
from gradcheck_accum.lint.state.values import Figure, Num, Optimizer, Part, Scheduler, Stream, Tensor, is_part

_MOST_WORK = 5_000_000
"""Steps times events beyond which no ledger is made: where nothing is cleared, each step reads all there is so far."""
GAVE_A_LOSS = "gave a loss"
"""What a call elsewhere is that might have trained, but gave a loss that the loop itself calls ``backward`` on."""
_UNDONE = "undone"
"""What a backward is that runs again on its batch, after its gradients were cleared: no step ever gets them."""
_LEAVES_GRADIENTS = frozenset({"backward", "show", "held", GAVE_A_LOSS})
"""What is recorded that takes nothing from gradients, and changes none."""


@dataclass(slots=True)
class Recorded:
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
    raw: list[Recorded] = field(default_factory=list)
    micro_batch: int = -1
    epoch: int | None = None
    passes: int = 0
    schedulers: int = 0
    """How many learning rate schedulers were created."""
    entered: int = 0
    """The first micro-batch of the present call from outside."""
    averages: int = 0
    """How many moving averages were created."""
    assumed_length: bool = False
    assumed_turns: bool = False
    """Whether the source leaves open how many passes over the data there are, or turns of a loop without an end."""
    is_cut_off: bool = False
    """Whether a loop over data that only a break can end was left without one: what called it is never returned to."""
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
    divisors: dict[tuple[frozenset[str], int], frozenset[str]] = field(default_factory=dict)
    """The origins of the numbers that losses have been divided by, by the models of a loss and the rounded number."""
    ends: dict[str, dict[int, float]] = field(default_factory=dict)
    """The settings that a count of the loop is compared with to end training, with that count at each micro-batch."""
    sizes: set[str] = field(default_factory=set)
    """The origins of the numbers that loaders were given for the size of their batches."""
    graphs: dict[Hashable, Part] = field(default_factory=dict)
    """The losses that ``backward`` was called on, by their flow."""
    without_graphs: dict[Hashable, Part] = field(default_factory=dict)
    """What was in such a loss as a number alone, by the flow of that."""
    backwards: dict[Hashable, Location] = field(default_factory=dict)
    """The places of these calls, by flow."""
    keepers: dict[Location, None] = field(default_factory=dict)
    """The places that keep losses of several micro-batches, in the order of their first time."""
    drawn_from: list[Stream] = field(default_factory=list)
    """The iterators that the micro-batch under way was drawn from."""
    _opened: int = 0
    """The first micro-batch of the present pass."""
    assumed_units: int = field(init=False)
    """The number that ``units`` was at first."""
    _is_of_part: bool = False
    """Whether ``units`` is the size of what was cut out of a batch."""
    _last: dict[tuple[tuple[int, int], ...], tuple[int, int, int]] = field(default_factory=dict)
    """For each place of a backward its last micro-batch, the steps until then, and what had been recorded."""
    _called_on: list[int | None] = field(default_factory=list)
    _ran: int = -1
    """The micro-batch that was drawn last when a backward last ran."""
    _steps: int = 0
    _opaque: int = 0
    _may_have_trained: dict[Hashable, Recorded] = field(default_factory=dict)
    """The calls elsewhere that may have trained, by the flow of what they gave."""
    _differentiated: bool = False

    def __post_init__(self) -> None:
        self.assumed_units = self.units

    def learn_units(self, rows: int | None) -> None:
        """Note the size of the micro-batches to come, where the source shows it."""
        if rows is not None:
            self.units, self.knows_units, self._is_of_part = rows, True, False

    def learn_rows_of_part(self, rows: int | None) -> None:
        """Note the size of the micro-batch under way, which was cut out of a batch, where the source shows it.

        Where it does not, it is that of the parts before, and not that of the batch.
        """
        self.cuts = rows is None
        if rows is not None:
            self.units, self.knows_units, self._is_of_part = rows, True, True
        elif not self._is_of_part:
            self.units, self.knows_units = self.assumed_units, False

    def is_assumed(self, rows: int) -> bool:
        """Whether a number of rows was made from the assumed one, which divides no number of the source."""
        return rows % self.assumed_units == 0

    def is_size(self, number: Num) -> bool:
        """Whether a number is the one that a loader was given for the size of its batches, and micro-batches are."""
        is_their_size = self.knows_units and number.value == self.units
        return is_their_size and not number.origins.isdisjoint(self.sizes)

    def size_times(self, number: Num) -> Num | None:
        """What the size of the loader's batches is multiplied by in a number that is computed from it."""
        others = parts_of_computed(number.origins) - self.sizes
        if not self.knows_units or not self.units or others == parts_of_computed(number.origins):
            return None
        count, left = divmod(number.value, self.units)
        return None if left else Num(int(count), origins=others)

    def locate(self, node: syntax.Node) -> Location:
        """The place of a node."""
        where = node.where
        return where if where.path == self.path else replace(where, path=self.path)

    @property
    def has_backward(self) -> bool:
        """Whether any gradient has been made yet."""
        return self._differentiated

    @property
    def lost_track(self) -> bool:
        """Whether anything happened that could not be followed."""
        return self._opaque > 0

    def draw(self) -> None:
        """A new micro-batch of data begins."""
        self.micro_batch += 1
        self.cuts = False
        self.drawn_from = []

    def draw_apart(self) -> None:
        """A new micro-batch begins that the pass under way has not given."""
        self.draw()
        self._opened += 1

    def joins(self, stream: Stream) -> bool:
        """Whether an iterator's next batch belongs to the micro-batch under way, which other iterators gave so far.

        An iterator that was made after that was drawn goes on where another has ended.
        """
        others = self.drawn_from
        made_before = stream.since is not None and stream.since < self.micro_batch
        return bool(others) and made_before and all(other is not stream for other in others)

    def note_called_on(self, drawn: Sequence[int | None]) -> None:
        """A model was called on data that were drawn with these micro-batches."""
        self._called_on += drawn

    def _micro_batch_of_models(self) -> int:
        """The micro-batch whose data the models were called on since the last backward.

        It is the one that was drawn last, unless all that they were given was drawn before: what a loop has drawn since
        is the targets of another task, say.
        """
        own, self._called_on = self._called_on, []
        known = [number for number in own if number is not None]
        return max(known) if known and len(known) == len(own) else self.micro_batch

    def backward(
        self,
        node: syntax.Node,
        tensor: Tensor,
        synced: bool | None,
        called_from: tuple[tuple[int, int], ...] = (),
        *,
        past_wrapper: bool = False,
    ) -> None:
        """``backward`` was called on ``tensor``; ``synced`` says whether its gradients are averaged over the ranks.

        If they are not, ``past_wrapper`` says that what is wrapped for that was called itself.

        ``called_from`` are the places of the calls that it is in: called from another one, a function is not at the
        same place again.
        """
        where = self.locate(node)
        self._note_graphs(tensor)
        micro_batch = self._micro_batch_of_models()
        batches = {part.micro_batch for part in tensor.parts if part.micro_batch >= 0}
        place = ((where.line, where.column), *called_from)
        if len(batches) > 1:
            self.opaque(node, "one backward over the losses of several micro-batches")
            return
        terms = _terms(tensor.parts, self.units)
        before = self._last.get(place)
        if before is not None and before[:2] == (micro_batch, self._steps):
            # The same line again over the same batch: a sum over tasks or players, or parts of it.
            if self._has_cleared_since(before[2]):
                self.raw[before[2]].kind = _UNDONE
                terms = _unweighed(terms)
            elif any(raw.kind not in _LEAVES_GRADIENTS for raw in self.raw[before[2] + 1 :]):
                self.opaque(node, "several backwards over one batch at the same place")
                return
            else:
                first = self.raw[before[2]].details
                first["terms"], terms = _unweighed(first["terms"]), _unweighed(terms)
            # What each of them is of the micro-batch's loss is not known either.
            self.graphs = {flow: part for flow, part in self.graphs.items() if part.micro_batch != micro_batch}
        else:
            self.graphs.update({part.flow: part for part in tensor.parts})
        self._last[place] = (micro_batch, self._steps, len(self.raw))
        self._ran = self.micro_batch
        self._differentiated = True
        self.backwards.update({flow: where for part in tensor.parts for flow in (part.origin, part.flow)})
        self.without_graphs.update({p.origin: p for p in tensor.parts if p.origin != p.flow})
        self._note_divisors(tensor)
        self.raw.append(
            Recorded(
                "backward",
                where,
                tensor.models,
                {
                    "micro_batch": max(self.micro_batch, 0),
                    "epoch": self.epoch,
                    "given": self.given(),
                    "terms": terms,
                    "grad_scaled": tensor.grad_scaled,
                    "synced": synced,
                    "cut_off": tensor.cut_off,
                    "past_wrapper": past_wrapper,
                },
            )
        )

    def _has_cleared_since(self, place: int) -> bool:
        """Whether all gradients were cleared after a place of the record: by the only one that clears or steps."""
        owners = {id(one.owner) for one in self.raw if one.kind in ("zero", "step")}
        return len(owners) == 1 and any(one.kind == "zero" for one in self.raw[place + 1 :])

    @property
    def has_run(self) -> bool:
        """Whether the micro-batch that was drawn last has had a backward."""
        return self._ran == self.micro_batch >= 0

    def open_pass(self) -> None:
        """A new pass over the data begins."""
        self.epoch = self.passes
        self.passes += 1
        self._opened = self.micro_batch + 1

    def has_trained(self, sources: frozenset[str] | None) -> bool:
        """Whether a backward has made gradients of one of these: a model then, or a part of one."""
        owners = (one.owner for one in self.raw if one.kind == "backward" and isinstance(one.owner, frozenset))
        return any(is_part(source, model) for owner in owners for model in owner for source in sources or ())

    def given(self) -> int | None:
        """How many batches the pass gave so far."""
        return None if self.epoch is None else self.micro_batch - self._opened + 1

    def _note_divisors(self, tensor: Tensor) -> None:
        """Note what a loss was divided by, all of it."""
        each: list[dict[int, frozenset[str]]] = []
        for part in tensor.parts:
            own: dict[int, frozenset[str]] = {}
            for factor in part.factors:
                if factor.value and factor.operation is Operation.DIVIDE:
                    # Two of them may be the same number.
                    number = round(1 / factor.value)
                    own[number] = own.get(number, frozenset()) | factor.origins
            each.append(own)
        for divisor in set.intersection(*map(set, each)) if each else set[int]():
            origins = frozenset[str]().union(*(one[divisor] for one in each))
            key = tensor.models, divisor
            self.divisors[key] = self.divisors.get(key, frozenset()) | origins

    def zero(self, node: syntax.Node, owner: Optimizer | frozenset[str] | None) -> None:
        """Gradients were cleared."""
        self.raw.append(Recorded("zero", self.locate(node), owner))

    def renew(self, node: syntax.Node, optimizer: Optimizer) -> None:
        """An optimizer was made once more inside the training loop, for a model that is new too (cross-validation).

        The new gradients contain nothing that its earlier steps used.
        """
        steps = [i for i, raw in enumerate(self.raw) if raw.kind == "step" and raw.owner is optimizer]
        if steps:
            self.raw.insert(steps[-1] + 1, Recorded("zero", self.locate(node), optimizer))

    def clip(self, node: syntax.Node, owner: frozenset[str] | None) -> None:
        """Gradients were clipped."""
        self.raw.append(Recorded("clip", self.locate(node), owner))

    def scale_grads(self, node: syntax.Node, owner: frozenset[str] | None, factor: Factor) -> None:
        """Gradients were multiplied in place."""
        self.raw.append(Recorded("scale", self.locate(node), owner, {"factor": factor}))

    def unscale(self, node: syntax.Node, optimizer: Optimizer) -> None:
        """A grad scaler's scale was divided out."""
        self.raw.append(Recorded("unscale", self.locate(node), optimizer))

    def update_scaler(self, node: syntax.Node) -> None:
        """A grad scaler updated its scale."""
        self.raw.append(Recorded("scaler update", self.locate(node)))

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
        self.raw.append(Recorded("step", self.locate(node), optimizer, details))

    def approach(self, end: str, count: Num) -> None:
        """The training loop asks whether a count of its own has come to where a setting, ``end``, has training end."""
        self.ends.setdefault(end, {})[self.micro_batch] = float(count.value)

    def move(self, node: syntax.Node, scheduler: Scheduler, horizon: Num | str) -> None:
        """A learning rate scheduler made a move; it was made for ``horizon`` moves, a number or a setting's."""
        details = {"scheduler": scheduler.name, "since": scheduler.since, "horizon": horizon}
        self.raw.append(Recorded("move", self.locate(node), scheduler.optimizer, details))

    def rate(self, node: syntax.Node, name: str, owner: frozenset[str] | None) -> None:
        """The learning rate of the weights of ``owner`` was changed by hand."""
        details = {"scheduler": name, "since": self.entered, "by_hand": True}
        self.raw.append(Recorded("rate", self.locate(node), owner, details))

    def average(self, node: syntax.Node, name: str, since: int, owner: frozenset[str] | None) -> None:
        """A moving average that was made before the micro-batch ``since`` took in the weights of ``owner``."""
        self.raw.append(Recorded("average", self.locate(node), owner, {"average": name, "since": since}))

    def show(self, node: syntax.Node, figure: Figure, *, as_read: bool = False) -> None:
        """A number that was read from losses is displayed; ``as_read`` says that a person sees what one loss is."""
        if figure.read_at is not None:
            details = {"shown_at": self.locate(node), "figure": figure, "as_read": as_read}
            self.raw.append(Recorded("show", figure.read_at, None, details))

    def held(self, where: Location, count: int) -> None:
        """The graphs of ``count`` micro-batches are still held by what stands at ``where``."""
        self.raw.append(Recorded("held", where, None, {"count": count}))

    def opaque(self, node: syntax.Node, reason: str, cause: Cause = Cause.OTHER) -> None:
        """Something happened that could not be followed."""
        self._opaque += 1
        self.raw.append(Recorded("opaque", self.locate(node), None, {"reason": Reason(reason, cause)}))

    def doubt_length(self, node: syntax.Node) -> None:
        """How many micro-batches a window has is not known: a condition decides on that which differs in its turns."""
        self.opaque(node, "how many micro-batches a window has", Cause.LENGTH)

    def gave(self, acted: Recorded, result: Tensor) -> None:
        """What a call that may have trained has given: if its graph is still there, the call has made no backward."""
        self._may_have_trained.update({part.flow: acted for part in result.parts})

    def _note_graphs(self, tensor: Tensor) -> None:
        """What ``backward`` is called on has its graph: who gave it has not used it."""
        for part in tensor.parts if self._may_have_trained else ():
            flow = part.flow
            while flow not in self._may_have_trained and isinstance(flow, tuple):
                flow = flow[0]
            acted = self._may_have_trained.pop(flow, None)
            if acted is not None and acted.kind == "opaque":
                self._opaque -= 1
                acted.kind = GAVE_A_LOSS

    def only_shows_since(self, count: int) -> bool:
        """Whether all that was recorded after the first ``count`` things is numbers that were displayed."""
        return all(raw.kind == "show" for raw in self.raw[count:])

    def done(self) -> tuple[tuple[str, Location], ...]:
        """What has been done to gradients, and where, in order: what tells one run from another."""
        return tuple((raw.kind, raw.where) for raw in self.raw)


def _terms(parts: tuple[Part, ...], units: int) -> tuple[Term, ...]:
    terms: list[Term] = []
    seen: dict[str, int] = {}
    for part in parts:
        seen[part.name] = seen.get(part.name, 0) + 1
        name = part.name if seen[part.name] == 1 else f"{part.name} #{seen[part.name]}"
        known = None if part.reduction is Reduction.NONE or part.of_constants else float(units)
        factors = _read(part.factors)
        terms.append(Term(name, part.reduction, known, factors, known, leaves_out=part.leaves_out))
    return tuple(terms)


def _unweighed(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The same terms of losses, whose weights in their micro-batch are not known."""
    return tuple(replace(term, factors=(*term.factors, Factor(None))) for term in terms)


def _read(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """The factors of a loss without the unknown coefficients of the objective, where the division by K is in sight.

    Who divides by K does not hide another 1/K in a coefficient; without that division the coefficient may be it.
    """
    if not any(f.purpose is Purpose.ACCUMULATION and f.value is not None for f in factors):
        return factors
    return tuple(f for f in factors if f.value is not None or f.purpose is not Purpose.OBJECTIVE)

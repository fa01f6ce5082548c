"""What one process observed of a run, and how the ranks' observations of a step are combined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import torch

from gradcheck_accum.engine.cost import WindowCost
from gradcheck_accum.engine.independence import worst
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.streaming import Streamed
from gradcheck_accum.ledger.events import Backward, Cause, Trace
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import averages
from gradcheck_accum.ledger.windows import NOT_FINITE, ZERO, Fate, Ledger, Window
from gradcheck_accum.verify.book.holding import Mode
from gradcheck_accum.verify.book.records import Measured, Record, Replay, Update
from gradcheck_accum.verify.vectors.inner_products import InnerProducts
from gradcheck_accum.verify.watching.framework_remedies import Remark
from gradcheck_accum.verify.watching.manual_updates import OwnSteps
from gradcheck_accum.verify.watching.observer import Observer
from gradcheck_accum.verify.watching.rank_averaging import Needless
from gradcheck_accum.verify.watching.unfilled_windows import GivenUp


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What one process observed of a run.

    ``remarks`` are what frameworks stated about backwards, by path and line; ``lost`` is why a parallel reference run
    could not be continued. ``children`` is how many processes it started that may train unwatched, and
    ``threads_overlap`` whether several of its threads trained at the same time. ``mode`` is what was compared, None
    where no gradient was made.
    """

    trace: Trace
    measured: Sequence[Measured]
    replays: bool
    engine: ReferenceEngine
    remarks: dict[tuple[str, int], Remark] = field(default_factory=dict)
    stray_backwards: int = 0
    own_steps: OwnSteps = field(default_factory=OwnSteps)
    children: int = 0
    threads_overlap: bool = False
    moved_unseen: bool = False
    """Whether weights with a gradient were changed by something else than an observed step."""
    streamed: Streamed | None = None
    cost: WindowCost | None = None
    needless: Needless = field(default_factory=Needless)
    lost: str = ""
    mode: Mode | None = None
    returned_at: Location | None = None
    """Where gradients were first returned, and not accumulated, of what no optimizer has."""
    why_not_followed: str = ""
    """Why the updates that the loop makes of returned gradients were not followed, where they were to be."""
    given_up: GivenUp | None = None
    """What the loop took from a data loader for windows that it could not fill, and never ran."""

    @classmethod
    def of(cls, observer: Observer, *, complete: bool) -> ObservedRun:
        """What was observed of a run so far; ``complete`` means that the loop ended by itself."""
        run = observer.run
        precision = run.losses.precision
        events, measured = run.journal.whole()
        updates, astray = observer.updates, observer.backwards.astray
        if updates.is_all:
            # No optimizer was there, and no update was seen: nothing used these gradients.
            astray += sum(isinstance(event, Backward) for event in events)
            events = ()
        return cls(
            Trace(events, complete=complete, precision=precision, from_start=run.journal.from_start),
            measured,
            run.measurer.replays,
            run.measurer.engine,
            observer.backwards.remarks,
            astray,
            updates.own_steps if updates.is_all else observer.backwards.own_steps,
            observer.children,
            observer.threads_overlap,
            run.awaited.any_changed() and not updates.is_all,
            run.measurer.streamed,
            run.measurer.costs.cost,
            observer.arrivals.averaging.needless,
            observer.comparer.trajectory.lost if observer.comparer.trajectory is not None else "",
            run.mode,
            observer.returned.asked_at,
            observer.returned.why_not,
            run.batches.unfilled.given_up() if complete and run.journal.from_start else None,
        )

    def portable(self) -> ObservedRun:
        """This object without the tensors and modules of the run, to be sent to another process.

        The records keep their events, which the trace holds too.
        """
        measured = [replace(m, records=[Record(r.event, None, {}, None) for r in m.records]) for m in self.measured]
        # The nodes of an autograd graph cannot leave their process.
        streamed = self.streamed and replace(self.streamed, reading=LossReading(()))
        return replace(self, measured=measured, own_steps=self.own_steps.portable(), streamed=streamed)

    def ledger(self) -> Ledger:
        """The ledger of this process alone."""
        ledger = fold(self.trace)
        overflowed = {measured.step for measured in self.measured if measured.has_overflowed}
        zero = {measured.step for measured in self.measured if measured.is_zero}
        scaled = {w.store for w in ledger.windows for e in w.with_fate(Fate.LIVE) if e.grad_factors} if zero else set()
        if not overflowed and not scaled:
            return ledger

        def marked(window: Window) -> Window:
            if window.step in overflowed:
                return replace(window, unknown=NOT_FINITE)
            hides = window.step in zero and window.store in scaled and window.with_fate(Fate.LIVE)
            return replace(window, unknown=window.unknown or ZERO) if hides else window

        return replace(ledger, windows=tuple(map(marked, ledger.windows)))

    def up_to(self, limits: Mapping[str, int]) -> ObservedRun:
        """The run up to the first step beyond its optimizer's number of steps in ``limits``, or all of it."""
        beyond = {own[limits[name]].step for name, own in self.by_optimizer().items() if len(own) > limits[name]}
        if not beyond:
            return self
        events = tuple(takewhile(lambda event: event not in beyond, self.trace.events))
        measured = list(takewhile(lambda m: m.step not in beyond, self.measured))
        trace = replace(self.trace, events=events, complete=False)
        return replace(self, trace=trace, measured=measured, given_up=None)

    def by_optimizer(self) -> dict[str, list[Measured]]:
        """The steps of each optimizer as they were measured here, in order."""
        found: dict[str, list[Measured]] = {}
        for measured in self.measured:
            found.setdefault(measured.step.optimizer, []).append(measured)
        return found


def up_to_the_stop(seen: Sequence[ObservedRun]) -> list[ObservedRun]:
    """The runs of all ranks, each up to the first step that a rank which was stopped did not reach.

    Ranks whose gradients are averaged make their steps together. A rank whose data has ended takes no part in the
    further steps of the others; but one that was stopped (by the user, a time limit, an exception) would have, with
    unknown gradients.
    """
    stopped = [own.by_optimizer() for own in seen if not own.trace.complete]
    if len(seen) == 1 or not stopped or not all(averages(own.trace) for own in seen):
        return list(seen)
    optimizers = {measured.step.optimizer for own in seen for measured in own.measured}
    limits = {name: min(len(steps.get(name, ())) for steps in stopped) for name in optimizers}
    return [own.up_to(limits) for own in seen]


def over_ranks(seen: Sequence[ObservedRun], rank: int, ledger: Ledger) -> list[Measured]:
    """The steps that ``rank`` measured, each combined with the others' measurements of the same step.

    ``ledger`` is the rank's, joined with theirs; others are included only for the steps that are joined.
    """
    shared = {window.step for window in ledger.windows if window.elsewhere}
    shared |= {measured.step for measured in seen[rank].measured if measured.shards > 1}
    shared -= {window.step for window in ledger.windows if window.unknown and window.unknown.cause is Cause.UNSHARED}
    counts: dict[str, int] = {}
    elsewhere = {r: own.by_optimizer() for r, own in enumerate(seen) if r != rank}
    found = []
    for own in seen[rank].measured:
        optimizer = own.step.optimizer
        number = counts.get(optimizer, 0)
        counts[optimizer] = number + 1
        if own.step not in shared:
            found.append(own)
            continue
        others = [(r, steps.get(optimizer, [])) for r, steps in elsewhere.items()]
        found.append(_together(own, [(r, steps[number]) for r, steps in others if number < len(steps)]))
    return found


def _together(own: Measured, others: Sequence[tuple[int, Measured]]) -> Measured:
    """One step as measured by all ranks; the gradient that is compared is that of the rank ``own``."""
    unmeasured = own.unmeasured or next((f"rank {r}: {m.unmeasured}" for r, m in others if m.unmeasured), "")
    together = replace(own, records=list(own.records), own_vectors=list(own.own_vectors), replays=list(own.replays))
    together.own_norms = list(own.own_norms)
    together.update = _update(own, [m for _, m in others])
    if own.shards and {own.shards, *(m.shards for _, m in others)} != {1 + len(others)}:
        unmeasured = unmeasured or f"not all of the {own.shards} ranks that the weights are sharded over are watched"
    together.unmeasured = unmeasured
    columns = [] if own.products is None else [own.products.matrix.clone()]
    for _, other in others:
        if other.products is None or not columns:
            continue
        if own.shards:
            # A gradient is the sum of all ranks' shards: each rank sketched its own in rows that are zero on others.
            for mine, theirs in ((0, 0), (1, 1), (own.after_clip, other.after_clip)):
                if mine is not None and theirs is not None:
                    columns[0][:, mine] += other.products.matrix[:, theirs]
        vectors, records = sum(c.shape[1] for c in columns), len(together.records)
        columns.append(other.products.matrix)
        together.records += other.records
        together.own_vectors += [vectors + v for v in other.own_vectors]
        together.own_norms += other.own_norms
        together.replays += [
            Replay([records + i for i in r.records], [vectors + v for v in r.vectors], r.kind, r.coefficients)
            for r in other.replays
        ]
        together.replay_problem = together.replay_problem or other.replay_problem
        proofs = [proof for proof in (together.proof, other.proof) if proof is not None]
        together.proof = worst(proofs) if proofs else None
        together.coupled_chunks = together.coupled_chunks or other.coupled_chunks
        together.normalises = together.normalises or other.normalises
        together.may_be_groups = together.may_be_groups or other.may_be_groups
        together.coupled_modules = sorted({*together.coupled_modules, *other.coupled_modules})
    together.products = None if unmeasured else _side_by_side(own, columns)
    return together


def _side_by_side(own: Measured, columns: Sequence[torch.Tensor]) -> InnerProducts:
    sampled = own.products is not None and own.products.sampled
    return InnerProducts(torch.cat(list(columns), dim=1), is_factor=True, sampled=sampled)


def _update(own: Measured, others: Sequence[Measured]) -> Update | None:
    """The update over all ranks' shards, or a rank's own where each has all weights.

    None where they did not all presume the same reference.
    """
    updates = [own.update, *(other.update for other in others)]
    known = [update for update in updates if update is not None and update.multiple is not None]
    first = known[0].multiple if known else None
    if first is None or len(known) < len(updates) or not all(math.isclose(u.multiple or 0.0, first) for u in known):
        return None
    if not own.shards:
        return known[0]
    wrong, moved = math.hypot(*(u.wrong for u in known)), math.hypot(*(u.moved for u in known))
    return Update(wrong, moved, first, sum(u.sampled for u in known))

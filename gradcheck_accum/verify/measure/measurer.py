"""Measures one step before it is made: its gradient, its micro-batches' own, and that of the replayed large batch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import nn

from gradcheck_accum.engine.calls_apart import parts_of, use_what_is_their_own
from gradcheck_accum.engine.cost import CostMeter
from gradcheck_accum.engine.independence import BY_CHANCE, NUMBERS, SAMPLE, UNSURE, Proof, Prover, summed, worst
from gradcheck_accum.engine.joining import LAYOUTS, Layout, may_be_groups
from gradcheck_accum.engine.one_sample import has_one_target, is_of_derivatives, is_without_samples_dimension
from gradcheck_accum.engine.prepared_data import own_preparations
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.engine.reference import (
    LARGE_BATCH,
    MICRO_BATCHES,
    SHARDED,
    STREAMED,
    CannotReplay,
    DoesNotFit,
    ReferenceEngine,
    coefficient,
)
from gradcheck_accum.engine.samples import holds_lists
from gradcheck_accum.engine.streaming import CoupledChunks, Streamed, Streamer
from gradcheck_accum.engine.tolerance import Addends, replay_tolerance, sketched_norm
from gradcheck_accum.ledger.events import Backward
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import NOT_FINITE
from gradcheck_accum.verify.book.clips import clipped, clipped_sketch
from gradcheck_accum.verify.book.gradient_sums import GradientSum, norms_of
from gradcheck_accum.verify.book.held import Held, vector_of
from gradcheck_accum.verify.book.records import Measured, Record, Replay, TermGradient
from gradcheck_accum.verify.measure.expected_weights import ExpectedWeights
from gradcheck_accum.verify.measure.terms_apart import terms_apart
from gradcheck_accum.verify.vectors.inner_products import (
    Made,
    Vector,
    combination,
    inner_products,
    is_finite,
    norm_over,
    on_devices_of,
)
from gradcheck_accum.verify.vectors.sharded import Shards
from gradcheck_accum.verify.vectors.sketch import Sketcher, joined

_Gradients = dict[int, torch.Tensor]

_Agrees = Callable[["_Found"], bool]

_SEARCHES = 2
"""Windows in which other layouts of a large batch are tried, before its model is considered batch-coupled."""


_PROOFS = 2
"""Windows in which independence of samples is tested, for each place of a backward."""

_EQUAL = 8
"""Windows in which it is tested again because the targets of those before were all equal."""

_PROVEN = 3
"""Micro-batches that are tested in such a window: each takes dozens of passes through the model."""


_IS_A_TASK = "each micro-batch is a separate task, whose loss includes a step on the weights"
_STEPS_ITSELF = "each micro-batch steps its weights by a gradient of its own data first"
_WEIGHTS_DIFFER = "its micro-batches ran with different weights, which were changed in between"


@dataclass(frozen=True, slots=True)
class _Found:
    """The gradients of a replay, by parameter, once or for each micro-batch; the rest is as in `Replay`.

    ``differs`` means that it is a large batch which was seen not to match the sum of its micro-batches.
    """

    kind: str
    gradients: Sequence[Sequence[torch.Tensor]]
    coefficients: tuple[float | None, ...] = ()
    differs: bool = False


@dataclass(slots=True)
class Measurer:
    """Fills in measurements; a window that several optimizers step on is replayed once for all of them."""

    engine: ReferenceEngine
    replays: bool
    shards: Shards | None = None
    """The sharded weights of the run; the weights of a reference run are never sharded."""
    sketcher: Sketcher = field(default_factory=Sketcher)
    costs: CostMeter = field(default_factory=CostMeter)
    streamed: Streamed | None = None
    """The last large batch that had to be computed in chunks, without its gradients."""
    _streamer: Streamer = field(init=False)
    _layouts: dict[Location, Layout] = field(default_factory=dict)
    _searches: Counter[Location] = field(default_factory=Counter)
    _proofs: dict[Location, list[Proof]] = field(default_factory=dict)
    _unsure: dict[Location, list[Measured]] = field(default_factory=lambda: defaultdict(list))
    _replayed: dict[tuple[Record, ...], tuple[_Found, list[_Gradients]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._streamer = Streamer(self.engine)

    def measure(
        self,
        measured: Measured,
        parameters: list[torch.Tensor],
        before_clip: dict[int, Held | None],
        used: dict[int, Held | None],
        everything: dict[int, torch.Tensor],
        expected: ExpectedWeights,
        *,
        same_weights: bool = True,
    ) -> list[Vector]:
        """Measure a step on ``parameters``, whose gradients are given as they were before any clip and as they are.

        ``everything`` are all watched parameters, by identity; ``expected`` are the weights read from the last windows.
        ``same_weights`` says whether all of its micro-batches ran with the weights that the model holds now.
        Returns the vectors that were measured, or their sketches: these two, the parts of the gradient, then the
        expected result of the clips and what was replayed.
        """
        keys = [id(p) for p in parameters]
        before = vector_of(before_clip, keys)
        unchanged = all(before_clip.get(key) is used.get(key) for key in keys)
        vectors: list[Vector] = [before, before if unchanged else vector_of(used, keys)]
        done = [_sketched_at(held, keys) for held in (before_clip, used)]
        for part, vector in _parts(measured, keys):
            vectors.append(vector)
            done.append({i for i, key in enumerate(keys) if key in part.sketched})
        if not _is_a_sum(vectors) and not is_finite(vectors[0]):
            measured.unmeasured, measured.has_overflowed = NOT_FINITE.words, True
            return []
        if measured.clips:
            clips = measured.clips
            after = clipped_sketch(before_clip, keys, clips) if done[0] else clipped(vectors[0], keys, clips)
            if after is not None:
                vectors.append(after)
                done.append(done[0])
                measured.after_clip = len(vectors) - 1
        if self.shards is not None and any(map(is_sharded, parameters)):
            held = {0, 1, measured.after_clip}
            measured.products, measured.shards = self.shards.products(vectors, held, parameters)
            measured.dtype = self.shards.dtype(parameters)
            measured.coupled_modules = coupled_modules([record.program for record in measured.records])
            measured.replay_problem = SHARDED
            return vectors
        measured.sketched = any(done)
        if measured.sketched:
            vectors = self._in_sketches(vectors, parameters, done)
        if self.replays and not same_weights:
            measured.replay_problem, measured.proof = _WEIGHTS_DIFFER, Proof(None)
        elif self.replays:
            self.replay(measured, expected.members, parameters, everything, vectors, expected)
            if expected.corrections is None:
                self._take_apart(measured, parameters, vectors)
        over_ranks = any(record.event.ranks != 1 for record in measured.records)
        if not measured.sketched and not over_ranks:
            measured.products = inner_products(vectors, parameters)
            return vectors
        sketches = vectors if measured.sketched else self._in_sketches(vectors, parameters, [set()] * len(vectors))
        products = self.sketcher.products(sketches, parameters)
        # Sketches of several ranks are concatenated when the run has ended, so they are kept unreduced.
        measured.products = products if over_ranks else products.reduced()
        return vectors

    def _in_sketches(
        self, vectors: Sequence[Vector], parameters: Sequence[torch.Tensor], done: Sequence[set[int]]
    ) -> list[Vector]:
        """The sketches of gradients, each computed once; those at the positions ``done`` are sketches already."""
        made: dict[int, Vector] = {}
        for vector, own in zip(vectors, done, strict=True):
            if id(vector) not in made:
                made[id(vector)] = self.sketcher.of_vector(vector, parameters, own)
        return [made[id(vector)] for vector in vectors]

    def forget(self, awaited: set[Record]) -> None:
        """Drop the replays of records that no other optimizer's step is awaited for."""
        self._replayed = {key: value for key, value in self._replayed.items() if awaited & set(key)}

    def replay(
        self,
        measured: Measured,
        members: set[Backward],
        parameters: list[torch.Tensor],
        everything: dict[int, torch.Tensor],
        vectors: list[Vector],
        expected: ExpectedWeights | None = None,
    ) -> None:
        """Replay a window with the current weights; the gradients are added to ``vectors``.

        ``expected`` are the weights in the ledger, given if the micro-batches' gradients were computed with these
        weights.
        """
        programs = [record.program for record in measured.records]
        coarsest = [p.coarsest for p in programs if p is not None and p.coarsest is not None]
        measured.compute_dtype = coarsest[0] if coarsest else measured.dtype
        measured.coupled_modules = coupled_modules(programs)
        only = programs[0] if len(programs) == 1 else None
        measured.ran_once = only is not None and only.runs_models_once
        chosen = [i for i, record in enumerate(measured.records) if record.event in members]
        places = _alike(measured.records, chosen)
        for own in places:
            known = [p for p in (programs[i] for i in own) if p is not None]
            if len(known) < len(own):
                measured.replay_problem = "part of the loss was computed in a way that could not be recorded"
                measured.proof = Proof(None)
                return
            prepared = own_preparations(known).values()
            measured.normalises |= any(how.whole is None for each in prepared for how in each)
            measured.may_be_groups |= may_be_groups(known)
            records = [measured.records[i] for i in own]
            where = records[0].event.where
            # All that these micro-batches reached is replayed at the first step that uses them: after it the
            # weights are no longer those that the gradients were computed with.
            reached = {k for record in records for k in record.squares}
            wanted = [p for k, p in everything.items() if k in reached]
            key = tuple(records)

            def agrees(found: _Found, own: list[int] = own, wanted: list[torch.Tensor] = wanted) -> bool:
                replayed = [_vector(one, parameters) for one in _by_key(found, wanted)]
                if measured.sketched:
                    replayed = [self.sketcher.of_vector(one, parameters) for one in replayed]
                again = Replay(own, list(range(len(replayed))), found.kind, found.coefficients)
                return expected is None or _agrees(measured, again, replayed, vectors, parameters, expected)

            is_new = key not in self._replayed
            if is_new:
                try:
                    found = self._run(measured, where, known, wanted, agrees)
                except CannotReplay as error:
                    measured.replay_problem = str(error)
                    measured.proof = Proof(None)
                    return
                self._replayed[key] = found, _by_key(found, wanted)
            found, gradients = self._replayed[key]
            first = len(vectors)
            for gradient in gradients:
                vector = _vector(gradient, parameters)
                vectors.append(self.sketcher.of_vector(vector, parameters) if measured.sketched else vector)
            again = Replay(own, list(range(first, len(vectors))), found.kind, found.coefficients)
            measured.replays.append(again)
            # Micro-batches that have another gradient as one large batch may have been joined in another way than the
            # loop would: samples that depend on each other do so within a micro-batch, too.
            # One that was made for another optimizer was compared in that one's weights alone.
            differs = not measured.coupled_modules and (found.differs if is_new else not agrees(found))
            is_open = expected is None or found.kind == MICRO_BATCHES or not _can_be_weighted(again, expected)
            if expected is not None and (is_open or differs):
                proof = self._prove(where, known, wanted, measured.compute_dtype)
                measured.proof = worst([proof] if measured.proof is None else [measured.proof, proof])
                if is_open and measured.proof.reason in (BY_CHANCE if len(places) == 1 else UNSURE):
                    self._unsure[where].append(measured)
                if proof.coupled is False:
                    # The same code ran in earlier windows: what they did not show was equal by chance.
                    for earlier in self._unsure.pop(where, ()):
                        earlier.proof = proof

    def _take_apart(self, measured: Measured, parameters: list[torch.Tensor], vectors: list[Vector]) -> None:
        """Add the gradients of the terms of a window's losses, if their sum is what the loop got."""
        apart = terms_apart(self.engine, measured.records, parameters)
        made = [_vector(dict(zip(map(id, parameters), t.gradients, strict=True)), parameters) for t in apart]
        if measured.sketched:
            made = [self.sketcher.of_vector(vector, parameters) for vector in made]
        parts = [(1.0, vectors[i]) for i in {*measured.own_vectors}]
        difference = combination([*((1.0, one) for one in made), *((-1.0, part) for _, part in parts)])
        if made and _is_rounding(measured, difference, combination(parts), measured.own_norms, parameters):
            measured.terms = [TermGradient(t.name, t.records, i) for i, t in enumerate(apart, len(vectors))]
            vectors += made

    def _prove(
        self, where: Location, programs: Sequence[Program], parameters: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> Proof:
        """What is known about the micro-batches of one place; these are tested if few others have been."""
        known = self._proofs.setdefault(where, [])
        tested = [proof for proof in known if proof.reason not in UNSURE]
        is_known = any(proof.coupled or proof.unit == SAMPLE for proof in tested)
        if len(tested) < _PROOFS and len(known) < _EQUAL and not is_known:
            prover = Prover.of(self.engine, parameters, dtype)
            asked: list[Proof] = []
            # What a loss adds up, each part of data of its own, is independent of each other.
            parts_of_each = [parts_of(program) for program in programs]
            parts = [part for own in parts_of_each for part in own]
            for part in parts[:_PROVEN]:
                asked.append(prover.prove(part, parts))
                if asked[-1].coupled:
                    break
            found = summed(asked)
            if found.coupled is False and use_what_is_their_own(programs, parts_of_each):
                found = Proof(None, reason=NUMBERS)
            known.append(replace(found, unit="") if found.unit == SAMPLE and len(parts) > len(programs) else found)
        return next((proof for proof in known if proof.unit == SAMPLE), None) or summed(known)

    def _run(
        self,
        measured: Measured,
        where: Location,
        programs: list[Program],
        parameters: list[torch.Tensor],
        agrees: _Agrees,
    ) -> _Found:
        @cache
        def one_by_one() -> _Found:
            return _Found(MICRO_BATCHES, [self.engine.one_by_one(p, parameters).gradients for p in programs])

        def is_repeatable() -> bool:
            return agrees(one_by_one())

        try:
            return self._one_batch(measured, where, programs, parameters, agrees, is_repeatable)
        except CoupledChunks as error:
            measured.coupled_chunks = error.distance, error.allowed
        except CannotReplay as error:
            measured.replay_problem = str(error)
        return one_by_one()

    def _one_batch(
        self,
        measured: Measured,
        where: Location,
        programs: list[Program],
        parameters: list[torch.Tensor],
        agrees: _Agrees,
        is_repeatable: Callable[[], bool],
    ) -> _Found:
        """The large batch in the layout of the loop's batches, in which it matches the sum of the micro-batches.

        No other layout matches by chance, so the model couples its samples only if none does.
        """
        if any(program.learns for program in programs):
            raise CannotReplay(_STEPS_ITSELF if programs[0].learns_from_itself else _IS_A_TASK)
        known = self._layouts.get(where)
        first: _Found | None = None
        problem = ""  # in words: the error itself would hold this frame, with the window's data, in a cycle
        # What other windows were found in comes first; in some, a number may look like a number of rows by chance.
        likely = () if known is None else (known, replace(known, counts_on=not known.counts_on))
        for layout in likely if self._searches[where] >= _SEARCHES else dict.fromkeys((*likely, *LAYOUTS)):
            try:
                found = self._in_layout(layout, programs, parameters, measured.compute_dtype)
            except (CoupledChunks, DoesNotFit):
                raise
            except CannotReplay as error:
                problem = problem or str(error)
                continue
            if agrees(found):
                self._layouts[where] = layout
                return found
            if layout == (known or Layout()):
                first = found
            if measured.coupled_modules:
                break
        if first is not None and any(program.looks_up_rows for program in programs):
            raise CannotReplay("its model looks up rows by index, and indices refer to different rows in a large batch")
        if first is not None and self._are_single_samples(programs, parameters):
            raise CannotReplay("joined, the rows of samples of which each has one target are no large batch")
        if first is not None and all(map(is_of_derivatives, programs)):
            raise CannotReplay("joined, the rows by which one number is differentiated may be those of several samples")
        if first is not None and all(program.is_one_sample for program in programs):
            raise CannotReplay("a layer is given each micro-batch as one sample, and the rows of several are no sample")
        if first is not None and any(map(holds_lists, programs)):
            raise CannotReplay("its model is given a list of samples, and those of a large batch are a longer list")
        if first is not None and any(program.by_position for program in programs):
            raise CannotReplay("the loop splits its batches by the positions of their samples")
        if first is None:
            raise CannotReplay(problem or "its data could not be concatenated")
        if self._searches[where] < _SEARCHES and not is_repeatable():
            raise CannotReplay("the model keeps state between its calls")
        self._searches[where] += 1
        if self._searches[where] >= _SEARCHES:
            self._layouts[where] = Layout()
        return replace(first, differs=True)

    def _are_single_samples(self, programs: list[Program], parameters: list[torch.Tensor]) -> bool:
        if len(programs) < 2 or not is_without_samples_dimension(programs):
            return False
        reading = self.engine.one_by_one(programs[0], parameters).reading
        return has_one_target(programs[0], programs, reading) is not False

    def _in_layout(
        self, layout: Layout, programs: list[Program], parameters: list[torch.Tensor], dtype: torch.dtype
    ) -> _Found:
        if self._streamer.size is None:
            try:
                whole = self.costs.large_batch(self.engine, programs, parameters, layout)
                return _Found(LARGE_BATCH, [whole.gradients], tuple(coefficient(whole.reading)))
            except DoesNotFit as error:
                if len(programs) == 1:
                    raise
                self._streamer.most = error.chunk
        streamed = self._streamer.large_batch(programs, parameters, layout, dtype)
        self.streamed = replace(streamed, gradients=[])
        return _Found(STREAMED, [streamed.gradients], tuple(coefficient(streamed.reading)))


def _by_key(found: _Found, parameters: Sequence[torch.Tensor]) -> list[_Gradients]:
    return [{id(p): g for p, g in zip(parameters, one, strict=True)} for one in found.gradients]


def _vector(gradients: _Gradients, parameters: Sequence[torch.Tensor]) -> Vector:
    """Replayed gradients, which may have been computed on another device, as one over ``parameters``."""
    return on_devices_of(parameters, [gradients.get(id(p)) for p in parameters])


def _agrees(
    measured: Measured,
    again: Replay,
    replayed: Sequence[Vector],
    vectors: Sequence[Vector],
    parameters: Sequence[torch.Tensor],
    expected: ExpectedWeights,
) -> bool:
    """Whether the replay equals the sum of the micro-batches' gradients, as far as weights and norms are known."""
    corrections, scales = expected.corrections, expected.of_replay(again)
    if corrections is None or scales is None:
        return True
    weights = {measured.own_vectors[i]: corrections[i] for i in again.records}
    reference = [(weight, vectors[index]) for index, weight in weights.items()]
    difference = combination([*zip(scales, replayed, strict=True), *((-weight, part) for weight, part in reference)])
    contributions = [abs(corrections[i]) * measured.own_norms[i] for i in again.records]
    if not math.isfinite(math.fsum(contributions)):
        # What has overflowed shows no difference; the window is not judged by it.
        return True
    return _is_rounding(measured, difference, combination(reference), contributions, parameters)


def _is_rounding(
    measured: Measured,
    difference: Vector,
    reference: Vector,
    contributions: list[float],
    parameters: Sequence[torch.Tensor],
) -> bool:
    """Whether a replay's ``difference`` from a sum of the loop's own gradients is within what rounding allows."""
    if measured.sketched:
        total = float(torch.linalg.vector_norm(joined(reference, parameters)))
        distance = sketched_norm(float(torch.linalg.vector_norm(joined(difference, parameters)))).low
    else:
        total, distance = norm_over(reference, parameters), norm_over(difference, parameters)
    addends = Addends(contributions, total)
    return distance <= total * replay_tolerance(addends, measured.dtype, measured.compute_dtype)


def _can_be_weighted(again: Replay, expected: ExpectedWeights) -> bool:
    """Whether the replay can be compared with the micro-batches' own gradients."""
    return expected.of_replay(again) is not None and expected.corrections is not None


def _sketched_at(held: dict[int, Held | None], keys: Sequence[int]) -> set[int]:
    """The positions at which a gradient is held as its sketch."""
    return {i for i, key in enumerate(keys) if (own := held.get(key)) is not None and own.sketched}


def _parts(measured: Measured, keys: Sequence[int]) -> list[tuple[GradientSum, Vector]]:
    """The sums that hold the records' gradients; one with an overflow is replaced by None, with infinite norms."""
    norms = norms_of([[r.squares[k] for k in keys if k in r.squares] for r in measured.records])
    vectors: dict[GradientSum, Vector] = {}
    for record, norm in zip(measured.records, norms, strict=True):
        if record.part is not None:
            vectors.setdefault(record.part, record.part.vector(keys))
            if not math.isfinite(norm):
                vectors[record.part] = [None] * len(keys)
    places = {part: position for position, part in enumerate(vectors, 2)}
    measured.own_vectors = [places[r.part] for r in measured.records if r.part is not None]
    spoilt = {r.part for r, norm in zip(measured.records, norms, strict=True) if not math.isfinite(norm)}
    measured.own_norms = [math.inf if r.part in spoilt else n for r, n in zip(measured.records, norms, strict=True)]
    return list(vectors.items())


def _is_a_sum(vectors: Sequence[Vector]) -> bool:
    """Whether the gradient consists of one part's own tensors, whose contributions are known to be finite."""
    same = (part for part in vectors[2:] if not isinstance(part, Made) and not isinstance(vectors[0], Made))
    return any(all(a is b for a, b in zip(vectors[0], part, strict=True)) for part in same)


def coupled_modules(programs: Sequence[Program | None]) -> list[str]:
    """The kinds of modules whose results depend on the whole batch."""
    modules = (m for program in programs if program is not None for top in program.modules for m in top.modules())
    return sorted({type(m).__name__ for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training})


def _alike(records: list[Record], chosen: list[int]) -> list[list[int]]:
    """Groups of the chosen records that can be one batch: different micro-batches of the same computation."""
    groups: list[list[int]] = []
    for index in chosen:
        record = records[index]
        for group in groups:
            first = records[group[0]]
            apart = all(records[i].event.micro_batch != record.event.micro_batch for i in group)
            if apart and (
                record.event.where == first.event.where
                or (
                    record.program is not None
                    and first.program is not None
                    and first.program.same_shape(record.program)
                )
            ):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups

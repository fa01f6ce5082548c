"""Measures one step, before it is made: its gradient beside its micro-batches' own and beside the replayed batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradcheck_accum.engine.cost import WindowCost, window_cost
from gradcheck_accum.engine.reference import LARGE_BATCH, MICRO_BATCHES, CannotReplay, ReferenceEngine
from gradcheck_accum.engine.tape import Program
from gradcheck_accum.verify.clipping import clipped
from gradcheck_accum.verify.measure import Vector, inner_products, is_finite
from gradcheck_accum.verify.parts import Part, norms_of
from gradcheck_accum.verify.records import Measured, Record, Replay

_Gradients = dict[int, torch.Tensor]


@dataclass(slots=True)
class Measurer:
    """Fills in measurements; a window that several optimizers step on is replayed once for all of them."""

    engine: ReferenceEngine
    replays: bool
    cost: WindowCost | None = None
    """What the first window that was run as one large batch costs both ways."""
    _replayed: dict[tuple[int, ...], tuple[str, list[_Gradients]]] = field(default_factory=dict)

    def measure(
        self,
        measured: Measured,
        members: set[int],
        parameters: list[torch.Tensor],
        before_clip: dict[int, torch.Tensor | None],
        used: dict[int, torch.Tensor | None],
        everything: dict[int, torch.Tensor],
    ) -> list[Vector]:
        """Measure a step on ``parameters``, whose gradients are given as they were before any clip and as they are.

        ``members`` are the identities of the backwards that belong to this window (a remainder that was thrown away
        does not), ``everything`` are all watched parameters, by identity. Returns the vectors that were measured:
        those two, the parts of the gradient, then what the clips should have left and what was replayed.
        """
        keys = [id(p) for p in parameters]
        vectors: list[Vector] = [[before_clip.get(k) for k in keys], [used.get(k) for k in keys]]
        vectors += _parts(measured, keys)
        if not _is_a_sum(vectors) and not is_finite(vectors[0]):
            measured.unmeasured = "the gradient is not finite"
            return []
        if measured.clips:
            expected = clipped(vectors[0], keys, measured.clips)
            if expected is not None:
                vectors.append(expected)
                measured.after_clip = len(vectors) - 1
        if self.replays:
            self.replay(measured, members, parameters, everything, vectors)
        measured.products = inner_products(vectors, parameters)
        return vectors

    def forget(self, awaited: set[int]) -> None:
        """Drop the replays of records that no other optimizer has yet to step on."""
        self._replayed = {key: value for key, value in self._replayed.items() if awaited & set(key)}

    def replay(
        self,
        measured: Measured,
        members: set[int],
        parameters: list[torch.Tensor],
        everything: dict[int, torch.Tensor],
        vectors: list[Vector],
    ) -> None:
        """Replay a window with the weights as they are; what it gives is added to ``vectors``."""
        programs = [record.program for record in measured.records]
        low = [p.lowest_dtype for p in programs if p is not None and p.lowest_dtype is not None]
        measured.compute_dtype = low[0] if low else measured.dtype
        measured.coupled_modules = _coupled(programs)
        chosen = [i for i, record in enumerate(measured.records) if id(record.event) in members]
        for own in _alike(measured.records, chosen):
            known = [p for p in (programs[i] for i in own) if p is not None]
            if len(known) < len(own):
                measured.replay_problem = "part of the loss was computed in a way that could not be recorded"
                return
            records = [measured.records[i] for i in own]
            key = tuple(id(record) for record in records)
            if key not in self._replayed:
                # All that these micro-batches reached is replayed at the first step that uses them: after it the
                # weights are no longer those that the gradients were computed with.
                reached = {k for record in records for k in record.squares}
                wanted = [p for k, p in everything.items() if k in reached]
                try:
                    self._replayed[key] = self._run(measured, known, wanted)
                except CannotReplay as error:
                    measured.replay_problem = str(error)
                    return
            kind, gradients = self._replayed[key]
            first = len(vectors)
            vectors.extend([gradient.get(id(p)) for p in parameters] for gradient in gradients)
            measured.replays.append(Replay(own, list(range(first, len(vectors))), kind))

    def _run(
        self, measured: Measured, programs: list[Program], parameters: list[torch.Tensor]
    ) -> tuple[str, list[_Gradients]]:
        keys = [id(p) for p in parameters]
        if not any(program.random for program in programs):
            try:
                gradient = self.engine.large_batch(programs, parameters)
                if self.cost is None and len(programs) > 1:
                    self.cost = window_cost(self.engine, programs, parameters)
                return LARGE_BATCH, [dict(zip(keys, gradient, strict=True))]
            except CannotReplay as error:
                measured.replay_problem = str(error)
        several = [self.engine.one_by_one(program, parameters) for program in programs]
        return MICRO_BATCHES, [dict(zip(keys, gradient, strict=True)) for gradient in several]


def _parts(measured: Measured, keys: Sequence[int]) -> list[Vector]:
    """The sums that the records' gradients are in; one with an overflow in it is left out, its norms infinite."""
    norms = norms_of([[r.squares[k] for k in keys if k in r.squares] for r in measured.records])
    vectors: dict[Part, Vector] = {}
    for record, norm in zip(measured.records, norms, strict=True):
        if record.part is not None:
            vectors.setdefault(record.part, record.part.vector(keys))
            if not math.isfinite(norm):
                vectors[record.part] = [None] * len(keys)
    places = {part: position for position, part in enumerate(vectors, 2)}
    measured.own_vectors = [places[r.part] for r in measured.records if r.part is not None]
    spoilt = {r.part for r, norm in zip(measured.records, norms, strict=True) if not math.isfinite(norm)}
    measured.own_norms = [math.inf if r.part in spoilt else n for r, n in zip(measured.records, norms, strict=True)]
    return list(vectors.values())


def _is_a_sum(vectors: Sequence[Vector]) -> bool:
    """Whether the gradient is one part's very tensors, whose contributions were seen to be finite."""
    return any(all(a is b for a, b in zip(vectors[0], part, strict=True)) for part in vectors[2:])


def _coupled(programs: Sequence[Program | None]) -> list[str]:
    """The kinds of modules whose results depend on the whole batch."""
    modules = (m for program in programs if program is not None for top in program.modules for m in top.modules())
    return sorted({type(m).__name__ for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training})


def _alike(records: list[Record], chosen: list[int]) -> list[list[int]]:
    """Those of the chosen records that can be one batch: other micro-batches of the same computation."""
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

"""A large batch that does not fit in memory: its gradient is summed in float64 over chunks that do.

The gradient of a mean over N units is Σ_c n_c/N ∇L_c over chunks c of n_c units, that of a sum Σ_c ∇L_c, if and only if
the samples are independent. This is verified: the largest chunk is also run as two halves, and the result is a
reference only if these give the gradient of the whole chunk, within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradcheck_accum.engine.joining import Layout, data_of, halves
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.prepared_data import own_preparations
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.reference import CannotReplay, DoesNotFit, Pass, ReferenceEngine, coefficient
from gradcheck_accum.engine.tolerance import Addends, replay_tolerance
from gradcheck_accum.ledger.events import Reduction

Chunk = Sequence[Program]


class CoupledChunks(CannotReplay):
    """A chunk's gradient differs from that of its halves: the model couples the samples of a batch."""

    def __init__(self, distance: float, allowed: float) -> None:
        self.distance, self.allowed = distance, allowed
        super().__init__(
            "the large batch does not fit in memory, and cannot be computed in chunks: a chunk's gradient differs from "
            f"the sum of its halves' by {distance:.3g} of its norm"
        )


@dataclass(frozen=True, slots=True)
class Streamed:
    """A large batch's gradient (in float64), the number of chunks, and the error of the halves in the proof.

    ``reading`` is that of the first chunk's loss, whose factors the gradient has.
    """

    gradients: list[torch.Tensor]
    reading: LossReading
    chunks: int
    proof: float
    estimated: bool = False
    """Whether it was never run as one batch, because of an estimate from its largest micro-batch."""


@dataclass(slots=True)
class Streamer:
    """Streams large batches, and remembers the size of chunks that fit, in micro-batches or parts of one."""

    engine: ReferenceEngine
    size: int | None = None
    most: int | None = None
    """The estimated maximal size of chunks, if there is an estimate."""

    def large_batch(
        self, programs: Chunk, parameters: Sequence[torch.Tensor], layout: Layout, dtype: torch.dtype
    ) -> Streamed:
        """The gradient of ``programs`` as one batch, whose lowest dtype is ``dtype``. Raises CannotReplay."""
        data = data_of(programs)
        if not data:
            raise CannotReplay("the large batch does not fit in memory, and its data cannot be split into chunks")
        if own_preparations(programs):
            raise CannotReplay("the large batch does not fit in memory, and its data is normalized over all its rows")
        pieces, size = list(programs), self.size or self.most or math.ceil(len(programs) / 2)
        while True:
            chunks = [pieces[i : i + size] for i in range(0, len(pieces), size)]
            try:
                result = self._stream(chunks, data, parameters, layout, dtype)
            except DoesNotFit:
                if size > 1:
                    size = math.ceil(size / 2)
                    continue
                parts = [halves(piece, data) or (piece,) for piece in pieces]
                if layout != Layout() or all(len(part) == 1 for part in parts):
                    raise
                pieces = [half for part in parts for half in part]
            else:
                # Micro-batches are split again for every window.
                self.size = size if len(pieces) == len(programs) else 1
                return result

    def _stream(
        self,
        chunks: Sequence[Chunk],
        data: Sequence[int],
        parameters: Sequence[torch.Tensor],
        layout: Layout,
        dtype: torch.dtype,
    ) -> Streamed:
        # If the largest chunk fits, all do, and if any can be split into halves, it can.
        largest = max(range(len(chunks)), key=lambda i: sum(len(piece.leaves[data[0]]) for piece in chunks[i]))
        tried = self.engine.large_batch(chunks[largest], parameters, layout)
        proof = self._prove(chunks[largest], tried, data, parameters, layout, dtype)
        first = tried if largest == 0 else self.engine.large_batch(chunks[0], parameters, layout)
        # A large batch has the factors of its first micro-batch.
        total = _Sum(like=first.reading, compared=tried)
        total.add(first)
        for position, chunk in enumerate(chunks[1:], 1):
            total.add(tried if position == largest else self.engine.large_batch(chunk, parameters, layout))
        return Streamed(total.gradients(), first.reading, len(chunks), proof, self.most is not None)

    def _prove(
        self,
        chunk: Chunk,
        whole: Pass,
        data: Sequence[int],
        parameters: Sequence[torch.Tensor],
        layout: Layout,
        dtype: torch.dtype,
    ) -> float:
        """How far a chunk's gradient is from that of its halves. Raises CoupledChunks if this is not rounding."""
        if len(chunk) > 1:
            middle = len(chunk) // 2
            parts: Sequence[Chunk] = [chunk[:middle], chunk[middle:]]
        else:
            cut = halves(chunk[0], data) if layout == Layout() else None
            if cut is None:
                raise CannotReplay(
                    "the large batch does not fit in memory, and chunks could not be shown to be equivalent"
                )
            parts = [[half] for half in cut]
        passes = [self.engine.large_batch(part, parameters, layout) for part in parts]
        together = _Sum(like=whole.reading, compared=whole)
        for one in passes:
            together.add(one)
        norm = _norm(whole.gradients)
        difference = [a.double() - b for a, b in zip(whole.gradients, together.gradients(), strict=True)]
        distance = _norm(difference) / norm if norm else 0.0
        addends = Addends([_norm(one.gradients) for one in passes], norm)
        allowed = replay_tolerance(addends, parameters[0].dtype, dtype)
        if not distance <= allowed:
            raise CoupledChunks(distance, allowed)
        return distance


class _Sum:
    """Σ s_c g_c in float64: the gradient of the whole batch with the factors that the loss ``like`` has.

    Units are relative to those of the pass ``like``.
    """

    def __init__(self, like: LossReading, compared: Pass) -> None:
        self._like = like
        self._compared = compared.reading
        self._shares: list[float] = []
        self._total = [torch.zeros_like(g, dtype=torch.float64) for g in compared.gradients]

    def add(self, one: Pass) -> None:
        """Add a chunk. Raises CannotReplay if its share is unknown, or differs between terms."""
        share, factor = self._share(one.reading)
        self._shares.append(share)
        if not share:
            # All its targets are ignored: a mean over no units.
            return
        for total, gradient in zip(self._total, one.gradients, strict=True):
            total.add_(gradient.double(), alpha=share * factor)

    def _share(self, reading: LossReading) -> tuple[float, float]:
        """A chunk's units, and what its factors must be multiplied by."""
        wanted, own = coefficient(self._like), coefficient(reading)
        kinds = [term.reduction for term in reading.terms]
        known = bool(own) and len(own) == len(wanted) == len(self._compared.terms) and all((*wanted, *own))
        # Sums are added as they are, means weighted by their units; terms without units are shared by all chunks.
        if not known or (Reduction.SUM in kinds and len(set(kinds)) > 1):
            raise CannotReplay("the large batch does not fit in memory, and the shares of its chunks are unknown")
        shares = [
            term.units / other.units if term.units is not None and other.units else math.nan
            for term, other in zip(reading.terms, self._compared.terms, strict=True)
            if term.reduction is Reduction.MEAN
        ] or [1.0]
        factors = [(w or 0.0) / (c or 1.0) for w, c in zip(wanted, own, strict=True)]
        if any(not math.isclose(n, all_[0], rel_tol=1e-6) for all_ in (shares, factors) for n in all_):
            raise CannotReplay(
                "the large batch does not fit in memory, and the terms of its loss count different units"
            )
        return shares[0], factors[0]

    def gradients(self) -> list[torch.Tensor]:
        """The gradient of the whole batch, from the chunks that were added."""
        if all(term.reduction is Reduction.SUM for term in self._like.terms):
            return self._total
        return [total / math.fsum(self._shares) for total in self._total]


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors))

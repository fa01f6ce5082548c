"""What is kept of a run: one record for each backward, one measurement for each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gradcheck_accum.engine.independence import Proof
from gradcheck_accum.engine.late_counts import Presumed
from gradcheck_accum.engine.program import Program
from gradcheck_accum.ledger.events import Backward, Reason, Step
from gradcheck_accum.results.verdict import ByParameter
from gradcheck_accum.verify.book.clips import ClipCall
from gradcheck_accum.verify.book.given_data import NOTHING_GIVEN, Given
from gradcheck_accum.verify.book.gradient_sums import GradientSum
from gradcheck_accum.verify.provenance.lines import CallChain
from gradcheck_accum.verify.vectors.inner_products import InnerProducts


@dataclass(slots=True, eq=False)
class Record:
    """One backward, the part that its gradients went into, and how to run it again.

    ``squares`` are ‖·‖² of its own gradients, by parameter identity, without a grad scaler's scale. ``changed`` is the
    reason if they were changed on their way into ``.grad``. ``called_from`` is the call chain in the user's code, empty
    where that is not known. ``moves`` is how often the weights had been moved by then
    (`gradcheck_accum.verify.measure.saved_weights`). ``presumed`` is how many targets its loss is presumed to have
    counted, until it is asked. ``unread`` are the parameters whose gradients were not read.
    """

    event: Backward
    part: GradientSum | None
    squares: Mapping[int, torch.Tensor]
    program: Program | None
    changed: Reason | None = None
    called_from: CallChain = ()
    given: Given = NOTHING_GIVEN
    moves: int = 0
    presumed: Presumed | None = None
    unread: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Update:
    """What a step did to the weights, compared with what it would have done with the reference gradient.

    ``wrong`` is |Δw - Δw_ref| and ``moved`` |Δw_ref|. Where other ranks have a part of the reference, it was presumed
    to be ``multiple`` times the gradient; this is checked when all ranks' gradients are known.
    """

    wrong: float
    moved: float
    multiple: float | None = None
    sampled: int = 0
    """The number of elements of the weights that were compared, 0 where all were."""

    @property
    def error(self) -> float | None:
        """|Δw - Δw_ref| / |Δw_ref|, None where Δw_ref is zero."""
        return self.wrong / self.moved if self.moved else (0.0 if self.wrong == 0 else None)


@dataclass(slots=True)
class Replay:
    """The replayed gradient of the records of one place in the source; ``vectors`` are indices into the inner products.

    ``coefficients`` are what the terms of a large batch's loss were multiplied by, None where that is unknown: a count
    of samples among them may be the large batch's, or still that of the first micro-batch.
    """

    records: list[int]
    vectors: list[int]
    kind: str
    coefficients: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TermGradient:
    """The gradient of the terms called ``name`` of some records, by a ``vector``: they have units and factors alike."""

    name: str
    records: tuple[int, ...]
    vector: int


@dataclass(slots=True)
class Measured:
    """The measurements of one optimizer step; vector 0 is the gradient before any clip, 1 the one that was used.

    ``own_vectors`` are, for each record, the index of the vector that holds its gradient, summed with those of other
    records of its part; ``own_norms`` are ‖g_j‖. ``presumed`` are the vectors that make up the reference, each with its
    factor, as far as the run had shown it when the step was made: ``update``, ``drift`` and ``by_parameter`` were
    measured with it. ``update`` is None where the reference's is unknown; ``too_large`` means that this is because only
    some elements could be compared, and the optimizer may not be elementwise. ``drift`` is the distance of the weights
    from those of a reference run, where one was requested. ``coupled_chunks`` is the distance between a part of a large
    batch that did not fit in memory and the sum of its halves, and the smaller one that rounding allows; None where the
    distance is not larger. ``normalises`` means that micro-batches normalized data over their own rows, which weights
    by units do not undo. ``may_be_groups`` means that each micro-batch may be one sample (a sequence, a query), as far
    as the data shows, ``ran_once`` that the only backward is of losses for which each model ran once. ``proof`` is what
    was shown for single micro-batches where no large batch could be compared. ``terms`` are the terms' own gradients,
    computed where those of one loss have different weights.
    ``unmeasured`` is why there are no ``products``, ``has_overflowed`` whether that is because a gradient is not
    finite. ``sketched`` means that the vectors are sketches. ``shards`` is the number of ranks that the weights are
    sharded over, 0 where they are not: the gradients' vectors then hold only this rank's shards, those of the
    micro-batches the rows of all shards.
    """

    step: Step
    records: list[Record]
    products: InnerProducts | None = None
    own_vectors: list[int] = field(default_factory=list)
    own_norms: list[float] = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype = torch.float32
    device: str = ""
    clips: list[ClipCall] = field(default_factory=list)
    after_clip: int | None = None
    replays: list[Replay] = field(default_factory=list)
    terms: list[TermGradient] = field(default_factory=list)
    replay_problem: str = ""
    coupled_chunks: tuple[float, float] | None = None
    proof: Proof | None = None
    coupled_modules: list[str] = field(default_factory=list)
    normalises: bool = False
    may_be_groups: bool = False
    ran_once: bool = False
    presumed: tuple[tuple[int, float], ...] = ()
    update: Update | None = None
    too_large: bool = False
    drift: float | None = None
    by_parameter: ByParameter | None = None
    unmeasured: str = ""
    has_overflowed: bool = False
    sketched: bool = False
    shards: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether the gradient is known to be zero, which one rank cannot tell from its shard alone."""
        return self.products is not None and not self.shards and self.products.norm(0) == 0

"""Whether the samples of a micro-batch are independent, tested on the micro-batch itself.

The loss of independent samples is a sum with one term per sample. Replacing a sample then changes the gradient by the
same amount whatever the others are: for two groups of samples A and B, replaced by A' and B',

    g(A, B) - g(A', B) - g(A, B') + g(A', B') = 0

(the gradients multiplied by the units that their means divide by). The test neither joins nor splits data, so it also
works for data of unequal lengths, and for code with a hard-coded batch size. The groups are chosen so that they
separate any two of up to sixteen samples, and most pairs of more. Rows that are less than a sample (the tokens of
packed sequences, the nodes of graphs) are tested in pairs: those of one sample may depend on each other, but if all of
them do, so do the samples.

A micro-batch of one sample is joined with a modified copy of itself instead, which has the same length.

A coupling that is smaller than rounding errors, or that no tried replacement activates (a hinge that is flat here), is
not detected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import torch
from torch import nn

from gradcheck_accum.engine.gathered_samples import gather_samples
from gradcheck_accum.engine.joining import LAYOUTS, are_offsets, may_be_groups
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.one_sample import (
    has_one_target,
    is_of_derivatives,
    is_without_samples_dimension,
    may_be_of_a_batch,
    may_write_its_size,
)
from gradcheck_accum.engine.prepared_data import own_preparations
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.reference import CannotReplay, Pass, ReferenceEngine, Refused, coefficient
from gradcheck_accum.engine.samples import (
    Samples,
    along_second,
    by_item,
    by_row,
    by_sample,
    data_in,
    inputs_of,
    own_leaves,
    stand_before_states,
)
from gradcheck_accum.engine.tolerance import Addends, replay_tolerance
from gradcheck_accum.engine.twins import is_float, rolled, with_own, without_draws
from gradcheck_accum.ledger.events import Reduction

MOST_SPLITS = 4
"""How many ways a micro-batch's samples are split in two: enough to separate any two of sixteen."""

TASK, SAMPLE = "task", "sample"

ONE_SAMPLE = "each of its micro-batches is one sample"
MIXED = "some of its samples influence each other and others do not"
TARGETS_ALONE = "the data that its model was given is not known"
PREPARED = (
    "data of its loss was normalized over the rows of its micro-batch, or computed from all of them in another way "
    "(added up along an episode): unless they are one sample, compute it for the window as a whole, before it is split"
)
ROWLESS = "its data is sparse or nested, and rows of such data are not replaced"
UNMOVED = "replacing its samples does not change its gradient"
DERIVED = (
    "its loss is computed from one number for all rows of a micro-batch and its derivatives by these rows, so they may "
    "be parts of one sample (the atoms of a molecule)"
)
STEPS = (
    "its rows depend on each other, but all of its data has a second dimension along which nothing does: the rows may "
    "be the steps of sequences, and the samples along the second"
)
OF_ITEM = (
    "its rows depend on each other, but a data loader gave them as one item of its data set, so they may be parts of "
    "one sample: let the data loader put samples together (batch_size) if they are samples"
)
OF_ONE_ROW = (
    "all rows of a micro-batch were made of one row that it alone has, so they may be parts of one sample (the answers "
    "to one prompt)"
)
SHIFTED = (
    "its rows depend on each other, but the targets of its rows are the rows that follow them, so they may be the "
    "steps of one sequence: give its data a dimension for samples if they are samples"
)
RELATED = "its data says which of its rows belong together, so they may be parts of one sample"

MAY_BE_PARTS = (OF_ITEM, OF_ONE_ROW, SHIFTED)
"""Reasons for which rows that a micro-batch normalizes over may be parts of one sample."""

UNSURE_TARGETS = (
    "each of its micro-batches may be one sample, but what it is compared with may be a constant, or may have been "
    "computed from its rows: run more windows"
)
UNSURE_ROWS = (
    "a layer was given all rows of each micro-batch as one sample, but their numbers are equal, as if they were "
    "samples: give it its dimension for samples"
)
CUT_ROWS = (
    "a layer was given all rows of each micro-batch as one sample, but they are some rows of a larger tensor, or were "
    "stacked by a data loader, and may be samples: give it its dimension for samples"
)
OF_ROWS = (
    "its target was reduced from as many rows as every micro-batch has, and may be the mean of its samples' targets: "
    "compare each row with its own"
)
UNSURE = (UNSURE_TARGETS, UNSURE_ROWS)
"""Reasons that later windows are asked again for."""

BY_CHANCE = (*UNSURE, ONE_SAMPLE, UNMOVED)
"""Reasons that hold for a window's own data alone: what other windows show of the same code holds for it too."""

OWN_STEP = (
    "its weights were stepped by a gradient of the very data that its loss is of, which has the rows of a micro-batch "
    "alone: they depend on each other, and may be those of one task or of a batch"
)
NUMBERS = "its loss is computed with numbers that depend on its data, so no other samples can take their place"

_PAIRED_ROWS = 4
"""How many rows are tested in pairs, if rows may be less than a sample."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a micro-batch's samples were shown to be ``coupled`` (True), independent (False), or neither (None).

    ``distance`` is the largest deviation from 0, relative to the gradient's norm, and ``allowed`` the part of it that
    rounding explains. ``reason`` says why nothing was shown. ``unit`` is what each micro-batch is one of, so that no
    test was needed: a task, whose samples are not units of the mean over tasks, or a sample.
    """

    coupled: bool | None
    distance: float = 0.0
    allowed: float = 0.0
    reason: str = ""
    unit: str = ""


def summed(asked: Sequence[Proof]) -> Proof:
    """The combined result for similar micro-batches: coupled if any is, else independent if any is.

    Where it is not known along which dimension one has its samples, it may be coupled.
    """
    coupled = [proof for proof in asked if proof.coupled]
    may_be = [proof for proof in asked if proof.coupled is None and proof.reason == STEPS]
    for found in (coupled, may_be, [proof for proof in asked if proof.coupled is False]):
        if found:
            return max(found, key=lambda proof: proof.distance)
    return asked[0] if asked else Proof(None, reason=ONE_SAMPLE)


def worst(asked: Sequence[Proof]) -> Proof:
    """The combined result for different losses of one step: all of them must be independent."""
    for coupled in (True, None):
        found = [proof for proof in asked if proof.coupled is coupled]
        if found:
            return max(found, key=lambda proof: proof.distance)
    return max(asked, key=lambda proof: proof.distance)


class _Unequal(CannotReplay):
    """The sample weights of two losses cannot be compared."""


@dataclass(frozen=True, slots=True)
class Prover:
    """Tests samples with passes of ``engine``, whose gradients are those of ``parameters``."""

    engine: ReferenceEngine
    parameters: Sequence[torch.Tensor]
    dtype: torch.dtype

    @classmethod
    def of(cls, engine: ReferenceEngine, parameters: Sequence[torch.Tensor], dtype: torch.dtype) -> Prover:
        """A prover that computes in float32 if the loop's lowest dtype, ``dtype``, has fewer digits."""
        low = engine.dtype is None and dtype in (torch.bfloat16, torch.float16)
        exact = replace(engine, dtype=torch.float32) if low else engine
        return cls(exact, parameters, exact.dtype or dtype)

    def prove(self, program: Program, others: Sequence[Program]) -> Proof:
        """What can be shown about one micro-batch, given the ``others`` of its window."""
        if program.learns:
            return Proof(None, reason=OWN_STEP) if program.learns_from_itself else Proof(False, unit=TASK)
        if all(isinstance(leaf, nn.Parameter) for leaf in program.leaves):
            # The loss depends on weights alone: there are no samples.
            return Proof(False)
        try:
            if _is_one_vector(program, others):
                return Proof(False, unit=SAMPLE)
            base = self.engine.one_by_one(program, self.parameters)
            own = own_leaves(program, others)
            is_one = has_one_target(program, others, base.reading)
            has_parts = is_one is not False and is_without_samples_dimension([program, *others])
            is_open = has_parts and may_be_of_a_batch(program, others)
            if is_one and has_parts:
                return Proof(None, reason=OF_ROWS) if is_open else Proof(False, unit=SAMPLE)
            cut = any(one.may_have_samples for one in (program, *others))
            if program.is_one_sample and not cut and may_be_groups([*others]):
                return Proof(False, unit=SAMPLE)
            found = self._of_items(program, others, base) or self._of_samples(
                program, data_in(program, others), own, base
            )
            found = found if found.coupled is not None else self._of_twins(program, own, found)
            if found.coupled is not False and has_parts:
                return Proof(None, reason=OF_ROWS if is_open else UNSURE_TARGETS)
            if found.coupled and program.is_one_sample:
                return Proof(None, reason=CUT_ROWS if cut else UNSURE_ROWS)
            if found.coupled and (_relates_rows(program) or _begins_rows(program, others)):
                return Proof(None, reason=RELATED)
            if found.coupled and program.is_one_item:
                return Proof(None, reason=OF_ITEM)
            if found.coupled and is_of_derivatives(program):
                return Proof(None, reason=DERIVED)
            if found.coupled and (along := self._along_second(program, others, own, base)) is not None:
                return along
            if found.coupled and _are_steps(program):
                return Proof(None, reason=SHIFTED)
            if (found.coupled or _is_normalised(program, others)) and _is_made_of_one_row(program, others):
                return Proof(None, reason=OF_ONE_ROW)
            if found.coupled and _computes_with_its_data(program, others):
                return Proof(None, reason=NUMBERS)
            if not found.coupled and _is_normalised(program, others):
                # Data that was normalized over the batch was only tested as it came out of that.
                return Proof(None, reason=PREPARED)
            is_alone = found.coupled is None and is_one and not may_write_its_size(program)
            return Proof(False, unit=SAMPLE) if is_alone and self._is_refused(program, own) else found
        except CannotReplay as error:
            return Proof(None, reason=str(error))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            return Proof(None, reason=ROWLESS if _holds_rowless(program) else _own_failure(error))

    # Replacing samples

    def _of_items(self, program: Program, others: Sequence[Program], base: Pass) -> Proof | None:
        """What is shown of lists whose items are independent; None if none are, as they may be parts of one sample."""
        proofs = (self._of_groups(samples, base) for samples in by_item(program, others))
        return next((proof for proof in proofs if proof.coupled is False), None)

    def _of_samples(self, program: Program, data: Sequence[int], own: Sequence[int], base: Pass) -> Proof:
        """Tests samples at their possible places in the leaves: independent if they are at any of these."""
        found: list[Proof] = []
        for samples in by_sample(program, data, own):
            proof = self._of_all(samples, data, base)
            if proof.coupled is False:
                return proof
            if not samples.may_be_parts:
                found.append(proof)
        return next((proof for proof in found if proof.coupled), found[0] if found else Proof(None, reason=ONE_SAMPLE))

    def _along_second(
        self, program: Program, others: Sequence[Program], own: Sequence[int], base: Pass
    ) -> Proof | None:
        """What is shown of a micro-batch whose rows are coupled, if nothing is along the second dimension of its data.

        Rows of samples and steps of sequences look the same there, unless the rest of the window tells the two apart.
        """
        samples = along_second(program, data_in(program, others), own)
        found = None if samples is None else self._of_groups(samples, base)
        if samples is None or found is None or found.coupled is not False:
            return None
        return found if stand_before_states(samples, others) else replace(found, coupled=None, reason=STEPS)

    def _of_all(self, samples: Samples, data: Sequence[int], base: Pass) -> Proof:
        """Tests samples in the leaves that contain them, and the rows of all other leaves."""
        leaves, held = samples.program.leaves, samples.leaves
        proofs = [self._of_leaves(samples, base, with_integers={*data} <= held)]
        if proofs[0].coupled:
            proofs = [self._of_neighbours(samples, base, proofs[0])]
        for leaf in sorted({*data} - held, key=lambda i: not is_float(leaves[i])):
            # Integers next to data may be indices into it, which cannot be replaced by other integers.
            known = any(proof.coupled is not None for proof in proofs)
            seen = any(leaves[i].dim() > 1 for i in data if i in held or is_float(leaves[i]))
            rows = by_row(samples.program, leaf)
            if rows is not None and (is_float(leaves[leaf]) or not (known and seen)):
                proofs.append(self._of_rows(rows, base, whole=False))
        return summed(proofs)

    def _of_neighbours(self, samples: Samples, base: Pass, coupled: Proof) -> Proof:
        """Tests again samples of which some are coupled: each may turn out to be part of a sample."""
        leaves, first = samples.program.leaves, samples.leaves - {h.leaf for h in samples.held if h.axis}
        floats = samples.only(is_float)
        found = self._of_rows(floats if floats.leaves else samples, base, whole=True)
        if found.reason != MIXED:
            return coupled
        # Terms of parts of a batch have fewer rows than it has, too, though no samples were made of several rows.
        parted = samples.program.by_position and not samples.program.looks_up_rows
        if not parted and any(term.rows and term.rows < samples.count for term in base.reading.terms):
            return replace(found, coupled=False, reason="")
        # Rows are looked up (the nodes of a graph by its edges): possibly those of one sample.
        looked_up = any(not is_float(leaves[i]) for i in inputs_of(samples.program) - first)
        return found if looked_up or samples.program.by_position else coupled

    def _of_leaves(self, samples: Samples, base: Pass, *, with_integers: bool) -> Proof:
        """Tests samples in all their leaves, or in those that can be replaced separately."""
        proof = self._of_groups(samples, base) if with_integers else Proof(None, reason="its data has several lengths")
        if proof.coupled is False:
            return proof
        own = samples.program.leaves
        parts = [
            samples.only(is_float),
            samples.only(lambda leaf: not is_float(leaf) and leaf.dim() > 1 and not _picks(leaf, own)),
        ]
        alone = [self._of_groups(part, base) for part in parts if part.leaves]
        if not any(part.leaves for part in parts):
            return proof
        return summed(alone)

    def _of_groups(self, samples: Samples, base: Pass) -> Proof:
        """Tests samples split into two groups, in several ways."""

        changed = self._changed(samples)
        asked: list[Proof] = []
        for group in _groups(samples.count):
            others = sorted({*range(samples.count)} - {*group})
            asked.append(self._ask(samples, base, group, others, changed))
            if asked[-1].coupled or (asked[-1].coupled is None and asked[-1].reason != UNMOVED):
                return asked[-1]
        return summed(asked)

    def _of_rows(self, samples: Samples, base: Pass, *, whole: bool) -> Proof:
        """Tests rows in pairs: coupled if every row is, directly or through others; otherwise independent.

        If rows are ``whole`` samples, a mixed result shows nothing, as some may belong together.
        """
        number = samples.count
        chosen = sorted({0, 1, number // 2, number - 1})[:_PAIRED_ROWS]
        changed = self._changed(samples)
        groups = {row: {row} for row in chosen}
        asked: list[Proof] = []
        for one, other in combinations(chosen, 2):
            proof = self._ask(samples, base, [one], [other], changed)
            asked.append(proof)
            if proof.coupled:
                joint = groups[one] | groups[other]
                groups.update(dict.fromkeys(joint, joint))
        if all(proof.coupled is None for proof in asked):
            return asked[0] if asked else Proof(None)
        joined = [proof for proof in asked if proof.coupled]
        apart = [proof for proof in asked if proof.coupled is False]
        if len(groups[chosen[0]]) == len(chosen):
            return max(joined, key=lambda proof: proof.distance)
        if not apart:
            return next(proof for proof in asked if proof.coupled is None)
        found = max(apart, key=lambda proof: proof.distance)
        return replace(found, coupled=None, reason=MIXED) if whole and joined else found

    def _changed(self, samples: Samples) -> Callable[[Sequence[int]], Pass]:
        known: dict[tuple[int, ...], Pass] = {}

        def run(group: Sequence[int]) -> Pass:
            key = tuple(group)
            if key in known:
                return known[key]
            found = self.engine.one_by_one(samples.replaced(group), self.parameters)
            # As large as the model: only passes that are needed again are kept.
            if len(group) in (1, samples.count):
                known[key] = found
            return found

        return run

    def _ask(
        self,
        samples: Samples,
        base: Pass,
        one: Sequence[int],
        other: Sequence[int],
        changed: Callable[[Sequence[int]], Pass],
    ) -> Proof:
        """Whether the effect of replacing one group depends on whether the other has been replaced."""
        try:
            passes = [base, changed(one), changed(other), changed(sorted((*one, *other)))]
            shares = [_share(a_pass.reading, base.reading) for a_pass in passes]
        except CannotReplay as error:
            return Proof(None, reason=str(error))
        weighted = list(zip(passes, shares, strict=True))
        noise, norm = self._noise(weighted), _norm(base.gradients)
        if not all(_distance([(base, 1.0), (a_pass, -share)]) > noise for a_pass, share in weighted[1:3]) or not norm:
            return Proof(None, reason=UNMOVED)
        signs = (1.0, -1.0, -1.0, 1.0)
        found = _distance([(p, s * sign) for (p, s), sign in zip(weighted, signs, strict=True)])
        if found <= noise and not samples.leaves & inputs_of(samples.program):
            # A squared error is linear in its target, even if the other samples influence the result.
            return Proof(None, reason=TARGETS_ALONE)
        return Proof(not found <= noise, found / norm, noise / norm)

    def _noise(self, weighted: Sequence[tuple[Pass, float]]) -> float:
        norms = [abs(share) * _norm(a_pass.gradients) for a_pass, share in weighted]
        most = max(norms)
        return most * replay_tolerance(Addends(norms, most), weighted[0][0].gradients[0].dtype, self.dtype)

    # Joining a micro-batch with a modified copy of itself

    def _of_twins(self, program: Program, own: Sequence[int], before: Proof) -> Proof:
        """Tests a micro-batch and a modified copy as one batch."""
        twin = rolled(program, own)
        if twin is None or all(torch.equal(twin.leaves[i], program.leaves[i]) for i in inputs_of(program)):
            return before
        apart = [self.engine.one_by_one(one, self.parameters) for one in (program, twin)]
        found: list[Proof] = []
        problem = before.reason
        for layout in LAYOUTS:
            try:
                together = self.engine.large_batch([with_own(program, own), twin], self.parameters, layout)
                proof = self._together(apart, together)
            except CannotReplay as error:
                problem = problem or str(error)
                continue
            if proof.coupled is False:
                return proof
            found += [proof] if proof.coupled else []
        # Joining in the wrong order makes a difference too, so this is only known of samples that have no order.
        known = found and before.reason == ONE_SAMPLE and not program.by_position
        return found[0] if known else Proof(None, reason=problem)

    def _is_refused(self, program: Program, own: Sequence[int]) -> bool:
        """Whether the script's code accepts no batch of several samples, in any layout."""
        twin = rolled(program, own)
        if twin is None:
            return False
        # Which random numbers are drawn does not matter here.
        pair = [without_draws(one) for one in (with_own(program, own), twin)]
        refused = False
        for layout in LAYOUTS:
            try:
                self.engine.large_batch(pair, self.parameters, layout)
                return False
            except Refused:
                refused = True
            except CannotReplay:
                continue
        return refused

    def _together(self, own: Sequence[Pass], together: Pass) -> Proof:
        shares = [_share(one.reading, together.reading) for one in own]
        weighted = [*zip(own, shares, strict=True)]
        noise, norm = self._noise(weighted), _norm(together.gradients)
        if not norm or not _distance([(own[0], 1.0), (own[1], -1.0)]) > noise:
            return Proof(None, reason=UNMOVED)
        found = _distance([(together, -1.0), *weighted])
        return Proof(not found <= noise, found / norm, noise / norm)


def _is_one_vector(program: Program, others: Sequence[Program]) -> bool:
    """Whether a micro-batch is one sample, a vector, that was not reduced from the rows of a batch.

    Its targets may have rows of their own (the points of a set), which are no samples if their numbers are unlike.
    """
    if not program.is_of_vectors or program.in_turn:
        return False
    return all(program.leaves[i].dim() < 2 for i in data_in(program, others)) or may_be_groups([*others])


def _relates_rows(program: Program) -> bool:
    """Whether a model was given data that relates rows to each other: edges that index them, or a square matrix."""
    shapes = [program.leaves[i].shape for i in inputs_of(program)]
    # The rows themselves may have as many columns as there are rows.
    return program.looks_up_rows or any(
        matrix[:2] == (rows[0], rows[0]) for matrix, rows in permutations(shapes, 2) if rows
    )


def _are_steps(program: Program) -> bool:
    """Whether a model was given rows alone, and their targets are the same rows in memory, one or more further on.

    Data that may have samples along a second dimension shows by itself where they are.
    """
    inputs = inputs_of(program)
    given = [program.leaves[i] for i in inputs if program.leaves[i].dim() < (3 if is_float(program.leaves[i]) else 2)]
    targets = [leaf for i, leaf in enumerate(program.leaves) if i not in inputs and leaf.dim()]
    return len(given) == len(inputs) and any(_follows(target, own) for own in given for target in targets)


def _follows(target: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether a tensor holds the rows of another one in memory from a later one on."""
    if not given.dim() or target.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
        return False
    if target.shape[1:] != given.shape[1:] or target.stride() != given.stride() or not given.stride(0):
        return False
    rows, rest = divmod(int(target.storage_offset() - given.storage_offset()), int(given.stride(0)))
    return not rest and 0 < rows < len(given)


def _is_made_of_one_row(program: Program, others: Sequence[Program]) -> bool:
    """Whether all that a model was given was made of one row, and of another one than in another micro-batch."""
    given = [program.repeated.get(i) for i in inputs_of(program) & {*data_in(program, others)}]
    if not given or any(row is not given[0] for row in given):
        return False
    of_others = (row for other in others if other is not program for row in other.repeated.values())
    return given[0] is not None and any(not _are_equal(row.values, given[0].values) for row in of_others)


def _are_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)


def _begins_rows(program: Program, others: Sequence[Program]) -> bool:
    """Whether the data contains the offsets where groups of rows begin in a longer tensor (bags of words)."""
    alike = [program, *(other for other in others if other is not program and program.same_shape(other))]
    return any(are_offsets([one.leaves[i] for one in alike]) for i in range(len(program.leaves)))


def _computes_with_its_data(program: Program, others: Sequence[Program]) -> bool:
    """Whether the loss uses other constants than that of a micro-batch with inputs of the same sizes."""
    given = _sizes_of_inputs(program)
    return any(other.constants != program.constants and _sizes_of_inputs(other) == given for other in others)


def _sizes_of_inputs(program: Program) -> list[torch.Size]:
    """The shapes of the inputs of calls that use weights."""
    return [program.leaves[i].shape for i in sorted(inputs_of(program))]


def _holds_rowless(program: Program) -> bool:
    """Whether rows of some data cannot be copied (sparse, nested): errors are then due to that."""
    return not all(map(is_plain, program.leaves))


def _own_failure(error: Exception) -> str:
    """The message for an error that only our own code can have raised: the script's own become `CannotReplay`."""
    said = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return f"gradcheck-accum failed while replacing samples, please report this: {detail}"


def _is_normalised(program: Program, others: Sequence[Program]) -> bool:
    """Whether data was prepared from all rows of a micro-batch, in a way that its loss's units do not account for."""
    window = [program, *(other for other in others if other is not program)]
    return gather_samples(window) or any(how.whole is None for own in own_preparations(window).values() for how in own)


def _groups(count: int) -> Iterator[list[int]]:
    """The first of two groups of samples, for each bit of their indices: the lowest bits and the highest."""
    bits = list(range((count - 1).bit_length()))
    for bit in [*bits[: MOST_SPLITS - 1], *bits[MOST_SPLITS - 1 :][-1:]]:
        yield [sample for sample in range(count) if sample >> bit & 1]


def _share(reading: LossReading, base: LossReading) -> float:
    """The factor that gives a loss's samples the weight that they have in ``base``. Raises CannotReplay.

    The means of two losses divide by different units if they ignore different targets.
    """
    if len(reading.terms) != len(base.terms):
        raise _Unequal("its loss has different terms with other samples")
    found: list[float] = []
    for term, other, own, wanted in zip(
        reading.terms, base.terms, coefficient(reading), coefficient(base), strict=True
    ):
        if (own is None) != (wanted is None) or term.reduction is not other.reduction:
            raise _Unequal("its loss is scaled differently with other samples")
        factor = 1.0 if own is None or wanted is None or own == wanted else wanted / own if own else math.nan
        if term.reduction is Reduction.MEAN and term.units != other.units:
            factor *= (term.units or math.nan) / (other.units or math.nan)
        found.append(factor)
    if any(not math.isclose(factor, found[0], rel_tol=1e-6) for factor in found):
        raise _Unequal("the terms of its loss count different units")
    return found[0] if found else 1.0


def _picks(mask: torch.Tensor, leaves: Sequence[torch.Tensor]) -> bool:
    """Whether a leaf may be what a mask has selected from others: it would not match a replaced mask."""
    picked = int(mask.sum()) if mask.dtype is torch.bool else 0
    return any(leaf.dim() and leaf.shape[0] == picked != mask.shape[0] for leaf in leaves)


def _distance(weighted: Sequence[tuple[Pass, float]]) -> float:
    """The norm of a weighted sum of gradients."""
    each = zip(*(a_pass.gradients for a_pass, _ in weighted), strict=True)
    factors = [factor for _, factor in weighted]
    return math.hypot(*(_norm_of_sum(gradients, factors) for gradients in each))


def _norm_of_sum(gradients: Sequence[torch.Tensor], factors: Sequence[float]) -> float:
    total = torch.zeros_like(gradients[0], dtype=torch.float64)
    for gradient, factor in zip(gradients, factors, strict=True):
        total.add_(gradient.double(), alpha=factor)
    return float(torch.linalg.vector_norm(total))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors))

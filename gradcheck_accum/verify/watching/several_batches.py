"""Whether one backward got the losses of several batches, added up, or one loss of several terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.containers import leaves_of
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.program import Leaf, Produced, Program
from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import is_length, is_total

TERMS_OR_MICRO_BATCHES = (
    "its loss has as many terms of one kind as batches were used for it: they may or may not be micro-batches, whose "
    "sum should be divided by their number, once"
)


def has_a_term_per_batch(reading: LossReading, drawn: int, program: Callable[[], Program | None]) -> bool:
    """Whether a loss has one of its terms for each of several batches, all of a kind, and is no mean of them.

    ``drawn`` is how many batches one data loader gave for it, of which some may wait for their turn: what counts is how
    often the loop ran a module on other data, which ``program``, asked only where there are such terms, tells; where
    nothing is recorded, into how many parts the loss's graph falls. Terms that reach parameters alone are of no batch.
    """
    of_data = {term.kind for term in reading.terms if term.reduction is not Reduction.NONE}
    sums = [
        (number, kind)
        for kind, (number, total) in reading.kinds.items()
        if kind in of_data and number > 1 and total is not None and not _is_mean(reading, kind, number, total)
    ]
    if not sums:
        return False
    numbers = [number for number, _ in sums]
    known = program()
    if known is None:
        return any(number == drawn and _parts(reading.of_kind(kind)) >= drawn for number, kind in sums)
    if not any(isinstance(function, nn.Module) for function, *_ in known.steps):
        return drawn in numbers
    return any(number in numbers for number in _turns(known, by_place=drawn not in numbers))


def _is_mean(reading: LossReading, kind: str, number: int, total: float) -> bool:
    """Whether the terms of a kind add up to 1, or are divided by their number, whatever else they are multiplied by.

    If they are divided by it twice, and once by the length of a list, one of the two is too many. What was summed over
    a list divides a sum.
    """
    same = Same()
    if all(any(is_total(o) for f in t.factors for o in f.origins) for t in reading.terms if t.kind == kind):
        return True
    every = [[f for f in t.factors if f.value and same(f.value * number, 1.0)] for t in reading.terms if t.kind == kind]
    if all(len(by) > 1 and any(is_length(origin) for f in by for origin in f.origins) for by in every):
        return False
    return same(total, 1.0) or any(every)


def _parts(nodes: Iterable[Any]) -> int:
    """How many parts a graph falls into where it is cut at the weights: terms of one batch come from one forward."""
    part_of: dict[Any, int] = {}
    joined: list[int] = []

    def root(part: int) -> int:
        while joined[part] != part:
            part = joined[part]
        return part

    for node in nodes:
        own = len(joined)
        joined.append(own)
        pending = [node]
        while pending:
            above = pending.pop()
            if above is None or "AccumulateGrad" in above.name():
                continue
            if above in part_of:
                joined[root(part_of[above])] = root(own)
                continue
            part_of[above] = own
            pending += [following for following, _ in above.next_functions]
    return len({root(part) for part in range(len(joined))})


def _turns(program: Program, *, by_place: bool) -> Iterator[int]:
    """How often one module is called, by one place or by any, each time on samples of its own; a number for each."""
    groups: dict[Any, list[int]] = {}
    for index, ((function, *_), place) in enumerate(zip(program.steps, program.places, strict=True)):
        if isinstance(function, nn.Module):
            groups.setdefault((id(function), place if by_place else None), []).append(index)
    several = [members for members in groups.values() if len(members) > 1]
    if several:
        flow = _Flow(program)
        yield from (len(members) for members in several if flow.are_apart(members))


_NONE, _SEVERAL = -1, -2
"""What a step is made of that is made of none of the calls, or of several."""


class _Flow:
    """What each step of a program is made of."""

    def __init__(self, program: Program) -> None:
        self._modules = [isinstance(function, nn.Module) for function, *_ in program.steps]
        given = [list(leaves_of(step[1:3])) for step in program.steps]
        self._makers = [{m.call for m in own if isinstance(m, Produced)} for own in given]
        self._samples = [
            [leaf for m in own if isinstance(m, Leaf) and _is_data(leaf := program.leaves[m.index])] for own in given
        ]
        self._fed: list[bool] = []
        """Whether a step, or what it is made of, gets data."""
        for makers, samples in zip(self._makers, self._samples, strict=True):
            self._fed.append(bool(samples) or any(self._fed[maker] for maker in makers))

    def are_apart(self, members: Sequence[int]) -> bool:
        """Whether no two of these calls have to do with the same samples, nor one with what another gave."""
        given = self._inputs(members)
        if given is None or not all(given.values()):
            return False
        rows = {member: len(samples[0]) for member, samples in given.items()}
        source: list[int] = []
        """For each step the call that it is made of, `_NONE` or `_SEVERAL`."""
        for index, makers in enumerate(self._makers):
            of = {source[maker] for maker in makers} - {_NONE}
            source.append(index if index in given else _SEVERAL if len(of) > 1 else next(iter(of), _NONE))
            # What has another length (the weights of classes, a mask of positions) is no batch's own.
            of_sample = [leaf for leaf in self._samples[index] if len(leaf) in rows.values()]
            if source[index] == _SEVERAL and (of_sample or self._modules[index]):
                return False
            if index not in given:
                given.get(source[index], []).extend(of_sample)
        owners: dict[object, int] = {}
        return all(
            owners.setdefault(_rows(leaf), member) == member
            for member, samples in given.items()
            for leaf in samples
            if len(leaf) == rows[member]
        )

    def _inputs(self, members: Sequence[int]) -> dict[int, list[torch.Tensor]] | None:
        """The samples that each of these calls is made of, None where two share what is made of any."""
        made_for: dict[int, int] = {}
        given: dict[int, list[torch.Tensor]] = {}
        for member in members:
            given[member], pending = [], [member]
            while pending:
                step = pending.pop()
                owner = made_for.get(step)
                if owner is None:
                    made_for[step] = member
                    given[member] += self._samples[step]
                    pending += self._makers[step]
                elif owner != member and (step in given or self._fed[step]):
                    return None
        return given


def _is_data(leaf: torch.Tensor) -> bool:
    return bool(leaf.dim()) and leaf.layout is torch.strided and not leaf.requires_grad


def _rows(leaf: torch.Tensor) -> object:
    """Which samples these are: the same for all time steps that are taken from one batch, say."""
    first = leaf.stride(0)
    return leaf.untyped_storage().data_ptr(), first, leaf.storage_offset() // max(first, 1)

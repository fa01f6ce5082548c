"""Whether one backward got the losses of several batches, added up, or one loss of several terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.tape import Leaf, Produced, Program
from gradcheck_accum.events import Term, product_of
from gradcheck_accum.weights import total_of

SENT_BACK_TOGETHER = (
    "its loss has as many terms of one kind as batches went into it: whether they are micro-batches, whose sum should "
    "be divided by their number, is not known"
)


def sent_back_together(terms: Sequence[Term], drawn: int, program: Callable[[], Program | None]) -> bool:
    """Whether a loss has one of its ``terms`` for each of several batches, all of a kind, and is no mean of them.

    ``drawn`` is how many batches one data loader gave for it. ``program``, asked only where there are such terms, tells
    how often the loop ran a module on other data.
    """
    sums = []
    for kind in {term.kind for term in terms}:
        own = [product_of(term.factors) for term in terms if term.kind == kind]
        total = total_of(own)
        if len(own) > 1 and total is not None and not math.isclose(total, 1.0):
            sums.append(len(own))
    if not sums or drawn in sums:
        return bool(sums)
    known = program()
    return known is not None and any(number in sums for number in _turns(known))


def _turns(program: Program) -> Iterator[int]:
    """How often one place calls one module, each time on samples of its own; a number for each such place."""
    groups: dict[Any, list[int]] = {}
    for index, ((function, *_), place) in enumerate(zip(program.steps, program.places, strict=True)):
        if isinstance(function, nn.Module):
            groups.setdefault((id(function), place), []).append(index)
    makers = [
        {m.call for m in _inside((args, kwargs)) if isinstance(m, Produced)} for _, args, kwargs, _ in program.steps
    ]
    for members in groups.values():
        if len(members) > 1 and _are_apart(program, members, makers):
            yield len(members)


def _are_apart(program: Program, members: Sequence[int], makers: Sequence[set[int]]) -> bool:
    """Whether no two of these calls have to do with the same samples, nor one with what another gave."""
    before: list[set[int]] = []
    """For each step, the steps that it is made of, itself among them."""
    for index, own in enumerate(makers):
        before.append({index}.union(*(before[maker] for maker in own)))
    behind = [steps.intersection(members) for steps in before]
    owners: dict[object, int] = {}
    for member in members:
        given = _samples(program, before[member])
        if len(behind[member]) > 1 or not given:
            return False
        for index, calls in enumerate(behind):
            if member not in calls:
                continue
            # What has another length (the weights of classes, a mask of positions) is no batch's own.
            beside = [leaf for leaf in _samples(program, [index]) if len(leaf) == len(given[0])]
            if len(calls) > 1 and (beside or isinstance(program.steps[index][0], nn.Module)):
                return False
            given += beside
        if any(owners.setdefault(_rows(leaf), member) != member for leaf in given if len(leaf) == len(given[0])):
            return False
    return True


def _samples(program: Program, steps: Iterable[int]) -> list[torch.Tensor]:
    """The data that these steps get, none of it to be trained."""
    places = [m for step in sorted(steps) for m in _inside(program.steps[step][1:3]) if isinstance(m, Leaf)]
    leaves = [program.leaves[place.index] for place in places]
    return [leaf for leaf in leaves if leaf.dim() and leaf.layout is torch.strided and not leaf.requires_grad]


def _rows(leaf: torch.Tensor) -> object:
    """Which samples these are: the same for all time steps that are taken from one batch, say."""
    first = leaf.stride(0)
    return leaf.untyped_storage().data_ptr(), first, leaf.storage_offset() // max(first, 1)


def _inside(value: Any) -> Iterator[Any]:
    """What stands in nested containers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _inside(item)
    else:
        yield value

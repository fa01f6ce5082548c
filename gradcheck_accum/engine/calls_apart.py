"""Calls of one module that have nothing to do with each other: each is given data of its own, and so is what follows.

A loss that adds up what comes of such calls falls into as many parts, each of which is computed by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.containers import leaves_of, rebuilt
from gradcheck_accum.engine.program import Leaf, Produced, Program
from gradcheck_accum.engine.scalings import RETURNING


def turns(program: Program, *, by_place: bool) -> Iterator[int]:
    """How often one module is called, by one place or by any, each time on samples of its own; a number for each."""
    yield from (len(members) for members, _ in _apart(program, by_place=by_place))


def parts_of(program: Program) -> list[Program]:
    """What each of several calls of one module contributes to a loss that adds these up; else the loss as it is."""
    for members, source in _apart(program, by_place=True):
        ends = [_end_of(program, source, member) for member in members]
        if len(ends) > 1 and all(ends):
            return [_part(program, source, member, end) for member, end in zip(members, ends, strict=True) if end]
    return [program]


def use_what_is_their_own(programs: Sequence[Program], parts_of_each: Sequence[Sequence[Program]]) -> bool:
    """Whether several parts of a loss use data, or a fraction, that another micro-batch has not: made of its own rows.

    ``parts_of_each`` are the `parts_of` every program. Class weights and the like are the same in all micro-batches.
    """
    for program, parts in zip(programs, parts_of_each, strict=True):
        if len(parts) < 2:
            continue
        used = Counter(id(leaf) for part in parts for leaf in part.leaves if not leaf.requires_grad)
        shared = [leaf for leaf in program.leaves if used[id(leaf)] > 1]
        numbers = Counter(number for part in parts for number in _fractions_in(part))
        fractions = {number for number, count in numbers.items() if count > 1}
        for other in programs:
            if not fractions <= _fractions_in(other) or not all(_is_among(leaf, other.leaves) for leaf in shared):
                return True
    return False


def _fractions_in(program: Program) -> set[float]:
    """The numbers that are no whole ones, and that a program's calls were given, but for those that scale something."""
    given = (step[1:3] for step in program.steps if getattr(step[0], "__name__", "") not in RETURNING)
    return {value for own in given for value in leaves_of(own) if type(value) is float and value % 1}


def _is_among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return any(own is tensor or (own.shape == tensor.shape and torch.equal(own, tensor)) for own in others)


def _apart(program: Program, *, by_place: bool) -> Iterator[tuple[list[int], list[int]]]:
    """The calls of one module that are apart, and the one of them that each step is made of (`_Flow.sources`)."""
    several = _called_again(program, by_place=by_place)
    if several:
        flow = _Flow(program)
        yield from ((members, source) for members in several if (source := flow.sources(members)))


def _called_again(program: Program, *, by_place: bool) -> list[list[int]]:
    """The steps that call the same module, at one place or at any."""
    groups: dict[Any, list[int]] = {}
    for index, ((function, *_), place) in enumerate(zip(program.steps, program.places, strict=True)):
        if isinstance(function, nn.Module):
            groups.setdefault((id(function), place if by_place else None), []).append(index)
    return [members for members in groups.values() if len(members) > 1]


def _end_of(program: Program, source: Sequence[int], member: int) -> Produced | None:
    """The only result of what follows a call that is used with those of other calls; None if there are several."""
    used = {
        value
        for index, (_, *given, _) in enumerate(program.steps)
        if source[index] == _SEVERAL
        for value in leaves_of(given)
        if isinstance(value, Produced) and source[value.call] == member
    }
    return used.pop() if len(used) == 1 else None


def _part(program: Program, source: Sequence[int], member: int, end: Produced) -> Program:
    """The steps that made ``end``, of which each is of one call alone, or of none."""
    needed, pending = set[int](), [end.call]
    while pending:
        step = pending.pop()
        if step not in needed:
            needed.add(step)
            pending += [v.call for v in leaves_of(program.steps[step][1:3]) if isinstance(v, Produced)]
    chosen = sorted(needed)
    steps = {old: new for new, old in enumerate(chosen)}
    held = [v.index for i in chosen for v in leaves_of(program.steps[i][1:3]) if isinstance(v, Leaf)]
    places = {old: new for new, old in enumerate(dict.fromkeys(held))}

    def placed(value: Any) -> Any:
        if isinstance(value, Produced):
            return Produced(steps[value.call], value.output)
        return Leaf(places[value.index]) if isinstance(value, Leaf) else value

    return replace(
        program,
        steps=[
            (function, rebuilt(args, placed), rebuilt(kwargs, placed), autocast)
            for function, args, kwargs, autocast in (program.steps[i] for i in chosen)
        ],
        kept=[program.kept[i] for i in chosen],
        written=[program.written[i] for i in chosen],
        buffers=frozenset(places[i] for i in program.buffers if i in places),
        leaves=[program.leaves[i] for i in places],
        versions=[program.versions[i] for i in places],
        results=[placed(end)],
        rng_states=[program.rng_states[i] for i in chosen],
        places=[program.places[i] for i in chosen],
        prepared={places[i]: how for i, how in program.prepared.items() if i in places},
        in_turn=frozenset(places[i] for i in program.in_turn if i in places),
        scaled={steps[i]: how for i, how in program.scaled.items() if i in steps},
    )


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

    def sources(self, members: Sequence[int]) -> list[int]:
        """For each step the one of these calls that it is made of, `_NONE` or `_SEVERAL`.

        Empty if two of them have to do with the same samples, or one with what another gave.
        """
        given = self._inputs(members)
        if given is None or not all(given.values()):
            return []
        rows = {member: len(samples[0]) for member, samples in given.items()}
        source: list[int] = []
        for index, makers in enumerate(self._makers):
            of = {source[maker] for maker in makers} - {_NONE}
            source.append(index if index in given else _SEVERAL if len(of) > 1 else next(iter(of), _NONE))
            # What has another length (the weights of classes, a mask of positions) is no batch's own.
            of_sample = [leaf for leaf in self._samples[index] if len(leaf) in rows.values()]
            if source[index] == _SEVERAL and (of_sample or self._modules[index]):
                return []
            if index not in given:
                given.get(source[index], []).extend(of_sample)
        owners: dict[object, int] = {}
        is_apart = all(
            owners.setdefault(_rows(leaf), member) == member
            for member, samples in given.items()
            for leaf in samples
            if len(leaf) == rows[member]
        )
        return source if is_apart else []

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

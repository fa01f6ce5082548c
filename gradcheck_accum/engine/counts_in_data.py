"""Numbers that are kept with a micro-batch's data, and count its own rows: a large batch has other ones.

A batch of graphs keeps how many nodes it has, and a call is given the sizes of what it is called on. A number is such a
count where it differs between micro-batches, and is in each as many as a tensor of the same call has rows, or columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from gradcheck_accum.engine.containers import changed, leaves_of
from gradcheck_accum.engine.program import Leaf, Program

Counts = dict[tuple[int, int], tuple[int, int]]
"""By the step and the position of a number among its own: the leaf and the dimension that it is the size of."""


def counts_in(programs: Sequence[Program]) -> Counts:
    """The numbers that differ between micro-batches, and are counts. Raises ValueError if others differ."""
    found: Counts = {}
    counted = set[tuple[object, ...]]()
    for step, given in enumerate(zip(*(program.steps for program in programs), strict=True)):
        leaves = [{v.index for v in leaves_of(own[1:3]) if isinstance(v, Leaf)} for own in given]
        numbers = [[*_numbers(own)] for own in given]
        if len({len(own) for own in numbers}) > 1:
            continue
        for position, values in enumerate(zip(*numbers, strict=True)):
            size = _size_of(values, programs, set.intersection(*leaves)) if len({*values}) > 1 else None
            if size is not None:
                found[step, position] = size
                counted.add(values)
    differing = [each for each in zip(*(program.constants for program in programs), strict=False) if len({*each}) > 1]
    if len({len(program.constants) for program in programs}) > 1 or not counted.issuperset(differing):
        raise ValueError("a number or string that the loss is computed with differs between micro-batches")
    return found


def with_counts(program: Program, counts: Counts, leaves: Sequence[torch.Tensor]) -> Program:
    """The program with these numbers as they are for other leaves."""
    steps = list(program.steps)
    for step in {step for step, _ in counts}:
        position = count()

        def counted(value: Any, step: int = step, position: Iterator[int] = position) -> Any:
            size = counts.get((step, next(position))) if type(value) is int else None
            return value if size is None else leaves[size[0]].shape[size[1]]

        function, args, kwargs, autocast = steps[step]
        steps[step] = function, changed(args, counted), changed(kwargs, counted), autocast
    return replace(program, steps=steps)


def _numbers(step: tuple[Any, Any, Any, Any]) -> list[int]:
    """The whole numbers that a call was given, in the order in which `changed` comes to them."""
    found: list[int] = []

    def note(value: Any) -> Any:
        if type(value) is int:
            found.append(value)
        return value

    changed(step[1:3], note)
    return found


def _size_of(values: Sequence[int], programs: Sequence[Program], leaves: set[int]) -> tuple[int, int] | None:
    """The leaf and the dimension that numbers are the size of, in every micro-batch."""
    for leaf in sorted(leaves):
        shapes = [program.leaves[leaf].shape for program in programs]
        for dimension in range(min(map(len, shapes))):
            if all(shape[dimension] == value for shape, value in zip(shapes, values, strict=True)):
                return leaf, dimension
    return None

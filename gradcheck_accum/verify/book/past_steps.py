"""A compact form of past steps: the kind of each, and the numbers measured at it."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from gradcheck_accum.ledger.events import Backward, Event, Step
from gradcheck_accum.results.verdict import ByParameter
from gradcheck_accum.verify.book.alike import Alike
from gradcheck_accum.verify.book.records import Measured, Record
from gradcheck_accum.verify.vectors.inner_products import InnerProducts

_LARGEST = 256
"""The largest number of elements of a matrix that is stored as numbers; larger ones are kept as tensors."""

_NOTHING: Mapping[int, torch.Tensor] = {}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What many steps share: all but their numbers, and the distances to the previous step and their backwards."""

    example: Measured
    ahead: int
    records: tuple[int, ...]


class PastSteps:
    """Measured steps in order, without what was needed only at the step."""

    def __init__(self) -> None:
        self._steps, self._numbers = Alike[_Kind](), array("d")
        self._by_parameter: dict[int, ByParameter] = {}
        self._products: dict[int, InnerProducts] = {}
        """By the number of a step: matrices that are kept as tensors."""
        self._place = 0

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, measured: Measured, places: Mapping[Event, int]) -> None:
        """Append a step; ``places`` are the positions of its own events among all of the run."""
        place = places[measured.step]
        ahead, self._place = place - self._place, place
        own = replace(measured, records=[], clips=[], by_parameter=None)
        if measured.by_parameter is not None:
            self._by_parameter[len(self)] = measured.by_parameter
        if measured.products is not None and measured.products.matrix.numel() > _LARGEST:
            self._products[len(self)] = measured.products
            own.products = None
        self._numbers.extend(_numbers_of(own))
        records = tuple(places[record.event] - place for record in measured.records)
        self._steps.add((_said(own), ahead, records), lambda: _Kind(own, ahead, records))

    def measured(self, events: Sequence[Event]) -> Iterator[Measured]:
        """The steps, in order; ``events`` are all of the run."""
        place, numbers = 0, iter(self._numbers)
        for number, kind in enumerate(self._steps):
            place += kind.ahead
            step, found = events[place], _with_numbers(kind.example, numbers)
            if isinstance(step, Step):
                own = (events[place + offset] for offset in kind.records)
                found.step = step
                found.records = [Record(event, None, _NOTHING, None) for event in own if isinstance(event, Backward)]
                found.by_parameter = self._by_parameter.get(number)
                found.products = self._products.get(number, found.products)
                yield found


def _said(measured: Measured) -> Hashable:
    """The content of a measured step without its numbers, positions and events."""
    products, update = measured.products, measured.update
    return (
        None if products is None else (products.matrix.shape, products.is_factor, products.sampled),
        tuple(measured.own_vectors),
        len(measured.own_norms),
        (measured.dtype, measured.compute_dtype, measured.device),
        measured.after_clip,
        tuple(
            (tuple(r.records), tuple(r.vectors), r.kind, tuple(value is None for value in r.coefficients))
            for r in measured.replays
        ),
        tuple(measured.terms),
        measured.replay_problem,
        measured.coupled_chunks,
        measured.proof,
        tuple(measured.coupled_modules),
        (measured.normalises, measured.may_be_groups, measured.ran_once),
        tuple(vector for vector, _ in measured.presumed),
        None if update is None else (update.multiple, update.sampled),
        measured.too_large,
        measured.drift is None,
        (measured.unmeasured, measured.has_overflowed),
        (measured.sketched, measured.shards),
    )


def _numbers_of(measured: Measured) -> Iterator[float]:
    """The numbers of a measured step, in the order of `_with_numbers`."""
    if measured.products is not None:
        yield from measured.products.matrix.reshape(-1).tolist()
    yield from measured.own_norms
    yield from (factor for _, factor in measured.presumed)
    yield from (value for replay in measured.replays for value in replay.coefficients if value is not None)
    if measured.update is not None:
        yield from (measured.update.wrong, measured.update.moved)
    if measured.drift is not None:
        yield measured.drift


def _with_numbers(example: Measured, numbers: Iterator[float]) -> Measured:
    """A step of the kind of ``example``, with the next of the numbers."""
    products, update, drift = example.products, example.update, example.drift
    if products is not None:
        count, shape = products.matrix.numel(), products.matrix.shape
        matrix = torch.tensor(list(islice(numbers, count)), dtype=torch.float64).reshape(shape)
        products = InnerProducts(matrix, products.is_factor, products.sampled)
    norms = list(islice(numbers, len(example.own_norms)))
    presumed = tuple((vector, next(numbers)) for vector, _ in example.presumed)
    replays = [
        replace(own, coefficients=tuple(None if value is None else next(numbers) for value in own.coefficients))
        for own in example.replays
    ]
    if update is not None:
        update = replace(update, wrong=next(numbers), moved=next(numbers))
    if drift is not None:
        drift = next(numbers)
    return replace(
        example,
        products=products,
        own_norms=norms,
        presumed=presumed,
        replays=replays,
        update=update,
        drift=drift,
    )

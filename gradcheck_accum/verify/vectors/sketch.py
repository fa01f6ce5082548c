"""Gradients compared by their sketches: where no rank has the whole, or where no copy of one may be held.

A sketch S v of a gradient is short and linear, and made with the same S of every gradient, on every rank: so
‖g - Σ w_j g_j‖ follows from the sketches of all of them when the run has ended, whatever weights w_j it shows.

S gives every element a random sign and adds it to one of BUCKETS sums (the AMS or tug-of-war sketch: Alon, Matias,
Szegedy, J. Comput. Syst. Sci. 58, 1999; with one bucket for each element: Charikar, Chen, Farach-Colton, Theor. Comput.
Sci. 312, 2004). ‖S v‖² is ‖v‖² on average, and its variance at most 2 p ‖v‖⁴, where p is the probability that two
elements share a bucket. What that says of a norm is `gradcheck_accum.engine.tolerance.sketched_norm`. Of no more than
BUCKETS elements a sketch is exact, and so is, of any, whether one gradient is a multiple of another.

No sign and no bucket is kept for an element. A gradient is read in stretches. The signs of a stretch begin at a random
place of one pool; its buckets are the elements' numbers modulo a prime that is drawn for it, turned by a number that is
drawn too. So p is 1 / BUCKETS for elements of different stretches. Of one stretch, two elements share a bucket only if
the prime divides their distance: at most one of the 75 primes does (two on a GPU, whose stretches are longer), and none
that of the rows of a matrix of the usual widths. (A bucket for each column of a matrix, which a width of a power of two
would give, would be no sketch of a gradient that lies in a few columns.)
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

import torch

from gradcheck_accum.verify.vectors.inner_products import InnerProducts, Pieces, Vector, dense, pieces_of

BUCKETS = 1024

_WIDTHS = tuple(n for n in range(BUCKETS // 2, BUCKETS) if all(n % d for d in range(2, 32)))
"""The primes between half the buckets and all of them: 75."""

_STRETCH = 1 << 16
_DEVICE_STRETCH = 1 << 20
"""Elements that are read at a time: of a processor they stay in its cache, a GPU is given more at once.

They are few calls for each element, and fewer than the product of any three of the primes (of any two, a processor's).
"""

_POOL = 1 << 22
"""Signs that are drawn. Two stretches have signs in common with a probability of 1/32, which add to the variance only
where their elements fall into the same buckets too."""


class _Stretch(NamedTuple):
    """Elements ``start`` to ``stop``, in rows of ``width``; ``turn`` is the first's bucket, ``first`` its sign."""

    start: int
    stop: int
    width: int
    turn: int
    first: int


class Sketcher:
    """Makes sketches; they are the same on every rank where all have met their parameters in one order."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._plans: dict[tuple[int, int, int], list[_Stretch]] = {}

    def place_of(self, key: int) -> int:
        """The number of the parameter of this identity, which decides on its signs and buckets."""
        return self._places.setdefault(key, len(self._places))

    def of(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """The sketch of one parameter's gradient by itself."""
        flat = _flat(gradient)
        return self._of_pieces(self.place_of(key), flat.numel(), flat.device, _pieces_of(flat))

    def of_vector(self, vector: Vector, parameters: Sequence[torch.Tensor], done: Collection[int] = ()) -> Vector:
        """The sketches of a gradient, one for each parameter; what it has at the positions ``done`` are sketches."""
        found: list[torch.Tensor | None] = []
        for position, parameter in enumerate(parameters):
            pieces = None if position in done else pieces_of(vector, position)
            if position in done or pieces is None:
                found.append(vector[position] if position in done else None)
            elif parameter.is_complex():
                found.append(self.of(id(parameter), vector[position]))  # type: ignore[arg-type]
            else:
                place = self.place_of(id(parameter))
                found.append(self._of_pieces(place, parameter.numel(), parameter.device, pieces))
        return found

    def rows(self, place: int, pieces: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The sketch of one parameter's gradient piece by piece: a row for each, zeros where it is None.

        ``place`` is the parameter's, the same on every rank.
        """
        device = next((piece.device for piece in pieces if piece is not None), torch.device("cpu"))
        found = torch.zeros(len(pieces), BUCKETS, dtype=torch.float64, device=device)
        for row, piece in enumerate(pieces):
            if piece is not None:
                flat = _flat(piece)
                own = self._of_pieces(place * len(pieces) + row, flat.numel(), device, _pieces_of(flat))
                found[row, : len(own)] = own
        return found

    def products(self, vectors: Sequence[Vector], parameters: Sequence[torch.Tensor], pieces: int = 1) -> InnerProducts:
        """Gradients over ``parameters``, given by their sketches, as the columns of a factor."""
        columns = torch.stack([joined(vector, parameters, pieces) for vector in vectors], dim=1)
        return InnerProducts(columns, is_factor=True, sampled=not are_exact(parameters))

    def _of_pieces(self, place: int, elements: int, device: torch.device, pieces: Pieces) -> torch.Tensor:
        signs = _signs(device)
        if elements <= BUCKETS:
            # Each element has a bucket of its own. A rank may hold no element of a weight.
            own, plan = pieces(0, elements), self._plan(place, elements, device)
            first = plan[0].first if plan else 0
            return signs[first : first + elements].to(own.dtype).mul_(own).double()
        total = torch.zeros(BUCKETS, dtype=torch.float64, device=device)
        for start, stop, width, turn, first in self._plan(place, elements, device):
            # A change of signs is exact in every dtype; only the sum needs more digits. To convert the signs first is
            # faster than to multiply by numbers of another dtype.
            own = pieces(start, stop)
            signed = signs[first : first + stop - start].to(own.dtype).mul_(own)
            count, rest = divmod(stop - start, width)
            rows = signed[: len(signed) - rest] if rest else signed
            columns = rows.view(count, width).sum(0, dtype=torch.float64)
            if rest:
                columns[:rest].add_(signed[-rest:])
            until = min(len(total) - turn, width)
            total[turn : turn + until].add_(columns[:until])
            if until < width:
                total[: width - until].add_(columns[until:])
        return total

    def _plan(self, place: int, elements: int, device: torch.device) -> list[_Stretch]:
        most = _STRETCH if device.type == "cpu" else _DEVICE_STRETCH
        plan = self._plans.get((place, elements, most))
        if plan is None:
            # With a whole number as its seed it draws the same everywhere.
            draw, plan = random.Random(place), []
            start = 0
            while start < elements:
                first = draw.randrange(_POOL - most)
                if elements <= BUCKETS:
                    plan.append(_Stretch(0, elements, elements, 0, first))
                    break
                width = draw.choice(_WIDTHS)
                stop = min(elements, start + most // width * width)
                plan.append(_Stretch(start, stop, width, draw.randrange(BUCKETS), first))
                start = stop
            self._plans[place, elements, most] = plan
        return plan


def width_of(gradient: torch.Tensor) -> int:
    """How many numbers the sketch of one parameter's gradient has."""
    return min(_elements(gradient), BUCKETS)


def are_exact(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether the sketches of gradients over ``parameters`` lose nothing: each element has a bucket of its own."""
    return sum(_elements(parameter) for parameter in parameters) <= BUCKETS


def joined(parts: Vector, parameters: Sequence[torch.Tensor], pieces: int = 1) -> torch.Tensor:
    """The sketch of a gradient over ``parameters`` from those of each, of ``pieces`` rows each: one flat column."""
    total = torch.zeros(pieces, BUCKETS, dtype=torch.float64)
    offset, exact = 0, are_exact(parameters)
    for position, (rows, parameter) in enumerate(zip(parts, parameters, strict=True)):
        if rows is not None:
            own = torch.zeros_like(total)
            flat = rows.view(pieces, -1)
            own[:, : flat.shape[1]] = flat
            total += torch.roll(own, offset if exact else _turn(position, BUCKETS), dims=1)
        offset += _elements(parameter)
    return total.reshape(-1)


@cache
def _turn(position: int, buckets: int) -> int:
    """By how much the buckets of the parameter at a position are turned: any two fall together by chance alone."""
    return random.Random(~position).randrange(buckets)


@cache
def _signs(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 2, (_POOL,), dtype=torch.int8, generator=generator)
    return drawn.mul_(2).sub_(1).to(device)


def _elements(parameter: torch.Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    own = dense(gradient).detach()
    return (torch.view_as_real(own) if own.is_complex() else own).reshape(-1)


def _pieces_of(flat: torch.Tensor) -> Pieces:
    return lambda start, stop: flat[start:stop]

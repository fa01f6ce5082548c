"""Which parameters' gradients are furthest from the reference's: measured only for a few wrong steps.

A step whose gradient is right costs nothing more. The errors of an optimizer's first few wrong steps are broken down by
parameters, and later those of steps whose error is at least 1.5 times the largest before: however long a run, these are
few, and the worst step is among them or less than 1.5 times worse. It takes one pass over the gradients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.tolerance import Addends, sum_tolerance
from gradcheck_accum.results.verdict import ByParameter, ParameterError
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Measured, Record
from gradcheck_accum.verify.vectors.inner_products import Pieces, Vector, numbers, pieces_of, stretches

SHOWN = 24
"""The number of parameters that are kept, those with the largest shares of the error."""

_FIRST = 4
_WORSE = 1.5
"""Wrong steps of an optimizer that are always broken down, and the factor by which later ones must be worse."""

Weighted = Sequence[tuple[int, float]]
"""A combination of a window's vectors: (vector, factor)."""


@dataclass(slots=True)
class Worst:
    """Chooses each optimizer's steps that are broken down: the first wrong ones, and later ones that are far worse."""

    _taken: Counter[str] = field(default_factory=Counter)
    _worst: dict[str, float] = field(default_factory=dict)

    def takes(self, optimizer: str, error: float) -> bool:
        """Whether a step with this error is one of them; if so, it is counted."""
        if self._taken[optimizer] >= _FIRST and error < _WORSE * self._worst[optimizer]:
            return False
        self._taken[optimizer] += 1
        self._worst[optimizer] = max(error, self._worst.get(optimizer, 0.0))
        return True


@dataclass(slots=True)
class Dissector:
    """Breaks the error of a wrong step down by parameters, for the steps that `Worst` chooses."""

    _worst: Worst = field(default_factory=Worst)

    def dissect(
        self,
        measured: Measured,
        reference: Weighted,
        vectors: Sequence[Vector],
        parameters: Sequence[torch.Tensor],
        optimizer: Optimizer,
    ) -> ByParameter | None:
        """The parameters' shares of the error of the gradient before any clip, compared with ``reference``.

        None where it is within rounding, or `Worst` does not choose the step.
        """
        if not self._is_wanted(measured, reference):
            return None
        difference = [(0, 1.0), *((vector, -factor) for vector, factor in reference)]
        squares = [
            _squares(combined, vectors, position, parameter)
            for combined in (difference, reference)
            for position, parameter in enumerate(parameters)
        ]
        norms = [math.sqrt(value) for value in numbers(squares)]
        wrong, right = norms[: len(parameters)], norms[len(parameters) :]
        return by_parameter(wrong, right, parameters, names_of(parameters, measured.records, optimizer))

    def _is_wanted(self, measured: Measured, reference: Weighted) -> bool:
        products = measured.products
        total = 0.0 if products is None else products.combined_norm(reference)
        if products is None or not total or not math.isfinite(total):
            return False
        error = products.combined_norm([(0, 1.0), *((vector, -factor) for vector, factor in reference)]) / total
        factors = dict(reference)
        own = zip(measured.own_vectors, measured.own_norms, strict=True)
        contributions = [abs(factors.get(vector, 0.0)) * norm for vector, norm in own]
        if error <= sum_tolerance(Addends(contributions, total), measured.dtype).worst:
            return False
        return self._worst.takes(measured.step.optimizer, error)


def by_parameter(
    wrong: Sequence[float], right: Sequence[float], parameters: Sequence[torch.Tensor], names: Sequence[str]
) -> ByParameter | None:
    """The largest shares of an error, given |g - g_ref| and |g_ref| of each parameter; None where there is no error."""
    total = math.hypot(*wrong)
    if not total or not math.isfinite(total):
        return None
    each = [
        ParameterError(name, tuple(parameter.shape), off / size if size else None, (off / total) ** 2)
        for name, parameter, off, size in zip(names, parameters, wrong, right, strict=True)
    ]
    return ByParameter(len(each), tuple(sorted(each, key=lambda one: -one.share)[:SHOWN]))


def names_of(
    parameters: Iterable[torch.Tensor], records: Iterable[Record], optimizer: Optimizer | None = None
) -> list[str]:
    """The names of the parameters: those given to the optimizer, otherwise those in the modules that computed losses.

    A parameter without a name is identified by its position in the optimizer.
    """
    called = _names_by_optimizer(optimizer) if optimizer is not None else {}
    programs = (record.program for record in records if record.program is not None)
    modules = {id(m): m for program in programs for m in program.modules}
    named = [(type(m).__name__, list(m.named_parameters())) for m in modules.values()]
    owners = sorted(((kind, own) for kind, own in named if own), key=lambda owner: -len(owner[1]))
    for kind, own in owners:
        for name, parameter in own:
            called.setdefault(id(parameter), name if len(owners) == 1 else f"{kind}.{name}")
    return [called.get(id(p), f"parameter {place}") for place, p in enumerate(parameters)]


def _names_by_optimizer(optimizer: Optimizer) -> dict[int, str]:
    """The names that were passed to an optimizer together with its parameters."""
    names = [name for group in optimizer.param_groups for name in group.get("param_names") or group["params"]]
    named = zip(parameters_of(optimizer), names, strict=False)
    return {id(parameter): name for parameter, name in named if isinstance(name, str)}


def _squares(combined: Weighted, vectors: Sequence[Vector], position: int, parameter: torch.Tensor) -> torch.Tensor:
    """|Σ w_i v_i|² over one parameter, in float64."""
    own = [(factor, pieces) for vector, factor in combined if (pieces := pieces_of(vectors[vector], position))]
    squares = []
    for start, stop in stretches(parameter.numel(), parameter.device) if own else ():
        first, *others = (_real(factor, pieces, start, stop) for factor, pieces in own)
        squares.append(sum(others, first).square().sum())
    return sum(squares[1:], squares[0]) if squares else torch.zeros((), dtype=torch.float64, device=parameter.device)


def _real(factor: float, pieces: Pieces, start: int, stop: int) -> torch.Tensor:
    """A stretch of a gradient, ``factor`` times, as real numbers in float64."""
    piece = pieces(start, stop)
    real = (torch.view_as_real(piece) if piece.is_complex() else piece).double()
    return real if factor == 1.0 else factor * real

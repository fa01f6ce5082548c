"""Results of computations: of which losses a tensor is the sum, and what each was multiplied by since."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from gradcheck_accum.ledger.events import Factor, Operation, Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.state.values.copies import changed
from gradcheck_accum.lint.state.values.symbols import Symbol

_MOST_FACTORS = 64

MOST_PARTS = 512
"""What was added up of more is no sum of losses: one part is kept, with a weight that is not known."""


@dataclass(frozen=True, slots=True)
class Detached:
    """The flow of what has left its graph: the same numbers.

    ``may_be_sum`` says that something was added to it since, as to a sum that begins with it.
    """

    flow: Hashable
    may_be_sum: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One reduced loss inside a tensor, with the factors that it was multiplied by since.

    ``flow`` tells what was computed at one time from what was at another: parts with the same one share a graph.
    """

    name: str
    reduction: Reduction
    factors: tuple[Factor, ...] = ()
    micro_batch: int = -1
    flow: Hashable = field(default_factory=object, compare=False)
    assumed: bool = False
    """Whether the reduction is what such losses usually have, and not what the source shows."""
    given_divisor: bool = False
    """Whether the call that made it got something that it may have divided its losses by."""
    within: frozenset[int] = frozenset()
    """Those of the factors, by their place, that are other tensors of its micro-batch: what is yet to be reduced is
    their product."""
    leaves_out: bool = False
    """Whether as many units are in it as the data say: some are left out, or chosen (`torch_calls.masks`)."""
    partly: bool = False
    """Whether its units were reduced along a dimension, which leaves others."""
    by_name: bool = False
    """Whether it is an item of a dictionary of losses: one number, or one for each row."""
    of_constants: bool = False
    """Whether it was computed of what the source writes alone: it has as many units in every micro-batch."""
    may_be_sum: int | None = None
    """The place of the factor that stands for the units where it may be a sum as well as a mean."""

    @property
    def is_unreduced(self) -> bool:
        """Whether nothing shows yet that it is one number."""
        return self.assumed or self.partly

    @property
    def is_of_output(self) -> bool:
        """Whether this is what a model's output holds by a name: ``outputs.loss``."""
        return self.name.startswith(".")

    def reduced(self, reduction: Reduction, *, partly: bool) -> Part:
        """This part after its units were averaged or summed.

        The mean of a product is a mean. The sum of quotients may be one too, over any number.
        """
        kept = [
            factor
            for place, factor in enumerate(self.factors)
            if place not in self.within or (reduction is Reduction.SUM and factor.operation is not Operation.MULTIPLY)
        ]
        of_now = changed(self, factors=tuple(kept), within=frozenset(), may_be_sum=None)
        return changed(of_now, reduction=reduction, assumed=False, partly=partly)

    def averaged(self) -> Part | None:
        """This part divided by the number of its units, as many as the data say; None where it is no sum."""
        if self.may_be_sum is not None:
            # Who divides by their number has a sum.
            at = self.may_be_sum
            factors = (*self.factors[:at], *self.factors[at + 1 :])
            within = frozenset(place - (place > at) for place in self.within)
            of_sum = changed(self, factors=factors, within=within, may_be_sum=None, assumed=False)
        elif self.reduction is Reduction.SUM and not self.is_unreduced:
            of_sum = self
        else:
            return None
        return changed(of_sum, reduction=Reduction.MEAN, leaves_out=True)

    @property
    def origin(self) -> Hashable:
        """The flow of the numbers, whether they have left their graph or not."""
        flow = self.flow
        while isinstance(flow, Detached):
            flow = flow.flow
        return flow


@dataclass(frozen=True, slots=True)
class Tensor:
    """The result of a computation: of which models (by root name), and of which losses it is the sum.

    ``summed_at`` is the place that added the losses of several micro-batches up. ``is_each`` says that it stands for
    each of as many as a call gave: a list of losses, the number of which the source does not show. ``cut_off`` are the
    models that it was computed from the output of, without their graphs. One that ``reaches_beyond`` its micro-batch
    was computed outside of it, but for a part that its own was written into.
    """

    parts: tuple[Part, ...]
    models: frozenset[str] = frozenset()
    grad_scaled: bool = False
    elementwise: bool = False
    summed_at: Location | None = field(default=None, compare=False)
    is_each: bool = False
    cut_off: frozenset[str] = field(default=frozenset(), compare=False)
    reaches_beyond: bool = field(default=False, compare=False)

    def element(self, key: Hashable) -> Tensor:
        """One of several things that a call gave together, as far as their flows tell them apart."""
        return changed(self, parts=tuple(changed(part, flow=(part.flow, key)) for part in self.parts))

    def scaled(self, factor: Factor) -> Tensor:
        """This tensor times a constant."""
        if any(len(part.factors) >= _MOST_FACTORS for part in self.parts):
            parts = tuple(changed(p, factors=(Factor(None),), within=frozenset(), may_be_sum=None) for p in self.parts)
        else:
            parts = tuple(changed(p, factors=(*p.factors, factor)) for p in self.parts)
        return changed(self, parts=parts)

    def maybe_summed(self) -> Tensor:
        """This tensor, where it is not known whether it is a mean or a sum."""
        doubted = tuple(changed(part, may_be_sum=len(part.factors)) for part in self.parts)
        return changed(self, parts=doubted).scaled(Factor(None))

    def detached(self) -> Tensor:
        """The same numbers without their graph."""
        parts = tuple(changed(part, flow=Detached(part.flow, self.may_be_sum)) for part in self.parts)
        return changed(self, parts=parts, models=frozenset(), cut_off=self.cut_off | self.models)

    @property
    def may_be_sum(self) -> bool:
        """Whether something may have been added to it since it left its graph."""
        return any(isinstance(part.flow, Detached) and part.flow.may_be_sum for part in self.parts)

    def summed(self) -> Tensor:
        """This tensor after something was added to it that is no loss: the beginning of a sum, if it has no graph."""
        if not any(isinstance(part.flow, Detached) for part in self.parts):
            return self
        parts = tuple(
            changed(part, flow=Detached(part.flow.flow, may_be_sum=True)) if isinstance(part.flow, Detached) else part
            for part in self.parts
        )
        return changed(self, parts=parts)

    @property
    def is_located(self) -> bool:
        """Whether it is known where the last factor of every part was applied."""
        return all(not part.factors or part.factors[-1].where is not None for part in self.parts)

    def located(self, where: Location) -> Tensor:
        """This tensor with ``where`` as the place of the factors that have none yet."""
        parts = tuple(
            changed(part, factors=(*part.factors[:-1], changed(part.factors[-1], where=where)))
            if part.factors and part.factors[-1].where is None
            else part
            for part in self.parts
        )
        return changed(self, parts=parts)

    def times(self, factor: Factor, models: frozenset[str]) -> Tensor:
        """This tensor, of which nothing shows that it was reduced yet, times another one of its micro-batch."""
        parts = tuple(changed(part, within=part.within | {len(part.factors)}) for part in self.parts)
        return changed(self, parts=parts, models=self.models | models).scaled(factor)

    def reduced(self, reduction: Reduction, *, partly: bool = False) -> Tensor:
        """This tensor after its units were averaged or summed; ``partly`` says along a dimension."""
        parts = tuple(part.reduced(reduction, partly=partly) for part in self.parts)
        return changed(self, parts=parts, elementwise=False, is_each=False)


@dataclass(frozen=True, slots=True)
class Figure(Symbol):
    """A number read from losses at ``read_at``, with all factors since.

    ``may_be_sum`` means that something may have been added to it, or to the tensor that it was read from.
    """

    parts: tuple[Part, ...] = ()
    read_at: Location | None = None
    may_be_sum: bool = False

"""Steps by hand of gradients that were returned to the loop: it writes what it adds up of them into its weights.

Where no optimizer is there when `torch.autograd.grad` is first asked for the gradients of leaves, these may be weights
of the script's own. Their gradients are followed (`ReturnedSums`) into what is written into them: that is a step, which
is compared when all of it has been made, with the weights as they were before it. All steps of a run are followed, or
none is judged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradcheck_accum.engine.determinism import holding
from gradcheck_accum.engine.following import Follower
from gradcheck_accum.engine.transformed import are_transforms_active
from gradcheck_accum.ledger.events import Cause, Opaque, Reason, WindowBound, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.held import Held
from gradcheck_accum.verify.provenance.numbers_of_updates import Counts
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.autograd_grad import ReturnedGradients
from gradcheck_accum.verify.watching.gradients_by_hand import GradientsByHand
from gradcheck_accum.verify.watching.manual_updates import UpdateByHand
from gradcheck_accum.verify.watching.returned_sums import Followed, Number, ReturnedSums, Sum
from gradcheck_accum.verify.watching.run import Run
from gradcheck_accum.verify.watching.steps import BY_HAND, OfReturned, Steps

_SAME = 1e-6
"""How far factors that were computed in float64 from numbers of the script may be apart."""

NOT_LINEAR = (
    "the update at line {line} uses gradients that torch.autograd.grad() returned otherwise than in sums and multiples "
    "by numbers that are followed: assign them to .grad of an optimizer's parameters, and call its step()"
)
NOT_ALIKE = (
    "the update at line {line} does not use the gradients that torch.autograd.grad() returned for all weights in the "
    "same way: assign them to .grad of an optimizer's parameters, and call its step()"
)
TOO_EARLY = (
    "the update at line {line} uses gradients that torch.autograd.grad() returned before the update before it, or more "
    "of them than are kept: use all of them in one update"
)
WEIGHTED = Reason(
    "gradients that torch.autograd.grad() returned are multiplied by numbers of their own before they are added up, "
    "and what these count is not shown: divide them by the window's count, or weight the losses",
    Cause.BY_HAND,
)
MOVED_BETWEEN = (
    "the weights were changed at line {line} while gradients that torch.autograd.grad() had returned were still to be "
    "used: compute them with the same weights"
)
OF_OTHERS = (
    "torch.autograd.grad() returned gradients of different tensors, the first at line {line}: which of them are "
    "weights is unknown, so train with a torch.optim.Optimizer to compare"
)
NOT_WATCHED = "only some windows are watched, and updates of the loop's own are followed in all of them or not at all"


class _Both:
    """Passes calls on to two followers."""

    def __init__(self, first: Follower, second: ReturnedSums) -> None:
        self._first, self._second = first, second
        self.is_off, self.is_following = False, True

    def before(self, function: Any, args: Any, kwargs: Any) -> None:
        """A call is about to be made."""
        self._second.before(function, args, kwargs)
        if not self._first.is_off:
            self._first.before(function, args, kwargs)

    def after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """It has returned ``result``."""
        self._second.after(function, args, kwargs, result)
        if not self._first.is_off:
            self._first.after(function, args, kwargs, result)


class UpdatesOfReturned:
    """Finds the weights whose gradients are returned, and their updates."""

    def __init__(self, run: Run, by_hand: GradientsByHand, steps: Steps) -> None:
        self._run, self._by_hand, self._steps = run, by_hand, steps
        self._optimizer: UpdateByHand | None = None
        self._keys: tuple[int, ...] = ()
        self._sums: ReturnedSums | None = None
        self._before: dict[int, tuple[torch.Tensor, int]] = {}
        """The weights, and their versions, as they were before they were written into, while gradients waited."""
        self._written: dict[int, Followed] = {}
        self._at: Location | None = None
        self._counted: WindowBound | None = None
        self.steps = 0
        """How many updates were seen."""
        self.why_not = ""
        """Why the updates are not followed, where they were to be."""

    @property
    def asked_at(self) -> Location | None:
        """Where gradients were first asked for, of weights that are not seen to be updated."""
        return None if self.steps else self._by_hand.unwatched

    def grad_begins(self, inputs: Sequence[torch.Tensor]) -> None:
        """``torch.autograd.grad`` is about to compute the gradients of ``inputs``. Raises SeenEnough."""
        if self.why_not:
            return
        if self._optimizer is None:
            self._adopt(inputs)
            return
        if tuple(map(id, inputs)) != self._keys:
            self._give_up(OF_OTHERS.format(line=getattr(self._by_hand.unwatched, "line", 0)))
            return
        self.finish()
        self._steps.stop_if_enough()

    def _adopt(self, inputs: Sequence[torch.Tensor]) -> None:
        run = self._run
        if run.book.optimizers or are_transforms_active() or run.attention.asleep or not inputs:
            return
        if not all(own.is_leaf and own.requires_grad and own.layout is torch.strided for own in inputs):
            return
        self._by_hand.unwatched = self._by_hand.unwatched or user_location()
        self._keys = tuple(map(id, inputs))
        self._optimizer = UpdateByHand(list(inputs))
        # The tape outlives its run, and must not hold it.
        about_to_write, written = weakref.WeakMethod(self._about_to_write), weakref.WeakMethod(self._has_written)
        self._sums = ReturnedSums(run.book, run.attention, _if_alive(about_to_write), _if_alive(written))
        run.losses.tape.follower = _Both(run.uses, self._sums)
        self._by_hand.on_returned = self._sums.returned

    def other_training(self) -> None:
        """An optimizer is made, or a backward begins: what follows may be no update of the loop's own."""
        self.finish()
        if self._optimizer is not None and not self.steps:
            self._forget()
        else:
            self._let_go()

    def stop(self) -> None:
        """Not all windows are watched."""
        if self._optimizer is not None:
            self._give_up(NOT_WATCHED)

    def _give_up(self, reason: str) -> None:
        self.why_not, self.steps = reason, 0
        self._forget()

    def _forget(self) -> None:
        """Forget all that was seen of these weights."""
        own = self._optimizer
        self._let_go()
        if own is None:
            return
        self._by_hand.forget(set(self._keys))
        self._run.dismiss(own)

    def _let_go(self) -> None:
        """Follow nothing any more."""
        if self._sums is not None:
            self._run.losses.tape.follower, self._sums = self._run.uses, None
            self._by_hand.on_returned = None
        self._optimizer = None
        self._begin()

    def _begin(self) -> None:
        self._before.clear()
        self._written.clear()
        self._at, self._counted = None, None

    # Updates

    def _about_to_write(self, key: int) -> None:
        """The loop is about to write into a weight."""
        if key not in self._before and self._by_hand.waiting:
            weight = self._run.book.parameters[key]
            self._before[key] = weight.detach().clone(), weight._version

    def _has_written(self, key: int, found: Followed) -> None:
        """It has written what was computed from returned gradients."""
        if self._at is None:
            self._at = user_location()
            self._counted = self._run.counters.at_step(BY_HAND, [()])
        if key in self._written or key not in self._keys:
            self._give_up(NOT_ALIKE.format(line=self._at.line))
            return
        self._written[key] = found
        if not isinstance(found, Sum):
            self._give_up(NOT_LINEAR.format(line=self._at.line))

    def finish(self) -> None:
        """What the loop does now is no part of the update before: if it has made one, this is a step."""
        own, sums, where = self._optimizer, self._sums, self._at
        if own is None or sums is None or not self._before:
            return
        parameters = self._run.book.parameters
        before = [(parameters[key], value) for key, (value, _) in self._before.items()]
        if where is None:
            if any(not torch.equal(weight.detach(), value) for weight, value in before):
                self._give_up(MOVED_BETWEEN.format(line=user_location().line))
            self._begin()
            return
        written = {key: found for key, found in self._written.items() if isinstance(found, Sum)}
        read = {key: _gradient_in(found, self._units_of(found)) for key, found in written.items()}
        (factors, rates_alone), *others = read.values()
        if set(read) != set(self._keys) or not factors or any(not _are_same(factors, one) for one, _ in others):
            self._give_up(NOT_ALIKE.format(line=where.line))
            return
        if not self._by_hand.holds(factors):
            self._give_up(TOO_EARLY.format(line=where.line))
            return
        rates_alone = rates_alone and all(alone for _, alone in others)
        gradients: dict[int, Held | None] = {key: Held(self._combined(key, factors)) for key in self._keys}
        lost = sums.added_up - sums.used_otherwise
        for returned in (*factors, *lost):
            self._hold(returned)
        with holding(before):
            self._by_hand.enter(factors, lost, where)
            if any(found.in_doubt for found in written.values()):
                stores = self._run.book.stores(self._keys)
                self._run.journal.add(Opaque(where=where, stores=stores, reason=WEIGHTED))
            self._steps.made_by_hand(own, where, of_returned=OfReturned(gradients, rates_alone, self._counted))
        # What is left in its sums is known to be of this window.
        self._run.journal.add(ZeroGrad(where=where, stores=self._run.book.stores(self._keys)))
        self.steps += 1
        sums.stepped()
        self._begin()

    def _hold(self, returned: ReturnedGradients) -> None:
        """What computes a loss may run again: its weights will be held as they were."""
        program = returned.backward_losses.program
        if program is None:
            return
        for position, leaf in enumerate(program.leaves):
            _, version = self._before.get(id(leaf), (None, None))
            if program.versions[position] == version:
                program.versions[position] = leaf._version

    def _combined(self, key: int, factors: Mapping[ReturnedGradients, float]) -> torch.Tensor:
        with self._run.attention.own_work(), torch.no_grad():
            first, *others = (own.gradients[key] * factor for own, factor in factors.items())
            for one in others:
                first += one
            return first

    @staticmethod
    def _units_of(found: Sum) -> set[float]:
        """What a window can be divided by: its micro-batches, and the units of one of them and of all."""
        counts = {float(len(found.factors))}
        every = [[t.units for t in own.backward_losses.reading.terms if t.units] for own in found.factors]
        for own in every:
            counts.update(own)
        totals = [sum(own) for own in zip(*every, strict=False)]
        return counts.union(totals, (total * len(every) for total in totals))


def _gradient_in(found: Sum, counts: set[float]) -> tuple[dict[ReturnedGradients, float], bool]:
    """How often an update uses each gradient, without its rate; whether what it multiplies by else is no count.

    What divides belongs to the gradient, and what multiplies it and counts something. What multiplies it and counts
    nothing is the rate, or a part of it. Of the rest nothing is known.
    """
    scale, rates_alone = 1.0, not found.in_doubt
    for number in found.since:
        if number.divides or number.counts is Counts.UNITS:
            scale *= number.value
            rates_alone = rates_alone and number.counts is Counts.UNITS
        elif abs(number.value) != 1.0:
            rates_alone = rates_alone and _is_rate(number, counts)
    factors = {own: factor * scale for own, factor in found.factors.items() if factor}
    sign = -1.0 if factors and next(iter(factors.values())) < 0 else 1.0
    return {own: factor * sign for own, factor in factors.items()}, rates_alone


def _is_rate(number: Number, counts: set[float]) -> bool:
    """Whether a number that multiplies all gradients of a window is known to count nothing of it."""
    value = abs(number.value)
    return number.counts is Counts.NOTHING and not any(abs(value * count - 1.0) < _SAME for count in counts)


def _are_same(one: Mapping[ReturnedGradients, float], other: Mapping[ReturnedGradients, float]) -> bool:
    return one.keys() == other.keys() and all(abs(one[j] - other[j]) <= _SAME * abs(one[j]) for j in one)


def _if_alive(method: Any) -> Callable[..., object]:
    def call(*args: Any) -> object:
        own = method()
        return None if own is None else own(*args)

    return call

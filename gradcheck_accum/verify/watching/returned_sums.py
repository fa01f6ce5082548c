"""What a loop computes from gradients that were returned to it, as far as that is linear.

For each tensor that was computed from them, its sum is kept: of each gradient how often it is in it. Sums, differences,
products with numbers and ``lerp`` are followed, in place or not; what else is computed from them is unknown.
A tensor that no call of PyTorch has written into as far as this was seen (another library's code, say) would make that
wrong: so a sum is compared with the tensor before anything else is added to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradcheck_accum.engine.containers import tensors_in
from gradcheck_accum.engine.following import WRITE_DATA
from gradcheck_accum.engine.memory import may_write, memory_of, version_of
from gradcheck_accum.engine.scalings import DIVIDING, MULTIPLYING
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.verify.book.parameters import ParameterBook
from gradcheck_accum.verify.provenance.numbers_of_updates import Counts, counted_by_number
from gradcheck_accum.verify.stack.frames import scaling_frame
from gradcheck_accum.verify.watching.attention import Attention
from gradcheck_accum.verify.watching.autograd_grad import ReturnedGradients

_READ_DATA = vars(torch._C.TensorBase)["data"].__get__

_ADDING = {"add": 1.0, "__add__": 1.0, "__radd__": 1.0, "__iadd__": 1.0, "add_": 1.0}
_SUBTRACTING = {"sub": -1.0, "__sub__": -1.0, "__isub__": -1.0, "sub_": -1.0, "subtract": -1.0, "subtract_": -1.0}
_KEEPING = frozenset({"clone", "detach", "contiguous"})
_SUMS = {**_ADDING, **_SUBTRACTING}


@dataclass(frozen=True, slots=True)
class Number:
    """A number that a sum was multiplied by, what it counts, and whether it divides."""

    value: float
    counts: Counts = Counts.NOTHING
    divides: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """What a tensor is: how often it holds each gradient of one parameter, and what all of it was multiplied by since.

    ``has_rest`` says that it holds other things too: the weight itself, or sums of earlier windows. ``is_left`` says
    that it was left over by an update, and nothing has been done to it since. ``in_doubt`` means that what a gradient
    was multiplied by before the sum was complete is not known to count anything: it may be a learning rate, a limit.
    """

    key: int
    factors: Mapping[ReturnedGradients, float]
    since: tuple[Number, ...] = ()
    has_rest: bool = False
    is_left: bool = False
    in_doubt: bool = False

    def times(self, number: Number) -> Sum:
        """The sum multiplied by a number."""
        if number.value in (1.0, -1.0):
            number = replace(number, counts=Counts.NOTHING)
        return replace(self, since=(*self.since, number), is_left=False)

    @property
    def scale(self) -> float:
        """The product of what all of it was multiplied by."""
        product = 1.0
        for number in self.since:
            product *= number.value
        return product

    def whole(self) -> dict[ReturnedGradients, float]:
        """How often each gradient is in it, with all numbers."""
        scale = self.scale
        return {own: factor * scale for own, factor in self.factors.items()}

    @property
    def is_doubtful(self) -> bool:
        """Whether any number in it is not known to count anything."""
        return self.in_doubt or any(n.counts is not Counts.UNITS and abs(n.value) != 1.0 for n in self.since)


class _Unknown:
    """What is computed from returned gradients otherwise."""


UNKNOWN = _Unknown()
Followed = Sum | _Unknown


class ReturnedSums:
    """Follows the calls that a loop makes with gradients that were returned for the parameters of a book."""

    def __init__(
        self,
        book: ParameterBook,
        attention: Attention,
        about_to_write: Callable[[int], object],
        written: Callable[[int, Followed], object],
    ) -> None:
        self._book, self._attention = book, attention
        self._about_to_write, self._written = about_to_write, written
        self._sums: dict[int, tuple[weakref.ref[torch.Tensor], int | None, Followed]] = {}
        self.added_up: set[ReturnedGradients] = set()
        """The gradients that the loop has added up."""
        self.used_otherwise: set[ReturnedGradients] = set()
        """The gradients that it has computed something else from."""
        self._planned: tuple[Any, list[Followed | None]] | None = None

    def returned(self, key: int, gradient: torch.Tensor, returned: ReturnedGradients) -> None:
        """``gradient`` is what was returned for a parameter."""
        self._keep(gradient, Sum(key, {returned: 1.0}))

    def stepped(self) -> None:
        """The loop has made its update: what is left of it holds gradients of an earlier window."""
        for tensor, own in [*self._alive()]:
            if isinstance(own, Sum):
                self._keep(tensor, Sum(own.key, {}, has_rest=True, is_left=True))
        self.added_up.clear()
        self.used_otherwise.clear()

    # Calls

    def before(self, function: Any, args: Any, kwargs: Any) -> None:
        """A call is about to be made: what its result will be is read from what it is given, as it is now."""
        self._planned = None
        writes = bool(args) and (function == WRITE_DATA or may_write(function))
        if writes:
            for key in self._weights_in(args[0]):
                self._about_to_write(key)
        given = [own for own in map(self._of, tensors_in((args, kwargs))) if own is not None]
        if given:
            plan = self._plan(function, args, kwargs)
            self._planned = args, plan
            if any(own is UNKNOWN for own in plan):
                self.used_otherwise.update(j for own in given if isinstance(own, Sum) for j in own.factors)

    def after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """It has returned ``result``."""
        planned, self._planned = self._planned, None
        writes = bool(args) and (function == WRITE_DATA or may_write(function))
        targets = list(tensors_in(args[0] if writes else result))
        if planned is None or planned[0] is not args:
            if writes:
                self._overwritten(targets)
            return
        plan = planned[1]
        if len(plan) != len(targets):
            plan = [UNKNOWN] * len(targets)
        for target, found in zip(targets, plan, strict=True):
            if writes:
                self._writes(target, found)
            else:
                self._keep(target, found)

    def _plan(self, function: Any, args: Any, kwargs: Any) -> list[Followed | None]:
        """What each tensor will be that a call computes or writes into."""
        name = getattr(function, "__name__", "")
        if function == WRITE_DATA:
            return [self._of(args[1])]
        if name.startswith("_foreach_") and args and isinstance(args[0], (list, tuple)):
            inner = name.removeprefix("_foreach_")
            return [
                self._result(
                    inner,
                    function,
                    [own[position] if isinstance(own, (list, tuple)) and position < len(own) else own for own in args],
                    kwargs,
                )
                for position in range(len(args[0]))
            ]
        return [self._result(name, function, args, kwargs)]

    def _result(self, name: str, function: Any, args: Sequence[Any], kwargs: Any) -> Followed | None:
        others = {key: value for key, value in kwargs.items() if key != "alpha"}
        if name in _KEEPING or function == _READ_DATA:
            return self._of(args[0]) if not others else UNKNOWN
        if name == "copy_" and len(args) == 2 and not others:
            return self._of(args[1]) if isinstance(args[1], torch.Tensor) else UNKNOWN
        if name == "zero_":
            return None
        if name in ("neg", "neg_", "__neg__") and len(args) == 1 and not others:
            return _times(self._of(args[0]), Number(-1.0))
        if len(args) == 2 and not others:
            if name in MULTIPLYING or name in DIVIDING:
                return self._scaled(args[0], args[1], divides=name in DIVIDING)
            if name in _SUMS:
                return self._added(args[0], args[1], _SUMS[name], kwargs.get("alpha", 1))
        if name in ("lerp", "lerp_"):
            return self._blended(*args, **kwargs) if len(args) + len(kwargs) == 3 else UNKNOWN
        return UNKNOWN

    def _scaled(self, one: Any, other: Any, *, divides: bool) -> Followed | None:
        if isinstance(other, torch.Tensor) and self._of(other) is not None:
            if divides or (isinstance(one, torch.Tensor) and self._of(one) is not None):
                return UNKNOWN
            one, other = other, one
        number = self._number(other)
        if number is None or not number:
            return UNKNOWN
        counts = counted_by_number(scaling_frame())
        return _times(self._of(one), Number(1 / number if divides else number, counts, divides))

    def _added(self, one: Any, other: Any, sign: float, alpha: Any) -> Followed | None:
        if not isinstance(alpha, (int, float)):
            return UNKNOWN
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            # ``sum(...)`` begins with 0.
            return self._of(one) if not isinstance(other, torch.Tensor) and other == 0 else UNKNOWN
        added = self._of(other)
        if added is not None and sign * alpha != 1:
            counts = Counts.NOTHING if abs(alpha) == 1 else counted_by_number(scaling_frame())
            added = _times(added, Number(sign * alpha, counts))
        return self._joined((self._of(one), one), (added, other))

    def _blended(self, input: Any, end: Any, weight: Any) -> Followed | None:
        number = self._number(weight)
        if number is None or not isinstance(end, torch.Tensor):
            return UNKNOWN
        counts = counted_by_number(scaling_frame())
        one, other = (_times(self._of(t), Number(n, counts)) for t, n in ((input, 1.0 - number), (end, number)))
        return self._joined((one, input), (other, end))

    def _joined(
        self, one: tuple[Followed | None, torch.Tensor], other: tuple[Followed | None, torch.Tensor]
    ) -> Followed | None:
        """The sum of two, each with the tensor that it was before it was multiplied by anything here."""
        (left, first), (right, second) = one, other
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if isinstance(left, Sum) and isinstance(right, Sum):
            return self._of_both(left, first, right, second)
        own, tensor, rest = (left, first, second) if isinstance(left, Sum) else (right, second, first)
        if not isinstance(own, Sum) or first.shape != second.shape:
            return UNKNOWN
        if self._is_weight(rest, own.key):
            return replace(own, has_rest=True) if self._is_as_followed(tensor) else UNKNOWN
        if not self._is_zero(rest):
            return UNKNOWN
        self.added_up.update(own.factors)
        return own

    def _of_both(self, left: Sum, first: torch.Tensor, right: Sum, second: torch.Tensor) -> Followed:
        if left.key != right.key or first.shape != second.shape:
            return UNKNOWN
        in_doubt = left.is_doubtful or right.is_doubtful
        twice = left.factors.keys() & right.factors.keys()
        if twice and not (in_doubt or _subtracts(left) or _subtracts(right)):
            # A gradient that is added again, as it is, would count twice: what that is for is not known.
            return UNKNOWN
        if (left.is_left and right.factors) or (right.is_left and left.factors):
            # A sum that was not cleared after the update, or a momentum of 1.
            return UNKNOWN
        if left.has_rest != right.has_rest and not all(
            self._is_as_followed(tensor) for own, tensor in ((left, first), (right, second)) if not own.has_rest
        ):
            return UNKNOWN
        has_rest = left.has_rest or right.has_rest
        if not left.factors or not right.factors:
            # What is added holds earlier windows alone: the numbers are still those of the whole window.
            own = left if left.factors else right
            return replace(own, has_rest=has_rest, is_left=False)
        self.added_up.update(left.factors, right.factors)
        # A running mean takes from what it holds: a gradient may be in both.
        factors = left.whole()
        for own_of, factor in right.whole().items():
            factors[own_of] = factors.get(own_of, 0.0) + factor
        return Sum(left.key, factors, has_rest=has_rest, in_doubt=in_doubt)

    # What is written

    def _writes(self, target: Any, found: Followed | None) -> None:
        """A call has written into a tensor, which is ``found`` now."""
        keys = self._weights_in(target)
        self._overwritten(target, spared=target)
        for key in keys:
            if found is not None:
                own = found if isinstance(found, Sum) and found.key == key and found.has_rest else UNKNOWN
                self._written(key, own)
        if not keys and isinstance(target, torch.Tensor):
            self._keep(target, UNKNOWN if found is not None and target._is_view() else found)

    def _overwritten(self, targets: Any, spared: Any = None) -> None:
        """These tensors were written into: what shares their memory is no longer what it was."""
        memories = {memory_of(target) for target in tensors_in(targets)} - {None}
        for tensor, _ in [*self._alive()]:
            if tensor is not spared and memory_of(tensor) in memories:
                self._keep(tensor, UNKNOWN)

    # What is known

    def _alive(self) -> Iterator[tuple[torch.Tensor, Followed]]:
        for key, (reference, _, own) in [*self._sums.items()]:
            tensor = reference()
            if tensor is None:
                del self._sums[key]
            else:
                yield tensor, own

    def _keep(self, tensor: torch.Tensor, found: Followed | None) -> None:
        if found is None:
            self._sums.pop(id(tensor), None)
        elif id(tensor) not in self._book.parameters:
            self._sums[id(tensor)] = weakref.ref(tensor), version_of(tensor), found

    def _of(self, tensor: Any) -> Followed | None:
        known = self._sums.get(id(tensor))
        if known is None or not isinstance(tensor, torch.Tensor) or known[0]() is not tensor:
            return None
        # What was written into otherwise than by a call that was followed is not what it was.
        return known[2] if known[1] == version_of(tensor) else UNKNOWN

    def _number(self, value: Any) -> float | None:
        """A number, or that of a tensor that holds one and was not computed from returned gradients."""
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or self._of(value) is not None:
            return None
        with self._attention.own_work(), torch.no_grad():
            return float(value)

    def _is_zero(self, tensor: torch.Tensor) -> bool:
        with self._attention.own_work(), torch.no_grad():
            return not bool(tensor.any())

    def _is_as_followed(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that holds nothing else is the sum that was followed, up to rounding."""
        own = self._of(tensor)
        if not isinstance(own, Sum) or own.has_rest:
            return isinstance(own, Sum)
        with self._attention.own_work(), torch.no_grad():
            room, left = 0.0, tensor.detach().double()
            for returned, factor in own.whole().items():
                gradient = returned.gradients[own.key]
                if gradient.shape != tensor.shape:
                    # Only a sketch of it is held.
                    return True
                left = left - gradient.double() * factor
                room += abs(factor) * float(gradient.double().norm())
            return float(left.norm()) <= 8 * (len(own.factors) + 4) * unit_roundoff(tensor.dtype) * room

    def _is_weight(self, tensor: torch.Tensor, key: int) -> bool:
        """Whether a tensor is a parameter, or one of its memory."""
        return key in self._weights_in(tensor) and tensor.shape == self._book.parameters[key].shape

    def _weights_in(self, written: Any) -> list[int]:
        """The parameters that share the memory of any of these tensors."""
        memories = {memory_of(own) for own in tensors_in(written)} - {None}
        return [key for key, parameter in self._book.parameters.items() if memory_of(parameter) in memories]


def _subtracts(own: Sum) -> bool:
    """Whether a sum holds gradients less than not at all."""
    return any(factor < 0 for factor in own.whole().values())


def _times(own: Followed | None, number: Number) -> Followed | None:
    return own.times(number) if isinstance(own, Sum) else own

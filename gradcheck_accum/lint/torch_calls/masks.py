"""How many elements of a batch count, where that is up to the data: masks, what they choose, and counts of them.

A loss that leaves targets out by their value, one that is taken of what a mask chose, and a sum that is divided by a
count of its own micro-batch's data are one thing: a mean over as many units as the data say. The source shows that it
is, and not how many there are.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from gradcheck_accum.lint.program.torch_names import LEAVE_TARGETS_OUT
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Holds, Num, Tensor
from gradcheck_accum.lint.syntax import Operator

_LEFT_OUT = -100
"""The target value that PyTorch's losses ignore by default."""
_TO_THE_LONGEST = (True, "longest", "True")
_JOINS_MASKS = frozenset({Operator.BITAND, Operator.BITOR, Operator.BITXOR, Operator.MULT})


def mask_of(data: v.Data, against_number: bool = False) -> v.Data:
    """What comes of asking each element of data a question, or of comparing it ``against_number``."""
    is_same_count = data.is_order and against_number
    holds = Holds.CONSTANTS if is_same_count else Holds.MASK
    return v.Data(data.rows, made=data.made, holds=holds, is_counted_out=data.is_counted_out)


def joined_masks(op: Operator, left: v.Data, right: v.Data) -> v.Data | None:
    """Two masks in one, where both are."""
    both = left.holds is Holds.MASK and right.holds is Holds.MASK
    return mask_of(left) if both and op in _JOINS_MASKS else None


def selected(value: Tensor | v.Data) -> Tensor | v.Data:
    """As many elements of a value as a mask leaves."""
    if isinstance(value, v.Data):
        return v.Data(made=value.made, varies=True, is_counted_out=value.is_determined)
    return replace(value, parts=tuple(replace(part, leaves_out=True) for part in value.parts))


def chooses(index: Any) -> bool:
    """Whether an index selects a number of elements that depends on the data."""
    return isinstance(index, v.Data) and (index.holds is Holds.MASK or index.varies)


def are_counted_places(index: Any) -> bool:
    """Whether an index is as many places in every micro-batch: numbers, or data of rows that the source shows."""
    places = index if isinstance(index, tuple) else (index,)
    shown = [isinstance(one, v.Data) and one.rows is not None and not chooses(one) for one in places]
    return any(shown) and all(is_shown or isinstance(one, Num) for is_shown, one in zip(shown, places, strict=True))


def counted(run: State, data: v.Data) -> v.Data:
    """All of data added up to one number."""
    return v.Data(counted=run.recorder.micro_batch, holds=data.holds)


def count_with_number(op: Operator, left: Any, right: Any) -> v.Data | None:
    """A count of data computed with a number: what is added to it only keeps it from being nothing."""
    data, number = (left, right) if isinstance(left, v.Data) else (right, left)
    if not isinstance(data, v.Data) or data.counted is None or not isinstance(number, Num):
        return None
    if op in (Operator.ADD, Operator.SUB):
        return data
    if op is Operator.DIV and data is left and number.value != 0:
        number = number.derive(1 / Fraction(number.value))
    elif op is not Operator.MULT:
        return replace(data, counted=None, times=None)
    return replace(data, times=number) if data.times is None else replace(data, counted=None, times=None)


def is_own_count(run: State, value: Any) -> bool:
    """Whether a value counts data of the micro-batch under way."""
    if not isinstance(value, v.Data) or value.holds is Holds.CONSTANTS:
        return False
    return value.counted == run.recorder.micro_batch >= 0


def mean_over(tensor: Tensor) -> Tensor | None:
    """A sum that is divided by a count of its own micro-batch's data; None where it is no sum."""
    parts = tuple(mean for part in tensor.parts if (mean := part.averaged()) is not None)
    return replace(tensor, parts=parts) if len(parts) == len(tensor.parts) else None


def counts_what_is_left(name: str, args: list[Any], kwargs: dict[str, Any], reduction: Any, has_ignored: bool) -> bool:
    """Whether the units of a PyTorch loss depend on the data; ``has_ignored``, that it has a target value to ignore.

    An unreduced loss is zero where a target is ignored, and reducing it counts these elements too.
    """
    given = [*args, *kwargs.values()]
    if any(_is_chosen(value) for value in given):
        return True
    holds = name in LEAVE_TARGETS_OUT and any(isinstance(value, v.Data) and value.ignored for value in given)
    as_many = any(isinstance(value, v.Data) and value.is_blank and not value.ignored for value in given)
    return ((has_ignored and not as_many) or holds) and reduction != "none"


def weighs_targets(name: str, weights: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a PyTorch loss is given unlike ``weights`` of its classes: a mean over the weights of its targets."""
    given = kwargs.get("weight", weights[0] if weights else None)
    return name in LEAVE_TARGETS_OUT and isinstance(given, v.Data) and given.holds is not Holds.CONSTANTS


def targets_leave_out(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a model that computes its own loss is given targets of which as many count as the data say."""
    labels = kwargs.get("labels")
    padded = isinstance(labels, v.Data) and labels.varies
    return padded or any(isinstance(value, v.Data) and value.ignored for value in (*args, *kwargs.values()))


def pads_to_the_longest(kwargs: dict[str, Any]) -> bool:
    """Whether a call pads all sequences of a batch to the longest one."""
    padding = kwargs.get("padding")
    return isinstance(padding, (bool, str)) and padding in _TO_THE_LONGEST


def is_left_out(value: Any) -> bool:
    """Whether a number is the one by which PyTorch's losses leave targets out."""
    return isinstance(value, Num) and value.value == _LEFT_OUT


def _is_chosen(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(part.leaves_out for part in value.parts)
    return isinstance(value, v.Data) and value.varies

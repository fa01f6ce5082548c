"""Arithmetic on numbers and on losses: where every factor that a loss is scaled by comes from."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gradcheck_accum.ledger.events import Factor, Operation, Purpose, Reduction
from gradcheck_accum.ledger.stated_names import NAMES_OF_SIZE, is_literal, is_name_of_steps, names_size
from gradcheck_accum.lint.program.names import COUNTS_OR_SCALES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind, bind_steps, end_of_range
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor, bounded
from gradcheck_accum.lint.state.values.tensors import MOST_PARTS
from gradcheck_accum.lint.syntax import Operator
from gradcheck_accum.lint.torch_calls.masks import count_with_number, is_own_count, joined_masks, mean_over
from gradcheck_accum.lint.torch_calls.metrics import combined, is_read

_ARITHMETIC: dict[Operator, Callable[[Any, Any], Any]] = {
    Operator.ADD: operator.add,
    Operator.SUB: operator.sub,
    Operator.MULT: operator.mul,
    Operator.MOD: operator.mod,
    Operator.FLOORDIV: operator.floordiv,
}

_SOME_SIZE = 11.731058578630005
"""Stands for a size or a setting that the source leaves open, and which is a coefficient of the objective: no weight is
relative to it."""


def _micro_batches_of(run: State, length: Any, size: Any) -> Num | None:
    """How many micro-batches the data has whose unknown length is divided by what the source calls a batch size.

    None where anything else is divided, or by anything else.
    """
    known = isinstance(length, Num) and {v.LENGTH, v.ASSUMED} <= length.tags and v.DERIVED not in length.tags
    if known and v.is_named(size) and names_size({size.name.rpartition(".")[2]}):
        bind(run, size.name, size.as_number(Num(run.recorder.units, frozenset({v.UNITS}))))
    if not known or not isinstance(size, Num) or v.UNITS not in size.tags:
        return None
    run.recorder.assumed_length = True
    return Num(run.knowledge.pass_length(), frozenset({v.ASSUMED}))


def binary(run: State, op: Operator, left: Any, right: Any) -> Any:
    """``left op right``."""
    if isinstance(left, v.Figure) or isinstance(right, v.Figure):
        if any(isinstance(one, Tensor) and not is_read(one) for one in (left, right)):
            # A loss stays one, whatever number of the data, or of another loss, it is computed with.
            return _tensor_arithmetic(run, op, left, right)
        return combined(run, op, left, right)
    micro_batches = _micro_batches_of(run, left, right) if op is Operator.FLOORDIV else None
    if micro_batches is not None:
        return micro_batches
    if isinstance(left, Num) and op in (Operator.MOD, Operator.FLOORDIV) and (left.tags or run.in_training):
        # Of a setting divided by another (total_batch // batch) neither is K: what comes of it may be.
        right = bind_steps(run, right)
    if op is Operator.SUB and isinstance(right, Num):
        left = end_of_range(run, left)
    if isinstance(left, Num) and isinstance(right, Num):
        return of_numbers(op, left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return UNKNOWN
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        run.use((left, right))
        return _tensor_arithmetic(run, op, left, right)
    if op is Operator.ADD and isinstance(left, list) and isinstance(right, list):
        return left + right if len(left) + len(right) <= v.LONGEST_LIST else UNKNOWN
    if op is Operator.ADD and isinstance(left, tuple) and isinstance(right, tuple):
        return left + right if len(left) + len(right) <= v.LONGEST_LIST else UNKNOWN
    if op is Operator.MULT and isinstance(left, list) and isinstance(right, Num):
        fits = isinstance(right.value, int) and 0 <= right.value * max(len(left), 1) <= v.LONGEST_LIST
        return left * right.value if fits else UNKNOWN  # type: ignore[operator]
    if isinstance(left, v.Parameters) and isinstance(right, v.Parameters):
        return v.united((left, right))
    of_weights = next((one for one in (left, right) if isinstance(one, v.Parameters)), None)
    if of_weights is not None and all(one is of_weights or _is_no_data(one) for one in (left, right)):
        return of_weights  # a penalty, say
    if isinstance(left, v.Measured) or isinstance(right, v.Measured):
        return v.MEASURED
    if isinstance(left, v.Gradient) or isinstance(right, v.Gradient):
        return _gradient_arithmetic(op, left, right)
    match left, right:
        case (v.Data() as data, Num() as number) | (Num() as number, v.Data() as data):
            # Numbers that nothing has learned from yet.
            made = count_with_number(op, left, right) or replace(data.changed(data.rows), shape=data.shape)
            return replace(made, tells_steps=True) if isinstance(made, v.Data) and v.carries_steps(number) else made
        case v.Data(), v.Data() if (mask := joined_masks(op, left, right)) is not None:
            return mask
        case v.Data(), v.Data() if not run.in_training or (
            op is not Operator.MATMULT and v.turn_made((left, right)) is not None
        ):
            # Of what a loop has made of random numbers, more of its data is made; a product of matrices may be a model.
            drawn = next((one.drawn for one in (left, right) if one.drawn is not None), None)
            return replace(_of_data(op, left, right), made=v.turn_made((left, right)), drawn=drawn)
    of_data = [one for one in (left, right) if v.is_data(one)]
    if all(isinstance(one, v.Data) and one.holds is v.Holds.CONSTANTS for one in of_data) and len(of_data) == 1:
        return UNKNOWN  # the same in every micro-batch: of weights and constants, a penalty, say
    if of_data:
        factors = (Factor(None),) if v.carries_steps(left) or v.carries_steps(right) else ()
        return Tensor((replace(_fresh(run, "expression"), factors=factors),), elementwise=True)
    if isinstance(left, v.Samples):
        return UNKNOWN
    if isinstance(left, Symbol) and not left.name and isinstance(right, Num) and _scales_by_steps(run, op, right):
        # An unnamed result of a call, scaled by K: a loss whose making could not be followed.
        factors = (Factor(None),) if isinstance(left, v.Scaled) else ()
        return _tensor_arithmetic(run, op, Tensor((replace(_fresh(run, "loss"), factors=factors),)), right)
    scales = op in (Operator.MULT, Operator.DIV) or isinstance(left, v.Scaled) or isinstance(right, v.Scaled)
    return v.SCALED if scales else UNKNOWN


def _is_no_data(value: Any) -> bool:
    """Whether a value is a number, or a setting that is one."""
    return isinstance(value, Num) or v.is_setting(value)


def _scales_by_steps(run: State, op: Operator, number: Num) -> bool:
    """Whether a number is made from K, or one that the loop counts to for its steps and that it divides by."""
    if number.tags & {v.STEPS, v.DERIVED}:
        return True
    may_be = op is Operator.DIV and run.in_training and isinstance(number.value, int) and number.value > 1
    return may_be and run.knowledge.counts_windows(int(number.value), number.origins)


def _gradient_arithmetic(op: Operator, left: Any, right: Any) -> Any:
    """What gradients are multiplied or divided by may be put back in their place."""
    if op is Operator.POW:
        return v.MEASURED
    gradient, other = (left, right) if isinstance(left, v.Gradient) else (right, left)
    inverted = op is Operator.DIV and gradient is right
    if isinstance(other, v.Gradient) or inverted or op not in (Operator.MULT, Operator.DIV):
        return UNKNOWN
    operation = Operation.DIVIDE if op is Operator.DIV else Operation.MULTIPLY
    return v.Multiplied(sources=gradient.sources, factors=factors_of(other, operation))


def _of_data(op: Operator, left: v.Data, right: v.Data) -> v.Data:
    """What arithmetic makes of data."""
    # A product of matrices has as many rows as the left one.
    return v.Data(left.rows, is_counted_out=left.is_counted_out) if op is Operator.MATMULT else met(left, right)


def met(left: v.Data, right: v.Data) -> v.Data:
    """What element-wise arithmetic or a comparison makes of data: of two of unlike sizes, one is repeated.

    A vector is repeated for each row of what may have more dimensions, and has none of its own.
    """
    if left.shape and right.shape:
        return _repeated(left.shape, right.shape)
    left, right = (right, left) if len(left.shape) == 1 else (left, right)
    same = right.rows in (None, left.rows) or len(right.shape) == 1
    rows = left.rows if same else right.rows if left.rows is None else None
    return v.Data(rows, is_counted_out=rows is None and left.is_determined and right.is_determined)


def _repeated(left: tuple[int, ...], right: tuple[int, ...]) -> v.Data:
    """What arithmetic makes of data of two shapes: the smaller one is repeated along what it lacks, or has one of."""
    pairs = itertools.zip_longest(reversed(left), reversed(right), fillvalue=1)
    shape = tuple(max(pair) for pair in pairs)[::-1]
    return v.Data(shape[0], shape=shape)


def _fresh(run: State, name: str) -> v.Part:
    return v.Part(name, Reduction.MEAN, (), run.recorder.micro_batch)


def of_numbers(op: Operator, left: Num, right: Num) -> Any:
    """``left op right`` of known numbers."""
    try:
        result = _computed(op, left, right)
    except (ZeroDivisionError, OverflowError, ValueError):
        return UNKNOWN
    if result is None:
        return UNKNOWN
    # What happens to be 1 in this turn is no 1 that the source has for an inverse.
    inverse = op is Operator.DIV and left.value == 1 and is_literal(left.origins)
    origins = right.origins if inverse else v.computed_from(left, right)
    remains = op is Operator.SUB and not left.tags.isdisjoint({v.LENGTH, v.TOTAL})
    tags = result.tags | {v.REMAINS} if remains else result.tags - {v.REMAINS}
    coefficient = op is Operator.MULT and is_literal(left.origins) != is_literal(right.origins)
    shares = op is Operator.DIV and not inverse and _is_constant(left) and _is_constant(right)
    both = (left, right)
    return bounded(Num(result.value, tags, origins, both if coefficient else (), both if shares else ()))


def _is_constant(number: Num) -> bool:
    """Whether a number is one that the source has, or a setting: it counts nothing of the data, and has an origin."""
    return bool(number.origins) and number.tags.isdisjoint({v.UNITS, v.LENGTH, v.TOTAL, v.POSITION, v.REMAINS})


def _computed(op: Operator, left: Num, right: Num) -> Num | None:
    if op is Operator.DIV:
        # What moves with the turns, and counts nothing that the source names, is a factor with whatever is below it.
        moves = not (left.origins or left.tags)
        if moves or isinstance(left.value, float) or isinstance(right.value, float):
            return left.derive(left.value / right.value, right)
        return left.derive(Fraction(left.value) / Fraction(right.value), right)
    if op is Operator.POW and abs(float(right.value)) < 64 and abs(float(left.value)) < 1e6:
        if isinstance(left.value, int) and isinstance(right.value, int) and right.value >= 0:
            return left.derive(left.value**right.value, right)
        power = float(left.value) ** float(right.value)
        # A negative number to a broken power is complex.
        return left.derive(power, right) if isinstance(power, float) else None
    if op in _ARITHMETIC:
        return left.derive(_ARITHMETIC[op](left.value, right.value), right)
    return None


def _tensor_arithmetic(run: State, op: Operator, left: Any, right: Any) -> Any:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if op in (Operator.ADD, Operator.SUB):
            parts = (*left.parts, *right.parts)
            if len(parts) > MOST_PARTS:
                return replace(left, parts=left.parts[:1]).scaled(Factor(None))
            grad_scaled, cut_off = left.grad_scaled or right.grad_scaled, left.cut_off | right.cut_off
            return Tensor(_weighed(parts), left.models | right.models, grad_scaled, cut_off=cut_off)
        if left.elementwise:
            return Tensor(left.parts, left.models | right.models, left.grad_scaled, elementwise=True)
        product = _product(run, op, left, right)
        beyond = left.reaches_beyond or right.reaches_beyond
        return replace(product, reaches_beyond=beyond) if isinstance(product, Tensor) else product
    tensor, other = (left, right) if isinstance(left, Tensor) else (right, left)
    if op in (Operator.ADD, Operator.SUB):
        return tensor.summed()
    if op in (Operator.MULT, Operator.DIV):
        inverse = op is Operator.DIV
        if tensor.elementwise and isinstance(other, v.Data) and other.counted is not None:
            return tensor.scaled(Factor(None, Operation.DIVIDE if inverse else Operation.MULTIPLY))
        if tensor.elementwise and v.is_data(other):
            return tensor
        if (tensor is left or not inverse) and isinstance(other, v.Data) and not (inverse and is_own_count(run, other)):
            return _product(run, op, tensor, other)
        if inverse and tensor is right:
            return tensor.scaled(Factor(None))
        return divided(run, tensor, other) if inverse else scaled(run, tensor, other, Operation.MULTIPLY)
    unreduced = tensor.elementwise or all(part.assumed for part in tensor.parts)
    if op is Operator.POW and tensor is left and unreduced and not any(part.factors for part in tensor.parts):
        # What a model gave, or a loss of each row, not reduced yet by anything that the source shows.
        return tensor
    return tensor.scaled(Factor(None))


def _weighed(parts: tuple[v.Part, ...]) -> tuple[v.Part, ...]:
    """The terms of a sum, where the settings that multiply some of them and not others are their relative weights.

    None of these is there for the accumulation, which would be a factor of all.
    """
    each = [{factor.origins for factor in part.factors if _is_open_coefficient(factor)} for part in parts]
    common = set.intersection(*each)
    if all(own == common for own in each):
        return parts
    weight = Factor(_SOME_SIZE, Operation.MULTIPLY, Purpose.OBJECTIVE)
    return tuple(
        replace(
            part,
            factors=tuple(
                replace(weight, where=factor.where)
                if _is_open_coefficient(factor) and factor.origins not in common
                else factor
                for factor in part.factors
            ),
        )
        for part in parts
    )


def _is_open_coefficient(factor: Factor) -> bool:
    """Whether a factor is a setting with a name that counts nothing, and the source does not show its number."""
    return factor.value is None and factor.purpose is Purpose.OBJECTIVE and bool(factor.origins)


def _product(run: State, op: Operator, tensor: Tensor, other: Tensor | v.Data) -> Tensor:
    """A tensor multiplied or divided by another one.

    What is not reduced yet is a product then, if both are of this micro-batch: a ratio times an advantage, say, or what
    a mask leaves of it. By what a loss that has been reduced is multiplied so is not known.
    """
    now = run.recorder.micro_batch
    if isinstance(other, Tensor):
        is_of_now, models = all(part.micro_batch == now for part in other.parts), other.models
    else:
        is_of_now, models = other.counted is None, frozenset[str]()
    factor = Factor(None, Operation.DIVIDE if op is Operator.DIV else Operation.MULTIPLY)
    multiplies = op in (Operator.MULT, Operator.DIV)
    if multiplies and is_of_now and all(part.is_unreduced for part in tensor.parts):
        return tensor.times(factor, models)
    weighs_rows = isinstance(other, Tensor) and all(part.is_unreduced for part in other.parts)
    if op is Operator.MULT and is_of_now and weighs_rows and all(part.by_name for part in tensor.parts):
        # If it is reduced afterwards, it was one loss for each row, and these are their weights.
        return tensor.times(factor, models)
    return tensor.scaled(factor)


def divided(run: State, tensor: Tensor, divisor: Any) -> Tensor:
    """A loss that the loop divides by a value: a setting with a name for K states K. May raise Restart.

    What a framework divides by has the name that the framework gives it, which may not be set. Where an engine
    counts, K is the engine's.
    """
    is_own = run.in_training and not run.made.engines
    if is_own and isinstance(divisor, Symbol) and is_name_of_steps(divisor.name.rpartition(".")[2]):
        bind_steps(run, divisor)
    return scaled(run, tensor, divisor, Operation.DIVIDE)


def scaled(run: State, tensor: Tensor, other: Any, operation: Operation) -> Tensor:
    """A loss multiplied or divided by a value.

    What divides a sum may count units, of which the interpretation has an assumed number only: a count that was not
    made from it is unknown.
    """
    if operation is Operation.DIVIDE and isinstance(other, Num) and _counts_terms(tensor, other):
        # The mean of the terms, divided by what else there is: how many terms there are is not K's.
        for number in other.multiplied:
            tensor = scaled(run, tensor, number, operation)
        return tensor
    if operation is Operation.MULTIPLY and isinstance(other, Num) and other.quotient:
        share, divisor = other.quotient
        return divided(run, scaled(run, tensor, share, operation), divisor)
    if operation is Operation.DIVIDE and is_own_count(run, other):
        mean = mean_over(tensor)
        if mean is not None:
            return mean if other.times is None else scaled(run, mean, other.times, operation)
    if operation is Operation.MULTIPLY and isinstance(other, Num) and v.UNITS in other.tags:
        # A mean made a sum: what divides it again may be any count of units.
        return tensor.scaled(Factor(None, operation))
    counts_units = operation is Operation.DIVIDE and isinstance(other, Num) and v.UNITS in other.tags
    if counts_units and any(part.assumed or part.is_of_output for part in tensor.parts):
        # Whoever divides by the size of the batch may have a sum.
        return tensor.scaled(Factor(None, operation))
    if counts_units and isinstance(other, Num) and v.WHOLE in other.tags and run.recorder.cuts:
        # How many times a micro-batch goes into the batch that it was cut out of is not known.
        return tensor.scaled(Factor(None, operation))
    if operation is Operation.DIVIDE and isinstance(other, Symbol) and other.name in run.knowledge.bounds:
        bind_steps(run, other)
    if isinstance(other, Num):
        run.recorder.relied_on |= other.names
    if isinstance(other, Num) and run.recorder.is_size(other):
        other = replace(other, origins=other.origins | {NAMES_OF_SIZE[0]})
    factor = factor_of(other, operation)
    summed = tensor.elementwise or any(part.reduction is Reduction.SUM for part in tensor.parts)
    counts = operation is Operation.DIVIDE and isinstance(other, Num) and not other.tags & {v.UNITS, v.STEPS, v.DERIVED}
    if summed and counts and not _counts_rows(run, other):
        return tensor.scaled(Factor(None, operation))
    return tensor.scaled(factor)


def _counts_rows(run: State, number: Num) -> bool:
    """Whether a number counts the rows of a micro-batch, or is their size times K, and so counts those of a window."""
    if run.recorder.knows_units and number.value == run.recorder.units:
        return True
    steps = run.recorder.size_times(number)
    return steps is not None and run.knowledge.counts_windows(int(steps.value), steps.origins)


def _counts_terms(tensor: Tensor, product: Num) -> bool:
    """Whether a product has the number of a loss's terms written in it: ``(real + fake) / (2 * K)``."""
    terms = len(tensor.parts)
    return terms > 1 and any(is_literal(one.origins) and one.value == terms for one in product.multiplied)


def reduced(tensor: Tensor, reduction: Reduction, *, partly: bool = False) -> Tensor:
    """A tensor after its units were averaged or summed; of several losses of a call, that is their mean or sum."""
    if not tensor.is_each or tensor.elementwise or any(part.is_unreduced for part in tensor.parts):
        return tensor.reduced(reduction, partly=partly)
    terms = replace(tensor, is_each=False)
    return terms if reduction is Reduction.SUM else terms.scaled(factor_of(v.HowMany(), Operation.DIVIDE))


def dot(run: State, left: Any, right: Any) -> Tensor | None:
    """The sum of the products of two vectors' elements; None if no losses are among these."""
    product = binary(run, Operator.MULT, left, right)
    return reduced(product, Reduction.SUM) if isinstance(product, Tensor) else None


def _names_a_coefficient(name: str) -> bool:
    """Whether a setting that multiplies a loss can only be a coefficient of the objective: one that counts nothing."""
    return not COUNTS_OR_SCALES.fits(name)


def factors_of(value: Any, operation: Operation) -> tuple[Factor, ...]:
    """What multiplying or dividing gradients by ``value`` does to them: each side of a quotient has its own origin."""
    if operation is Operation.MULTIPLY and isinstance(value, Num) and value.quotient:
        share, divisor = value.quotient
        return factor_of(share, operation), factor_of(divisor, Operation.DIVIDE)
    return (factor_of(value, operation),)


def factor_of(value: Any, operation: Operation) -> Factor:
    """What multiplying or dividing by ``value`` does to a loss."""
    is_setting = v.is_setting(value) or v.is_option(value)
    if is_setting and operation is Operation.MULTIPLY and _names_a_coefficient(value.name):
        return Factor(None, operation, Purpose.OBJECTIVE, origins=frozenset({value.name}))
    if isinstance(value, v.Extent) and operation is Operation.MULTIPLY:
        # A mean over classes, or places, is made a sum: the objective's, and no division by K, as no size is below 1.
        return Factor(_SOME_SIZE, operation, Purpose.OBJECTIVE)
    if isinstance(value, v.HowMany) and operation is Operation.DIVIDE:
        return Factor(1 / _SOME_SIZE, operation, Purpose.OBJECTIVE)
    if not isinstance(value, Num) or (operation is Operation.DIVIDE and value.value == 0):
        return Factor(None, operation)
    number = float(value.value)
    if operation is Operation.DIVIDE and abs(number) < 1 / v.LARGEST:
        return Factor(None, operation)
    # What is computed from K is K's only as 1/K: the number of its pairs is another.
    inverse = v.DERIVED in value.tags and isinstance(value.value, Fraction) and value.value.numerator == 1
    purpose = Purpose.ACCUMULATION if inverse or v.STEPS in value.tags else Purpose.UNKNOWN
    # What counts the units of a batch is its size, whatever it is called.
    origins = value.origins | {NAMES_OF_SIZE[0]} if v.UNITS in value.tags else value.origins
    if operation is Operation.DIVIDE:
        return Factor(1 / number, operation, purpose, origins=origins)
    # A quotient that was kept in a variable (scale = 1 / K) is still a division.
    operation = Operation.DIVIDE if isinstance(value.value, Fraction) else operation
    return Factor(number, operation, purpose, origins=origins)

"""Losses as the calls that compute them leave them."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.ledger.events import Factor, Purpose, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import ORDERED
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Tensor
from gradcheck_accum.lint.syntax import Comparison, text_of
from gradcheck_accum.lint.torch_calls.masks import counts_what_is_left, targets_leave_out, weighs_targets


def compares_loss(run: State, value: Any, op: Comparison, *others: object) -> bool:
    """Whether a comparison of ``value`` asks how great the loss of the micro-batch under way is; not if that is 0."""
    if op not in ORDERED or not isinstance(value, (Tensor, v.Figure)) or any(other == 0 for other in others):
        return False
    return bool(value.parts) and all(part.micro_batch == run.recorder.micro_batch for part in value.parts)


def all_arguments(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The values of a call's arguments, by position and by name."""
    return [*args, *kwargs.values()]


def computation(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any], models: frozenset[str]) -> Any:
    """A call that computes a tensor from tensors."""
    if not run.no_graphs:
        run.sync.forward(models)
    models = models - run.made.frozen
    given = all_arguments(args, kwargs)
    if models:
        run.draw_made(given)
        run.recorder.note_called_on([value.drawn for value in given if isinstance(value, v.Data)])
    name = text_of(node.func)[:60]
    # What nothing is known of may be what the loss is divided by.
    hidden = any(
        v.carries_steps(value)
        or is_divided_for_accumulation(value)
        or _is_unknown(value)
        or _counts_what_is_split(value)
        or _is_counted_before(run, value)
        for value in given
    )
    beyond = v.reach_beyond(given)
    factors = (Factor(None),) if hidden or beyond else ()
    part = v.Part(
        name,
        Reduction.MEAN,
        factors,
        run.recorder.micro_batch,
        assumed=True,
        given_divisor=hidden,
        leaves_out=bool(models) and targets_leave_out(args, kwargs),
        of_constants=_are_constants(given),
    )
    scaled = any(isinstance(value, Tensor) and value.grad_scaled for value in given)
    computed = Tensor((part,), models | v.models_in(given), scaled, cut_off=v.cut_off_in(given), reaches_beyond=beyond)
    return computed.detached() if run.no_graphs else computed


def is_divided_for_accumulation(value: Any) -> bool:
    """Whether a value is a loss that has been divided for accumulation already: what a call makes of it may be too."""
    return isinstance(value, Tensor) and any(
        factor.purpose is Purpose.ACCUMULATION for part in value.parts for factor in part.factors
    )


def _counts_what_is_split(value: Any) -> bool:
    """Whether a number counts the units of the batch that micro-batches are parts of."""
    return isinstance(value, v.Num) and {v.WHOLE, v.UNITS} <= value.tags


def _is_counted_before(run: State, value: Any) -> bool:
    """Whether a value was made of data, and of no model, before this micro-batch: it may count the whole window's."""
    now = run.recorder.micro_batch
    if isinstance(value, v.Data):
        return value.counted is not None and value.counted < now
    return (
        isinstance(value, Tensor)
        and all(name.startswith("torch.") for name in value.models)
        and all(part.micro_batch < now and not isinstance(part.flow, v.Detached) for part in value.parts)
    )


def _are_constants(given: list[Any]) -> bool:
    """Whether all data among values, and all that was computed of data, is what the source writes (an edge's place)."""
    data = [value.holds is v.Holds.CONSTANTS for value in given if isinstance(value, v.Data)]
    computed = [part.of_constants for value in given if isinstance(value, Tensor) for part in value.parts]
    return bool(data or computed) and all(data) and all(computed)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, v.Symbol) and not value.name and not isinstance(value, (v.Word, v.Extent))


IGNORED = "ignore_index"
"""The argument that says which targets are none."""


def loss(
    run: State,
    name: str,
    reduction: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    leaves_out: bool = False,
) -> Tensor:
    """What a loss of PyTorch's own gives; ``leaves_out`` says that targets of a certain value are none of its units."""
    given = all_arguments(args, kwargs)
    run.use(given)
    kind = Reduction.SUM if reduction == "sum" else Reduction.MEAN
    is_shown = reduction is None or isinstance(reduction, str)
    # Of a mean over more than the micro-batch, its own part is no mean: all parts add up to one loss.
    factors = () if is_shown and not v.reach_beyond(given) else (Factor(None),)
    weighted = reduction != "none" and weighs_targets(name, args[2:3], kwargs)
    varies = weighted or counts_what_is_left(name, args, kwargs, reduction, leaves_out or IGNORED in kwargs)
    constant = _are_constants(given)
    part = v.Part(name, kind, factors, run.recorder.micro_batch, leaves_out=varies, of_constants=constant)
    return Tensor((part,), v.models_in(given), elementwise=reduction == "none", cut_off=v.cut_off_in(given))

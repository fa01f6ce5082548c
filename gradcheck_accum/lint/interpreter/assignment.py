"""Binding names, attributes and items to values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Factor
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.frameworks import self_counting
from gradcheck_accum.lint.program.names import BEGINNING
from gradcheck_accum.lint.program.torch_names import SYNC_SWITCH
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import text_of
from gradcheck_accum.lint.torch_calls.gradient_changes import changes_unknown
from gradcheck_accum.lint.torch_calls.masks import are_counted_places, chooses, is_left_out
from gradcheck_accum.lint.torch_calls.metrics import shown
from gradcheck_accum.lint.torch_calls.models import sources_of
from gradcheck_accum.lint.torch_calls.own_networks import keep


def assign(run: State, target: syntax.Expression, value: Any, scope: v.Scope) -> None:
    """Bind a target to a value."""
    match target:
        case syntax.Name() if _resumes(run, target.id, scope.names.get(target.id), value):
            pass
        case syntax.Name():
            scope.assign(target.id, v.known_as(self_counting.named(run, target.id, value), target.id))
        case syntax.Starred():
            assign(run, target.value, value, scope)
        case syntax.Tuple() | syntax.List():
            for element, item in zip(target.elts, _unpack(value, target.elts), strict=False):
                assign(run, element, item, scope)
        case syntax.Attribute():
            _assign_attribute(run, target, run.evaluate(target.value, scope), value)
        case syntax.Subscript():
            holder = run.evaluate(target.value, scope)
            if isinstance(target.slice, syntax.Slice) and isinstance(value, Tensor) and value.models:
                _write_part(run, target, holder, value, scope)
            key = run.evaluate(target.slice, scope) if not isinstance(target.slice, syntax.Slice) else None
            if isinstance(holder, dict):
                if len(holder) < v.LONGEST_LIST:
                    holder[v.key_of(key, text_of(target.slice))] = value
            elif (
                isinstance(holder, list)
                and isinstance(key, Num)
                and isinstance(key.value, int)
                and -len(holder) <= key.value < len(holder)
            ):
                holder[key.value] = value
            elif isinstance(holder, v.Data) and chooses(key) and is_left_out(value):
                assign(run, target.value, replace(holder, ignored=True), scope)
            elif isinstance(holder, v.Data) and holder.is_blank:
                # As many of it count as are written.
                ignored = holder.ignored or chooses(key)
                assign(run, target.value, replace(holder, ignored=ignored, is_blank=are_counted_places(key)), scope)
            elif isinstance(holder, v.Data) and isinstance(key, str) and v.may_divide_by_steps(value):
                assign(run, target.value, replace(holder, tells_steps=True), scope)
            elif isinstance(holder, Tensor) and not isinstance(key, (str, Num)) and _is_scaled(value):
                # Which of the losses of a dictionary it takes the place of is not known (`for k in losses:`).
                if not holder.elementwise:
                    parts = tuple(replace(part, given_divisor=True) for part in holder.scaled(Factor(None)).parts)
                    assign(run, target.value, replace(holder, parts=parts), scope)
            elif isinstance(key, str):
                _assign_to_unknown(run, target, holder, key, value)


def _resumes(run: State, name: str, before: Any, value: Any) -> bool:
    """Whether a training that would begin at a number of the source is put elsewhere, where an earlier one was left.

    It is read from its beginning.
    """
    if run.in_training or not isinstance(before, Num) or not isinstance(before.value, int):
        return False
    return isinstance(value, (Symbol, v.Member)) and bool(BEGINNING.fits(name))


def assign_in_place(run: State, target: syntax.Expression, before: Tensor, after: Tensor, scope: v.Scope) -> None:
    """Bind a target to what its tensor has been changed to; a parameter's is also that of whoever passed it."""
    assign(run, target, after, scope)
    for function, caller in zip(reversed(run.calls.stack), reversed(run.calls.frames[:-1]), strict=False):
        call = run.calls.by.get(function)
        given = (*call.args, *(keyword.value for keyword in call.keywords)) if call is not None else ()
        holders = [one for one in given if isinstance(one, (syntax.Name, syntax.Attribute))]
        passed = [one for one in holders if run.evaluate(one, caller) is before]
        for holder in passed:
            assign(run, holder, after, caller)
        if not passed:
            return


def _is_scaled(value: Any) -> bool:
    """Whether a value is a loss that was multiplied or divided by something."""
    return isinstance(value, Tensor) and any(part.factors for part in value.parts)


def _write_part(run: State, target: syntax.Subscript, holder: Any, value: Tensor, scope: v.Scope) -> None:
    """Write what was computed of a micro-batch into a part of what was computed outside of it (gradient caching).

    A loss over all of it is then one of the whole batch, of which this micro-batch's backward is a term.
    """
    now = {part.micro_batch for part in value.parts}
    outside = isinstance(holder, Tensor) and all(part.micro_batch not in now for part in holder.parts)
    unknown = type(holder) is Symbol and not holder.name
    name = target.value
    while isinstance(name, syntax.Subscript):
        name = name.value
    if isinstance(name, syntax.Name) and run.loops.depth and (outside or unknown):
        assign(run, name, replace(value, reaches_beyond=True), scope)


def _assign_attribute(run: State, target: syntax.Attribute, holder: Any, value: Any) -> None:
    if changes_unknown(run, target, holder):
        return
    if target.attr == "grad" and isinstance(holder, (v.Parameters, v.Model)):
        if value is None:
            run.recorder.zero(target, sources_of(holder))
        elif isinstance(value, v.Multiplied) and value.sources == sources_of(holder):
            for factor in value.factors:
                run.recorder.scale_grads(target, value.sources, factor)
        elif not (isinstance(value, v.Gradient) and value.sources == sources_of(holder)):
            run.recorder.opaque(target, "gradients replaced by hand")
    elif target.attr == "requires_grad":
        run.freeze(sources_of(holder), value)
    elif target.attr == SYNC_SWITCH and sources_of(holder) is not None:
        run.sync.switch(sources_of(holder) or (), value if isinstance(value, bool) else None)
    elif isinstance(holder, v.Instance) and _resumes(run, target.attr, holder.attributes.get(target.attr), value):
        return
    elif isinstance(holder, (v.Instance, v.Class, v.Function)):
        holder.attributes[target.attr] = v.known_as(value, target.attr)
    elif isinstance(holder, v.Model):
        keep(run, holder, target.attr, value)
    else:
        _assign_to_unknown(run, target, holder, target.attr, value)


def _assign_to_unknown(run: State, target: syntax.Expression, holder: Any, name: str, value: Any) -> None:
    """``state.step = 0`` or ``state["step"] = 0``, where nothing else is known of what ``state`` holds.

    A number read from losses that is put into it is there to be reported.
    """
    if isinstance(value, v.Figure) and isinstance(holder, (Symbol, v.Tensor)):
        shown(run, target, [value], to_a_person=False)
    if isinstance(holder, Symbol) and holder.name:
        run.assigned[holder.member(name).name] = value
    elif isinstance(holder, v.Tensor) and holder.parts:
        run.replaced[holder.parts[0].flow, name] = value


def _unpack(value: Any, targets: Sequence[syntax.Expression]) -> list[Any]:
    count = len(targets)
    starred = next((place for place, target in enumerate(targets) if isinstance(target, syntax.Starred)), None)
    if isinstance(value, (list, tuple)) and not (
        value and value[0] in ("range", "zip", "enumerate", "islice", "shape", "slice")
    ):
        items = [*value, *[Symbol()] * (count - len(value))]
        if starred is None:
            return items
        last = len(items) - (count - starred - 1)
        return [*items[:starred], items[starred:last], *items[last:]]
    if isinstance(value, Symbol):
        return [value.member(str(i)) for i in range(count)]
    if isinstance(value, v.Optimizer):
        # `optimizer, self.scheduler = make_optimizer(...)`: only their own names tell them apart.
        return [Symbol(text_of(t)) if isinstance(t, (syntax.Name, syntax.Attribute)) else Symbol() for t in targets]
    if isinstance(value, v.Parameters) and count == 2:
        return [Symbol(), value]
    if isinstance(value, Tensor):
        return [value.element(place) for place in range(count)]
    if isinstance(value, v.Data) and value.is_tensor and value.rows == count:
        # A tensor is taken apart by its rows; a batch, by what it consists of.
        return [value.changed()] * count
    if isinstance(value, v.Data) and len(value.columns) == count:
        return [replace(value, holds=holds, columns=()) for holds in value.columns]
    return [value] * count

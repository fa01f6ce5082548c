"""Binding names, attributes and items to values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.by_hand import changes_unknown
from gradcheck_accum.lint.chosen import chooses, is_left_out
from gradcheck_accum.lint.distributed import SWITCH
from gradcheck_accum.lint.objects import sources_of
from gradcheck_accum.lint.values import Num, Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter


def assign(run: Interpreter, target: syntax.Expression, value: Any, scope: v.Scope) -> None:
    """Bind a target to a value."""
    match target:
        case syntax.Name():
            scope.assign(target.id, value.known_as(target.id) if isinstance(value, Num) else value)
        case syntax.Starred():
            assign(run, target.value, value, scope)
        case syntax.Tuple() | syntax.List():
            for element, item in zip(target.elts, _unpack(value, target.elts), strict=False):
                assign(run, element, item, scope)
        case syntax.Attribute():
            _assign_attribute(run, target, run.evaluate(target.value, scope), value)
        case syntax.Subscript():
            holder = run.evaluate(target.value, scope)
            key = run.evaluate(target.slice, scope) if not isinstance(target.slice, syntax.Slice) else None
            if isinstance(holder, dict) and isinstance(key, str):
                holder[key] = value
            elif (
                isinstance(holder, list)
                and isinstance(key, Num)
                and isinstance(key.value, int)
                and -len(holder) <= key.value < len(holder)
            ):
                holder[key.value] = value
            elif isinstance(holder, v.Data) and chooses(key) and is_left_out(value):
                assign(run, target.value, replace(holder, ignored=True), scope)
            elif isinstance(key, str):
                _assign_to_unknown(run, holder, key, value)


def _assign_attribute(run: Interpreter, target: syntax.Attribute, holder: Any, value: Any) -> None:
    if changes_unknown(run, target, holder):
        return
    if target.attr == "grad" and isinstance(holder, v.Parameters):
        if value is None:
            run.recorder.zero(target, holder.sources)
        elif isinstance(value, Symbol) or not isinstance(value, v.Gradient):
            run.recorder.opaque(target, "gradients replaced by hand")
    elif target.attr == "requires_grad":
        run.freeze(sources_of(run, holder), value)
    elif target.attr == SWITCH and sources_of(run, holder) is not None:
        run.sync.switch(sources_of(run, holder) or (), value if isinstance(value, bool) else None)
    elif isinstance(holder, (v.Instance, v.Class)):
        holder.attributes[target.attr] = value.known_as(target.attr) if isinstance(value, Num) else value
    else:
        _assign_to_unknown(run, holder, target.attr, value)


def _assign_to_unknown(run: Interpreter, holder: Any, name: str, value: Any) -> None:
    """``state.step = 0`` or ``state["step"] = 0``, where nothing else is known of what ``state`` holds."""
    if isinstance(holder, Symbol) and holder.name:
        run.assigned[holder.member(name).name] = value


def _unpack(value: Any, targets: Sequence[syntax.Expression]) -> list[Any]:
    count = len(targets)
    if isinstance(value, (list, tuple)) and not (
        value and value[0] in ("range", "zip", "enumerate", "islice", "shape", "slice")
    ):
        return list(value) if len(value) >= count else [*value, *[Symbol()] * (count - len(value))]
    if isinstance(value, Symbol):
        return [value.member(str(i)) for i in range(count)]
    if isinstance(value, v.Optimizer):
        # `optimizer, scheduler = make_optimizer(...)`: only their own names tell them apart.
        return [Symbol(target.id) if isinstance(target, syntax.Name) else Symbol() for target in targets]
    if isinstance(value, v.Parameters) and count == 2:
        return [Symbol(), value]
    if isinstance(value, Tensor):
        return [value.element(place) for place in range(count)]
    return [value] * count

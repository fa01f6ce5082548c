"""What a loop does to gradients by hand: in place, one parameter at a time or all of them at once."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.ledger.events import Operation
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import (
    BLENDS_ALL,
    BOUNDS_IN_PLACE,
    DIVIDES_IN_PLACE,
    FOREACH,
    KEEPS_VALUES,
    MULTIPLIES_IN_PLACE,
    SETS_IN_PLACE,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.torch_calls.arithmetic import factors_of
from gradcheck_accum.lint.torch_calls.weight_averages import note_blend


def change_gradients(run: State, node: syntax.Node, gradients: v.Gradient, name: str, args: list[Any]) -> None:
    """Record what the tensor method ``name`` does to gradients."""
    if name in SETS_IN_PLACE or (name in MULTIPLIES_IN_PLACE and args and args[0] == Num(0)):
        run.recorder.zero(node, gradients.sources)
    elif name in DIVIDES_IN_PLACE | MULTIPLIES_IN_PLACE and args:
        operation = Operation.DIVIDE if name in DIVIDES_IN_PLACE else Operation.MULTIPLY
        scale_gradients(run, node, gradients, args[0], operation)
    elif name in BOUNDS_IN_PLACE:
        run.recorder.clip(node, gradients.sources)
    elif _changes_values(name):
        run.recorder.opaque(node, "gradients changed by hand")


def scale_gradients(run: State, node: syntax.Node, gradients: v.Gradient, by: Any, operation: Operation) -> None:
    """Record that gradients are multiplied or divided; by a number that was computed from them, they are clipped."""
    if isinstance(by, v.Measured):
        run.recorder.clip(_call_of_clip(run, node), gradients.sources)
    else:
        for factor in factors_of(by, operation):
            run.recorder.scale_grads(node, gradients.sources, factor)


def _call_of_clip(run: State, node: syntax.Node) -> syntax.Node:
    """Where a function that does nothing but clip is called: whether that is right depends on where it is."""
    function = run.calls.stack[-1] if run.calls.stack else None
    if not isinstance(function, syntax.FunctionDef) or run.reach.backward(function) or run.reach.steps(function.body):
        return node
    return run.calls.by.get(function, node)


def foreach(run: State, node: syntax.Node, path: str, args: list[Any]) -> bool:
    """Record a call of ``torch._foreach_...``; whether it was one."""
    beginning = f"torch.{FOREACH}"
    if not path.startswith(beginning) or not args:
        return False
    if isinstance(args[0], v.Gradient):
        change_gradients(run, node, args[0], path.removeprefix(beginning), args[1:])
    elif path.endswith(BLENDS_ALL) and len(args) > 1:
        note_blend(run, node, args[0], args[1])
    elif path.endswith("_") and not isinstance(args[0], v.Parameters) and run.in_training:
        run.recorder.opaque(node, "a change of tensors that is not known")
    return True


def changes_unknown(run: State, target: syntax.Expression, value: Any, method: str = "_") -> bool:
    """Whether the ``.grad`` of something that may be a parameter is changed in place; it is then recorded.

    A tensor that the file makes is data, unless it may be among what an optimizer was given.
    """
    if not run.in_training or not _changes_values(method) or not is_gradient(target):
        return False
    hidden = any(optimizer.sources is None for optimizer in run.made.optimizers.values())
    if not (isinstance(value, Symbol) or (isinstance(value, v.Data) and hidden)):
        return False
    run.recorder.opaque(target, "the gradients of something that is not known")
    return True


def _changes_values(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__") and method not in KEEPS_VALUES


def is_gradient(node: syntax.Node) -> bool:
    """Whether an expression is the ``.grad`` of something."""
    if isinstance(node, syntax.Attribute) and node.attr == "data":
        return is_gradient(node.value)
    return isinstance(node, syntax.Attribute) and node.attr == "grad"

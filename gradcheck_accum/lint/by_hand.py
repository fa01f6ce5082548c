"""What a loop does to gradients by hand: in place, one parameter at a time or all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Operation
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.arithmetic import factor_of
from gradcheck_accum.lint.averages import BLENDS_ALL, note_blend
from gradcheck_accum.lint.values import Num, Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_KEEPS_VALUES = frozenset({"detach_", "requires_grad_", "share_memory_"})
_FOREACH = "torch._foreach_"


def change_gradients(run: Interpreter, node: syntax.Node, gradients: v.Gradient, name: str, args: list[Any]) -> None:
    """Record what the tensor method ``name`` does to gradients."""
    if name in {"zero_", "fill_"} or (name == "mul_" and args and args[0] == Num(0)):
        run.recorder.zero(node, gradients.sources)
    elif name in {"div_", "mul_"} and args:
        operation = Operation.DIVIDE if name == "div_" else Operation.MULTIPLY
        run.recorder.scale_grads(node, gradients.sources, factor_of(args[0], operation))
    elif name in {"clamp_", "clip_"}:
        run.recorder.clip(node, gradients.sources)
    elif name in {"add_", "copy_", "sub_"}:
        run.recorder.opaque(node, "gradients changed by hand")


def foreach(run: Interpreter, node: syntax.Node, path: str, args: list[Any]) -> bool:
    """Record a call of ``torch._foreach_...``; whether it was one."""
    if not path.startswith(_FOREACH) or not args:
        return False
    if isinstance(args[0], v.Gradient):
        change_gradients(run, node, args[0], path.removeprefix(_FOREACH), args[1:])
    elif path.endswith(BLENDS_ALL) and len(args) > 1:
        note_blend(run, node, args[0], args[1])
    elif path.endswith("_") and not isinstance(args[0], v.Parameters) and run.in_training:
        run.recorder.opaque(node, "a change of tensors that could not be told")
    return True


def changes_unknown(run: Interpreter, target: syntax.Expression, value: Any, method: str = "_") -> bool:
    """Whether the ``.grad`` of something that may be a parameter is changed in place; it is then recorded.

    A tensor that the file makes is data, unless it may be among what an optimizer was given.
    """
    if not run.in_training or not method.endswith("_") or method in _KEEPS_VALUES or not is_gradient(target):
        return False
    hidden = any(optimizer.sources is None for optimizer in run.optimizers.values())
    if not (isinstance(value, Symbol) or (isinstance(value, v.Data) and hidden)):
        return False
    run.recorder.opaque(target, "the gradients of something that could not be told")
    return True


def is_gradient(node: syntax.Node) -> bool:
    """Whether an expression is the ``.grad`` of something."""
    if isinstance(node, syntax.Attribute) and node.attr == "data":
        return is_gradient(node.value)
    return isinstance(node, syntax.Attribute) and node.attr == "grad"

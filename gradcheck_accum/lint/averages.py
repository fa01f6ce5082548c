"""Moving averages of the weights: those of libraries, and those written by hand as d * average + (1 - d) * p."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.syntax import Operator, text_of
from gradcheck_accum.lint.values import Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

UPDATES = {
    "AveragedModel": "update_parameters",
    "ModelEma": "update",
    "ModelEmaV2": "update",
    "ModelEmaV3": "update",
    "EMAModel": "step",
    "ExponentialMovingAverage": "update",
}
"""The method by which each kind takes in the weights, at every call."""
_LIBRARIES = ("torch.", "timm.", "diffusers.", "torch_ema.")
BLENDS_ALL = "_foreach_lerp_"
_SIMPLE = (syntax.Name, syntax.Attribute, syntax.Subscript)


def new_average(run: Interpreter, path: str, sources: frozenset[str] | None) -> v.Average | None:
    """The average of the weights of ``sources`` that a call of an imported name makes, or None if it makes none."""
    kind = path.rpartition(".")[2]
    if kind not in UPDATES or not path.startswith(_LIBRARIES):
        return None
    run.recorder.averages += 1
    return v.Average(kind, f"{kind} {run.recorder.averages}", run.recorder.micro_batch + 1, sources)


def is_update(average: v.Average, method: str) -> bool:
    """Whether a method of a library's average takes in the weights."""
    return UPDATES[average.kind] == method


def note_update(run: Interpreter, node: syntax.Expression, scope: v.Scope) -> None:
    """Record an expression that takes weights into an average, if it is one."""
    for operand in blended(node):
        target, weights = (run.evaluate(one, scope) if isinstance(one, _SIMPLE) else Symbol() for one in operand)
        if isinstance(weights, v.Parameters) and not isinstance(target, (v.Gradient, v.Tensor, v.Data)):
            own = target.sources if isinstance(target, v.Parameters) else None
            if own is None or own != weights.sources:
                name = f"{sorted(own or ())} {_holder(scope)}"
                run.recorder.average(node, name, run.recorder.entered, weights.sources)
                return


def note_blend(run: Interpreter, node: syntax.Node, targets: Any, weights: Any) -> None:
    """Record a call that takes all weights into an average at once (``torch._foreach_lerp_``), if it is one."""
    if isinstance(weights, v.Parameters) and not isinstance(targets, (v.Gradient, v.Tensor, v.Data)):
        own = targets.sources if isinstance(targets, v.Parameters) else None
        if own is None or own != weights.sources:
            run.recorder.average(node, f"{sorted(own or ())}", run.recorder.entered, weights.sources)


def _holder(scope: v.Scope) -> int:
    """What tells the object whose method this is from others of its class."""
    found = scope.find("self")
    return id(found.names["self"]) if found is not None else 0


def blended(node: syntax.Expression) -> list[tuple[syntax.Expression, syntax.Expression]]:
    """The average and what it takes in, in either order, where an expression blends the two by d and 1 - d."""
    match node:
        case syntax.BinOp(
            op=Operator.ADD,
            left=syntax.BinOp(op=Operator.MULT) as left,
            right=syntax.BinOp(op=Operator.MULT) as right,
        ):
            for one, first in ((left.left, left.right), (left.right, left.left)):
                for other, second in ((right.left, right.right), (right.right, right.left)):
                    if _add_up(one, other):
                        return [(_bare(first), _bare(second)), (_bare(second), _bare(first))]
        case syntax.Call(func=syntax.Attribute(value=target, attr="lerp_"), args=[weights, _]):
            return [(_bare(target), _bare(weights))]
        case syntax.Call(
            func=syntax.Attribute(
                value=syntax.Call(func=syntax.Attribute(value=target, attr="mul_"), args=[decay]), attr="add_"
            ),
            args=[added],
            keywords=keywords,
        ):
            alpha = next((k.value for k in keywords if k.arg == "alpha"), None)
            if alpha is not None and _add_up(decay, alpha):
                return [(_bare(target), _bare(added))]
            if isinstance(added, syntax.BinOp) and added.op is Operator.MULT and alpha is None:
                for one, other in ((added.left, added.right), (added.right, added.left)):
                    if _add_up(decay, one):
                        return [(_bare(target), _bare(other))]
    return []


def _add_up(one: syntax.Expression, other: syntax.Expression) -> bool:
    """Whether two expressions are the parts of one: d and 1 - d, or two such numbers."""
    for part, rest in ((one, other), (other, one)):
        if isinstance(rest, syntax.BinOp) and rest.op is Operator.SUB and _is_one(rest.left):
            return text_of(rest.right) == text_of(part)
    numbers = [n.value for n in (one, other) if isinstance(n, syntax.Constant) and isinstance(n.value, float)]
    return len(numbers) == 2 and math.isclose(sum(numbers), 1.0)


def _is_one(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Constant) and node.value == 1


def _bare(node: syntax.Expression) -> syntax.Expression:
    """An operand without what changes no number: ``p.data``, ``p.detach()``, ``p.clone()``."""
    while True:
        match node:
            case syntax.Attribute(value=inner, attr="data"):
                node = inner
            case syntax.Call(func=syntax.Attribute(value=inner, attr="detach" | "clone" | "to" | "cpu" | "float")):
                node = inner
            case _:
                return node

"""Moving averages of the weights: those of libraries, and those written by hand as d * average + (1 - d) * p."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.blends import blended
from gradcheck_accum.lint.program.torch_names import AVERAGES, HAVE_AVERAGES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Symbol

_SIMPLE = (syntax.Name, syntax.Attribute, syntax.Subscript)


def new_average(run: State, path: str, sources: frozenset[str] | None) -> v.Average | None:
    """The average of the weights of ``sources`` that a call of an imported name makes, or None if it makes none."""
    kind = path.rpartition(".")[2]
    if kind not in AVERAGES or not path.startswith(HAVE_AVERAGES):
        return None
    run.recorder.averages += 1
    return v.Average(kind, f"{kind} {run.recorder.averages}", run.recorder.micro_batch + 1, sources)


def is_update(average: v.Average, method: str) -> bool:
    """Whether a method of a library's average takes in the weights."""
    return AVERAGES[average.kind] == method


def note_update(run: State, node: syntax.Expression, scope: v.Scope) -> None:
    """Record an expression that takes weights into an average, if it is one."""
    for operand in blended(node):
        target, weights = (run.evaluate(one, scope) if isinstance(one, _SIMPLE) else Symbol() for one in operand)
        if isinstance(weights, v.Parameters) and not isinstance(target, (v.Gradient, v.Tensor, v.Data)):
            own = target.sources if isinstance(target, v.Parameters) else None
            if own is None or own != weights.sources:
                name = f"{sorted(own or ())} {_holder(scope)}"
                run.recorder.average(node, name, run.recorder.entered, weights.sources)
                return


def note_blend(run: State, node: syntax.Node, targets: Any, weights: Any) -> None:
    """Record a call that takes all weights into an average at once (``torch._foreach_lerp_``), if it is one."""
    if isinstance(weights, v.Parameters) and not isinstance(targets, (v.Gradient, v.Tensor, v.Data)):
        own = targets.sources if isinstance(targets, v.Parameters) else None
        if own is None or own != weights.sources:
            run.recorder.average(node, f"{sorted(own or ())}", run.recorder.entered, weights.sources)


def _holder(scope: v.Scope) -> int:
    """What tells the object whose method this is from others of its class."""
    found = scope.find("self")
    return id(found.names["self"]) if found is not None else 0

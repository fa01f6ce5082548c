"""Callables that run backward and, if an argument says so, step: ``loss_scaler(loss, optimizer, update_grad=...)``.

So does timm's NativeScaler, and so do its many descendants. What it does is known by how it is called, whoever made
it: its backward comes at every call, with the scale of a grad scaler that is taken out again before anything is
clipped; the clip and the step come only where the gate that it was given holds. It clears nothing.
"""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import truth_of
from gradcheck_accum.lint.program.torch_names import GATES
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.torch_calls.gradients import record_backward, record_step
from gradcheck_accum.lint.torch_calls.optimizers import as_optimizer, optimizer_passed


def makes_it_step(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Carry out a call of something unknown if it is one of these; whether it is."""
    gates = [kwargs[name] for name in GATES if name in kwargs]
    loss = args[0] if args else kwargs.get("loss")
    given = args[1] if len(args) > 1 else kwargs.get("optimizer")
    by_name = next((keyword.value for keyword in node.keywords if keyword.arg == "optimizer"), None)
    written = node.args[1] if len(node.args) > 1 else by_name
    optimizer = optimizer_passed(run, written, given) if written is not None else as_optimizer(run, given)
    if len(gates) != 1 or loss is None or optimizer is None:
        return False
    record_backward(run, node, loss, weighted=False)
    steps = truth_of(run, gates[0])
    if steps is None:
        run.recorder.opaque(node, "a step that another function decides on")
    elif steps:
        record_step(run, node, optimizer)
    return True

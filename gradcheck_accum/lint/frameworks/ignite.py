"""Ignite: an Engine calls one function with every batch of data, and counts the calls in ``engine.state.iteration``."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.torch_calls.data import assumed_length, batches_of, length_of
from gradcheck_accum.lint.torch_calls.metrics import mean, shown

_CLASS = "ignite.engine.Engine"
_AVERAGE = "ignite.metrics.RunningAverage"
_ENGINE = Symbol("engine")
_EPOCHS = 2


def new_driver(path: str, args: list[Any]) -> v.Driver | None:
    """The Engine that a call of an imported name makes around a function of the file, or None."""
    return v.Driver(args[0]) if path == _CLASS and len(args) == 1 and isinstance(args[0], v.Function) else None


def new_running_mean(path: str) -> v.RunningMean | None:
    """The metric that a call of an imported name makes if that is a running mean of outputs, or None."""
    return v.RunningMean() if path == _AVERAGE else None


def attach(node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    """``RunningAverage(...).attach(trainer, "loss")``: what the trainer's function returns is shown as a mean."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, v.Driver):
            value.averaged_at = node


def drive(run: State, driver: v.Driver, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``trainer.run(loader)``: calls the function with every batch, in passes; its count goes on over all of them."""
    data = args[0] if args else kwargs.get("data", Symbol())
    if not run.reach.backward(driver.function.node):
        return Symbol()
    run.recorder.assumed_turns = True
    iteration = 0
    for _ in range(_EPOCHS):
        run.recorder.open_pass()
        run.loops.passes += 1
        run.loops.depth += 1
        outputs: list[Any] = []
        try:
            for batch in _batches(run, data):
                iteration += 1
                run.loops.begin_turn(True)
                run.draw()
                run.assigned[f"{_ENGINE.name}.state.iteration"] = Num(iteration)
                outputs.append(call_function(run, driver.function, [_ENGINE, batch], {}))
        finally:
            run.loops.depth -= 1
            run.loops.passes -= 1
        if driver.averaged_at is not None:
            for kind in zip(*map(_parts, outputs), strict=False):
                shown(run, driver.averaged_at, [mean(run, list(kind))])
    return Symbol()


def _parts(output: Any) -> list[Any]:
    """What a function returns to its driver, one by one."""
    if isinstance(output, dict):
        return list(output.values())
    return list(output) if isinstance(output, (list, tuple)) else [output]


def _batches(run: State, data: Any) -> list[v.Data]:
    if isinstance(data, v.Loader):
        run.recorder.learn_units(data.rows)
        return batches_of(data, length_of(run, data))
    return [v.Data()] * assumed_length(run, data)

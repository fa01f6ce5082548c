"""Ignite: an Engine calls one function with every batch of data, and counts the calls in ``engine.state.iteration``."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.reach import Reach
from gradcheck_accum.lint.program.torch_names import DRIVER
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.torch_calls import metrics
from gradcheck_accum.lint.torch_calls.data import assumed_length, batches_of, length_of

_CLASS = f"ignite.engine.{DRIVER}"
_ENGINE = Symbol("engine")
_EPOCHS = 2


def new_driver(path: str, args: list[Any]) -> v.Driver | None:
    """The Engine that a call of an imported name makes around a function of the file, or None."""
    return v.Driver(args[0]) if path == _CLASS and len(args) == 1 and isinstance(args[0], v.Function) else None


def is_process_function(reach: Reach, function: syntax.FunctionDef) -> bool:
    """Whether an Engine is made in the file around a function that takes an engine and a batch.

    Whoever runs that elsewhere trains with the function.
    """
    spec = function.args
    takes = [*spec.posonlyargs, *spec.args]
    return function.name in reach.driven and len(takes) - (takes[:1] != [] and takes[0].arg == "self") == 2


def drive(run: State, driver: v.Driver, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``trainer.run(loader)``: calls the function with every batch, in passes; its count goes on over all of them.

    What the function returns is there to be reported: metrics, progress bars and loggers get it as the engine's output.
    """
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
        _report(run, driver, outputs)
    return Symbol()


def _named(output: Any) -> dict[Any, Any]:
    """What an output consists of, by keys or places."""
    if isinstance(output, dict):
        return output
    return dict(enumerate(output if isinstance(output, tuple) else (output,)))


def _report(run: State, driver: v.Driver, outputs: list[Any]) -> None:
    """Report the mean of each number that was read from losses among the outputs of a pass."""
    each = [_named(output) for output in outputs]
    for key in each[0] if each else ():
        numbers = [named.get(key) for named in each]
        if all(isinstance(number, v.Figure) for number in numbers):
            of_pass = metrics.mean(run, numbers)
            if isinstance(of_pass, v.Figure):
                run.recorder.show(driver.function.node, of_pass)


def _batches(run: State, data: Any) -> list[v.Data]:
    if isinstance(data, v.Loader):
        run.recorder.learn_units(data.rows)
        return batches_of(data, length_of(run, data))
    return [v.Data()] * assumed_length(run, data)

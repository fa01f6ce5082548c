"""Ignite: an Engine calls one function with every batch of data, and counts the calls in ``engine.state.iteration``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.data import assumed_length, batches_of, length_of
from gradcheck_accum.lint.functions import call_function
from gradcheck_accum.lint.values import Num, Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_CLASS = "ignite.engine.Engine"
_ENGINE = Symbol("engine")
_EPOCHS = 2


def new_driver(path: str, args: list[Any]) -> v.Driver | None:
    """The Engine that a call of an imported name makes around a function of the file, or None."""
    return v.Driver(args[0]) if path == _CLASS and len(args) == 1 and isinstance(args[0], v.Function) else None


def drive(run: Interpreter, driver: v.Driver, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``trainer.run(loader)``: calls the function with every batch, in passes; its count goes on over all of them."""
    data = args[0] if args else kwargs.get("data", Symbol())
    if not run.reach.backward(driver.function.node):
        return Symbol()
    run.recorder.assumed_turns = True
    iteration = 0
    for _ in range(_EPOCHS):
        run.recorder.open_pass()
        run.pass_depth += 1
        run.loop_depth += 1
        try:
            for batch in _batches(run, data):
                iteration += 1
                run.begin_turn(True)
                run.draw()
                run.assigned[f"{_ENGINE.name}.state.iteration"] = Num(iteration)
                call_function(run, driver.function, [_ENGINE, batch], {})
        finally:
            run.loop_depth -= 1
            run.pass_depth -= 1
    return Symbol()


def _batches(run: Interpreter, data: Any) -> list[v.Data]:
    if isinstance(data, v.Loader):
        run.recorder.learn_units(data.rows)
        return batches_of(data, length_of(run, data))
    return [v.Data()] * assumed_length(run, data)

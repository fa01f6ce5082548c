"""Learning rate schedulers: what each was planned for, as far as the source says, and where it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import (
    HAVE_SCHEDULERS,
    HORIZONS,
    LENGTH_OF_OWN_SCHEDULE,
    NAMES_OF_LENGTH,
    PREPARES_ONE,
    SCHEDULERS,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import Operator
from gradcheck_accum.lint.torch_calls.arithmetic import of_numbers
from gradcheck_accum.lint.torch_calls.data import batches_in
from gradcheck_accum.lint.torch_calls.schedule_lengths import planned_moves


def new_scheduler(run: State, path: str, args: list[Any], kwargs: dict[str, Any]) -> v.Scheduler | None:
    """The scheduler that a call of an imported name makes, or None if it makes none."""
    kind = path.rpartition(".")[2]
    if not path.startswith(HAVE_SCHEDULERS) or not (kind in HORIZONS or path.startswith("torch.")):
        return None
    run.recorder.schedulers += 1
    name, since = f"{kind} {run.recorder.schedulers}", run.recorder.micro_batch + 1
    optimizer = next((value for value in (*args, *kwargs.values()) if isinstance(value, v.Optimizer)), None)
    if kind == "LambdaLR":
        function = kwargs.get("lr_lambda", args[1] if len(args) > 1 else None)
        return v.Scheduler(name, since, optimizer, planned_moves(run, function))
    if kind not in HORIZONS:
        return v.Scheduler(name, since, optimizer)
    parameter, place = HORIZONS[kind]
    horizon = kwargs.get(parameter, args[place] if len(args) > place else None)
    if horizon is None and {"epochs", "steps_per_epoch"} <= kwargs.keys():
        horizon = v.Computed(op=Operator.MULT, left=kwargs["epochs"], right=kwargs["steps_per_epoch"])
    return v.Scheduler(name, since, optimizer, horizon)


def own_scheduler(run: State, cls: v.Class, args: list[Any], kwargs: dict[str, Any]) -> v.Scheduler | None:
    """The scheduler that a class of the file makes: what says by its name how many moves there are is its length."""
    scheduler = new_scheduler(run, f"{SCHEDULERS}{cls.node.name}", args, kwargs)
    init = cls.methods.get("__init__")
    if scheduler is None or init is None:
        return scheduler
    parameters = [argument.arg for argument in (*init.args.posonlyargs, *init.args.args)][1:]
    given = dict(zip(parameters, args, strict=False)) | kwargs
    lengths = [given[name] for name in NAMES_OF_LENGTH if name in given]
    return replace(scheduler, horizon=lengths[0]) if lengths else scheduler


def with_own_schedule(run: State, optimizer: v.Optimizer, kwargs: dict[str, Any]) -> v.Optimizer:
    """An optimizer with the schedule that it holds where it is given its length (BertAdam's ``t_total``)."""
    length = next((kwargs[name] for name in LENGTH_OF_OWN_SCHEDULE if name in kwargs), None)
    if length is not None and optimizer.schedule is None:
        name, since = f"the schedule of {optimizer.name}", run.recorder.micro_batch + 1
        optimizer.schedule = v.Scheduler(name, since, optimizer, length)
    return optimizer


def move(run: State, node: syntax.Node, scheduler: v.Scheduler, args: list[Any], kwargs: dict[str, Any]) -> None:
    """``scheduler.step()``; with an epoch or a metric it depends on those, not on how often it is called."""
    if args or kwargs:
        return
    horizon = _number(run, scheduler.horizon)
    if horizon is None and v.is_setting(scheduler.horizon):
        horizon = scheduler.horizon.name
    if horizon is not None:
        run.recorder.move(node, scheduler, horizon)


def prepared(name: str, args: Sequence[Any]) -> Any:
    """What a framework gives back for the objects that it prepares: its schedulers decide themselves when to move."""
    given = [Symbol() if isinstance(value, v.Scheduler) else value for value in args]
    return given[0] if name in PREPARES_ONE or len(given) == 1 else tuple(given)


def _number(run: State, value: Any) -> Num | None:
    """A setting as a number, in the passes that the interpretation runs; None where the source does not say."""
    if isinstance(value, Num):
        return value
    if isinstance(value, v.Computed) and value.op is not None:
        left, right = _number(run, value.left), _number(run, value.right)
        if isinstance(value.left, v.Samples) and right is not None and value.op in (Operator.DIV, Operator.FLOORDIV):
            return batches_in(run, value.left, right)
        result = of_numbers(value.op, left, right) if left is not None and right is not None else None
        return result if isinstance(result, Num) else None
    if isinstance(value, Symbol) and value.name in run.iterated.turns:
        return Num(run.iterated.turns[value.name])
    return None

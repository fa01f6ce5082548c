"""Learning rate schedulers: what each was planned for, as far as the source says, and where it moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.arithmetic import of_numbers
from gradcheck_accum.lint.horizons import planned_moves
from gradcheck_accum.lint.syntax import Operator
from gradcheck_accum.lint.values import Num, Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_HORIZONS = {
    "CosineAnnealingLR": ("T_max", 1),
    "PolynomialLR": ("total_iters", 1),
    "OneCycleLR": ("total_steps", 2),
    "get_scheduler": ("num_training_steps", 3),
    "get_linear_schedule_with_warmup": ("num_training_steps", 2),
    "get_cosine_schedule_with_warmup": ("num_training_steps", 2),
    "get_cosine_with_hard_restarts_schedule_with_warmup": ("num_training_steps", 2),
    "get_polynomial_decay_schedule_with_warmup": ("num_training_steps", 2),
}
"""The parameter that says for how many moves each kind is made, by name and by position. Others end before training
does (a warm-up), begin again, or do not say."""
_LIBRARIES = ("torch.optim.lr_scheduler.", "transformers.", "diffusers.")


def new_scheduler(run: Interpreter, path: str, args: list[Any], kwargs: dict[str, Any]) -> v.Scheduler | None:
    """The scheduler that a call of an imported name makes, or None if it makes none."""
    kind = path.rpartition(".")[2]
    if not path.startswith(_LIBRARIES) or not (kind in _HORIZONS or path.startswith("torch.")):
        return None
    run.recorder.schedulers += 1
    name, since = f"{kind} {run.recorder.schedulers}", run.recorder.micro_batch + 1
    optimizer = next((value for value in (*args, *kwargs.values()) if isinstance(value, v.Optimizer)), None)
    if kind == "LambdaLR":
        function = kwargs.get("lr_lambda", args[1] if len(args) > 1 else None)
        return v.Scheduler(name, since, optimizer, planned_moves(run, function))
    if kind not in _HORIZONS:
        return v.Scheduler(name, since, optimizer)
    parameter, place = _HORIZONS[kind]
    horizon = kwargs.get(parameter, args[place] if len(args) > place else None)
    if horizon is None and {"epochs", "steps_per_epoch"} <= kwargs.keys():
        horizon = v.Computed(op=Operator.MULT, left=kwargs["epochs"], right=kwargs["steps_per_epoch"])
    return v.Scheduler(name, since, optimizer, horizon)


def move(run: Interpreter, node: syntax.Node, scheduler: v.Scheduler, args: list[Any], kwargs: dict[str, Any]) -> None:
    """``scheduler.step()``; with an epoch or a metric it goes by those, not by how often it is called."""
    if args or kwargs:
        return
    horizon = _number(run, scheduler.horizon)
    if horizon is None and v.is_setting(scheduler.horizon):
        horizon = scheduler.horizon.name
    if horizon is not None:
        run.recorder.move(node, scheduler, horizon)


def without_schedulers(values: Iterable[Any]) -> list[Any]:
    """What a framework gives back for the objects that it prepares: its schedulers decide themselves when to move."""
    return [Symbol() if isinstance(value, v.Scheduler) else value for value in values]


def _number(run: Interpreter, value: Any) -> Num | None:
    """A setting as a number, in the passes that the interpretation runs; None where the source does not say."""
    if isinstance(value, Num):
        return value
    if isinstance(value, v.Computed) and value.op is not None:
        left, right = _number(run, value.left), _number(run, value.right)
        result = of_numbers(value.op, left, right) if left is not None and right is not None else None
        return result if isinstance(result, Num) else None
    if isinstance(value, Symbol) and value.name in run.turns:
        return Num(run.turns[value.name])
    return None

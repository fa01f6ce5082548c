"""DeepSpeed's engine: it divides the loss by K, its accumulation steps, and updates the weights at every K-th step.

As `deepspeed.DeepSpeedEngine` does it (read in 0.19): ``backward`` divides by ``gradient_accumulation_steps``; ``step``
counts micro-batches over the ends of epochs, and at the K-th updates the weights, moves the scheduler that it was
given, and clears the gradients. Where the gradients are kept meanwhile depends on the ZeRO stage, so that whatever else
is done to them is not known.
"""

from __future__ import annotations

from typing import Any

from gradcheck_accum.ledger.events import Factor, Operation
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import ASKED_OF_OPTIMIZERS, ENGINE_BOUNDARY, PARAMETERS, SAME_ENGINE
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_steps
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol
from gradcheck_accum.lint.syntax import text_of
from gradcheck_accum.lint.torch_calls.arithmetic import scaled
from gradcheck_accum.lint.torch_calls.gradients import as_loss, record_backward, record_step

_STEPS = "gradient_accumulation_steps"
_SIZES = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu"})
_UNFOLLOWED = frozenset({"no_sync", "coalesce_grad_reduction", "set_gradient_accumulation_boundary", "train_batch"})
_TELLING = ASKED_OF_OPTIMIZERS | PARAMETERS | _UNFOLLOWED | {"backward", ENGINE_BOUNDARY, _STEPS}


def initialized(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What ``deepspeed.initialize`` returns: the engine, its optimizer, a loader and a scheduler."""
    name = f"{text_of(node.func)} ({node.where.line}:{node.where.column - 1})"
    config = kwargs.get("config", kwargs.get("config_params"))
    engine = _new_engine(run, name, config)
    data = kwargs.get("training_data", args[4] if len(args) > 4 else None)
    scheduler = kwargs.get("lr_scheduler", args[5] if len(args) > 5 else None)
    if isinstance(scheduler, v.Scheduler) and _accumulates(config):
        engine.optimizer.schedule = scheduler
    given_back = UNKNOWN if engine.optimizer.schedule is None else scheduler
    return (engine, engine.optimizer, UNKNOWN if data is None else v.Loader(), given_back)


def as_engine(run: State, node: syntax.Call, value: Any) -> v.Engine | None:
    """The engine that a method is called on: one made here, or what is asked for a boundary as only engines are."""
    if isinstance(value, v.Engine):
        return value
    if not (isinstance(value, Symbol) and value.name and isinstance(node.func, syntax.Attribute)):
        return None
    if node.func.attr not in _TELLING or text_of(node.func.value) not in run.reach.engines:
        return None
    return run.made.engines.get(value.name) or _new_engine(run, value.name, None)


def _new_engine(run: State, name: str, config: Any) -> v.Engine:
    engine = run.made.engines[name] = v.Engine(name, _divisor(config, name), v.Optimizer(name, frozenset({name})))
    engine.optimizer.engine = engine
    return engine


def _divisor(config: Any, name: str) -> Any:
    """What the engine divides by: what its configuration says, else one number that is not known."""
    stated = config.get(_STEPS) if isinstance(config, dict) else None
    if isinstance(config, Symbol) and config.name:
        stated = config.member(_STEPS)
    known = isinstance(stated, Num) or (isinstance(stated, Symbol) and bool(stated.name))
    return stated if known else Symbol(f"{name}.{_STEPS}()")


def _accumulates(config: Any) -> bool:
    """Whether a configuration states K: by its name, or by both sizes of batches that it follows from.

    Without them it is 1, and what a configuration says that is not shown is not known.
    """
    return isinstance(config, dict) and (isinstance(config.get(_STEPS), (Num, Symbol)) or config.keys() >= _SIZES)


def engine_method(
    run: State, node: syntax.Call, engine: v.Engine, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What a method of an engine does."""
    if name == "backward" and (args or "loss" in kwargs):
        return _backward(run, node, engine, args, kwargs)
    if name == "step":
        _step(run, node, engine)
    elif name == "zero_grad":
        _clear(run, node, engine)
    elif name == ENGINE_BOUNDARY:
        steps = _steps(run, engine)
        return (engine.counted + 1) % steps == 0 if steps else UNKNOWN
    elif name == _STEPS:
        return run.resolve(engine.divisor)
    elif name in _UNFOLLOWED:
        run.recorder.opaque(node, f"an engine's {name}")
    elif name in SAME_ENGINE:
        return engine
    return UNKNOWN


def _clear(run: State, node: syntax.Call, engine: v.Engine) -> None:
    """The engine's gradients are cleared: nothing happens after its own clearing, and what else would is not known."""
    steps = _steps(run, engine) if engine.is_used else 1
    if engine.pending or not steps or engine.counted % steps:
        run.recorder.opaque(node, "the clearing of gradients that an engine keeps")


def _backward(run: State, node: syntax.Call, engine: v.Engine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    loss = as_loss(run, args[0] if args else kwargs["loss"])
    divides = kwargs.get("scale_wrt_gas", args[2] if len(args) > 2 else True)
    if divides is True:
        loss = scaled(run, loss, run.resolve(engine.divisor), Operation.DIVIDE).located(run.recorder.locate(node))
    elif divides is not False:
        loss = loss.scaled(Factor(None))
    engine.pending += 1
    record_backward(run, node, loss, weighted=False)
    return loss


def _step(run: State, node: syntax.Call, engine: v.Engine) -> None:
    steps = _steps(run, engine)
    if engine.pending != 1 or not steps:
        run.recorder.opaque(node, "an engine that is not stepped once after every backward")
        return
    run.knowledge.forget_remainders()
    engine.pending = 0
    engine.counted += 1
    if engine.counted % steps == 0:
        record_step(run, node, engine.optimizer)
        run.recorder.zero(node, engine.optimizer)


def _steps(run: State, engine: v.Engine) -> int | None:
    steps = bind_steps(run, run.resolve(engine.divisor))
    return steps.value if isinstance(steps, Num) and isinstance(steps.value, int) and steps.value > 0 else None

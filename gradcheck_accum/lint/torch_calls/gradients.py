"""Calls that mean the same whatever they are called on: what is done to gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gradcheck_accum.ledger.events import Factor, Listed, Reduction, WindowBound
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.torch_names import (
    CLIPS,
    CLIPS_OF_FRAMEWORKS,
    HOOKS_AFTER_STEPS,
    HOOKS_BEFORE_STEPS,
    PARAMETERS,
    PAUSES,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Doubted
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Symbol, Tensor
from gradcheck_accum.lint.state.values.copies import changed
from gradcheck_accum.lint.syntax import text_of
from gradcheck_accum.lint.torch_calls.distributed import pause
from gradcheck_accum.lint.torch_calls.models import sources_of
from gradcheck_accum.lint.torch_calls.optimizers import (
    is_lost_optimizer,
    looks_like_optimizer,
    may_take_sums,
    optimizer_called_on,
    optimizer_given,
    sources_in,
)
from gradcheck_accum.lint.torch_calls.retained_graphs import count_held_graphs
from gradcheck_accum.lint.torch_calls.schedulers import move


def as_loss(run: State, value: Any) -> Tensor:
    """A value that ``backward`` is called on, as a loss: one that came from elsewhere may be scaled already."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, v.Parameters) and value.sources is not None:
        return Tensor((v.Part("penalty", Reduction.NONE, (Factor(None),)),), value.sources)
    plain = isinstance(value, Symbol) and not value.name and not isinstance(value, v.Scaled)
    factors = () if plain else (Factor(None),)
    return Tensor((v.Part("loss", Reduction.MEAN, factors, run.recorder.micro_batch),))


def record_backward(run: State, node: syntax.Node, value: Any, weighted: bool) -> None:
    """Record a backward; ``weighted`` says that it was given a gradient argument."""
    loss = as_loss(run, value)
    run.draw_chance()
    synced = run.sync.of_backward(loss.models)
    run.loops.trained.add(run.loops.turn)
    weighted = weighted or any(v.reaches(model, hooked) for model in loss.models for hooked in run.made.hooked)
    # What a rate is divided by that a sum grows with, a loss whose reduction is not in sight need not be divided by.
    weighted = weighted or (any(part.assumed for part in loss.parts) and may_take_sums(run, loss.models))
    called_from = tuple(site for site in run.calls.sites if site[0] >= 0)
    loss = loss.scaled(Factor(None)) if weighted else loss
    past_wrapper = synced is False and run.sync.ran_past(loss.models)
    run.recorder.backward(run.calls.called_at or node, loss, synced, called_from, past_wrapper=past_wrapper)


def record_step(run: State, node: syntax.Node, optimizer: v.Optimizer, through_scaler: bool = False) -> None:
    """Record an optimizer's step, with K if one of its own losses has been divided by it, and what its hooks do."""
    _call_hooks(run, node, optimizer, optimizer.before)
    stated = {
        number
        for (models, number), origins in run.recorder.divisors.items()
        if optimizer.may_update(models) and run.knowledge.counts_windows(number, origins)
    }
    count_held_graphs(run)
    counted_by = run.knowledge.counter(run.question.branches)
    listed = _window_before(run)
    if listed is not None:
        counted_by = replace(counted_by or WindowBound(None), listed=listed)
    if counted_by is None and run.loops.parts:
        counted_by = WindowBound(None, parts=run.loops.parts)
    steps, place = stated.pop() if len(stated) == 1 else None, run.calls.called_at or node
    run.recorder.step(place, optimizer, steps, counted_by, through_scaler)
    if optimizer.schedule is not None:
        move(run, place, optimizer.schedule, [], {})
    _call_hooks(run, node, optimizer, optimizer.after)
    if run.recorder.lost_track:
        raise Doubted


def _call_hooks(run: State, node: syntax.Node, optimizer: v.Optimizer, hooks: list[Any]) -> None:
    """Carry out what is called around each step of an optimizer; what is not of this file may do anything."""
    for hook in hooks:
        if isinstance(hook, v.Function):
            call_function(run, hook, [optimizer, (), {}], {})
        else:
            run.recorder.opaque(node, "what a hook on a step does")


def _window_before(run: State) -> Listed | None:
    """The list that a loop which has just ended ran over, if it ran all backwards since the last step; else None."""
    if run.iterated.ended is None:
        return None
    listed, before = run.iterated.ended
    earlier = (own.kind for own in reversed(run.recorder.raw[:before]) if own.kind in ("backward", "step"))
    return listed if next(earlier, "step") == "step" else None


def backward(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``base.backward(...)``, on a loss, on a framework's object, or on `torch.autograd`."""
    if isinstance(base, v.Reference) and base.path == "torch.autograd":
        base, args = (args[0] if args else Symbol()), args[1:]
        if isinstance(base, (list, tuple)):
            base = base[0] if len(base) == 1 else Symbol("losses")
    elif isinstance(base, v.Optimizer) and base.engine is None and args:
        base, args = args[0], args[1:]  # apex's, which takes the scale that it puts in out again before it steps
    elif not isinstance(base, Tensor) and any(isinstance(a, (Tensor, Symbol)) for a in args[:1]):
        run.recorder.opaque(node, "a backward that a framework makes")
        return None
    if isinstance(base, v.Instance):
        return NotImplemented
    if isinstance(base, Tensor) and not base.models.isdisjoint(run.made.engines):
        # Newer versions of DeepSpeed scale that too, older ones do not.
        run.recorder.opaque(node, "a backward of an engine's loss that does not go through the engine")
        return None
    gradient = args[:1] + [kwargs[k] for k in ("gradient", "grad_tensors") if k in kwargs]
    inputs = kwargs.get("inputs")
    if inputs is not None:
        sources = sources_in(inputs)
        if sources is None:
            run.recorder.opaque(node, "a backward for some weights alone")
            return None
        loss = as_loss(run, base)
        base = changed(loss, models=loss.models & sources)
    record_backward(run, node, base, weighted=any(g is not None for g in gradient))
    return None


def _manual_backward(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.manual_backward(loss)``: PyTorch's own, but for an AMP scale that its own step undoes."""
    if isinstance(base, v.Instance) and args:
        record_backward(run, node, args[0], weighted=len(args) > 1 or bool(kwargs))
        return None
    return backward(run, node, base, args, kwargs)


def _clip_gradients(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.clip_gradients(optimizer, ...)``."""
    run.recorder.clip(node, None)
    return None


def _toggle(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.toggle_optimizer(optimizer)``: until it is undone, other optimizers' weights get no gradients.

    Those that are there stay as they are.
    """
    run.made.frozen |= _of_the_others(run, node, args, kwargs)
    return None


def _untoggle(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    run.made.frozen -= _of_the_others(run, node, args, kwargs)
    return None


def _of_the_others(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> frozenset[str]:
    """The models of all optimizers but the one that a call is given."""
    given = optimizer_given(run, node, args, kwargs)
    if given is None or given.sources is None:
        return frozenset()
    return frozenset().union(*(one.sources or () for one in run.made.optimizers.values())) - given.sources


def _step(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Scheduler):
        move(run, node, base, args, kwargs)
        return None
    if isinstance(base, v.Average):
        return NotImplemented
    given = optimizer_given(run, node, args, kwargs)
    optimizer = optimizer_called_on(run, node, base)
    if optimizer is not None:
        if optimizer.engine is not None:
            run.recorder.opaque(node, "a step of an optimizer that an engine steps")
        elif args or kwargs.get("closure") is not None:
            run.recorder.opaque(node, "an optimizer step with a closure")
        elif not run.gate.is_shut:
            record_step(run, node, optimizer)
        return None
    if given is not None and isinstance(base, (Symbol, v.Reference)):
        if given.engine is not None:
            run.recorder.opaque(node, "a step of an optimizer that an engine steps")
            return None
        _note_scaler(run, node)
        record_step(run, node, given, through_scaler=True)
        return None
    if is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "a step of an optimizer that is not known")
    return NotImplemented if isinstance(base, v.Instance) else None


def _zero_grad(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = optimizer_called_on(run, node, base)
    if optimizer is None and is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "gradients of an optimizer that is not known")
        return None
    if optimizer is not None and optimizer.engine is not None:
        if optimizer.engine.is_used:
            run.recorder.opaque(node, "the clearing of gradients that an engine keeps")
        return None
    if optimizer is not None and run.gate.is_shut:
        return None
    is_optimizer = optimizer is not None and not _trains_instead(run, node, base)
    run.recorder.zero(node, optimizer if is_optimizer else sources_of(base))
    return None


def _trains_instead(run: State, node: syntax.Call, base: Any) -> bool:
    """Whether a method is called on an unknown that is a model, also where it steps itself in another scenario."""
    if not isinstance(base, Symbol) or not isinstance(node.func, syntax.Attribute):
        return False
    named = text_of(node.func.value)
    return named in run.reach.switched and not looks_like_optimizer(named)


def _unscale(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = optimizer_given(run, node, args, kwargs)
    if optimizer is not None:
        _note_scaler(run, node)
        run.recorder.unscale(node, optimizer)
    return None


def _note_scaler(run: State, node: syntax.Call) -> None:
    if isinstance(node.func, syntax.Attribute):
        run.made.scalers.add(text_of(node.func.value))


def _update(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``scaler.update()``, of what has unscaled the gradients of an optimizer or made its step."""
    if (
        args
        or kwargs
        or not isinstance(node.func, syntax.Attribute)
        or text_of(node.func.value) not in run.made.scalers
    ):
        return NotImplemented
    run.recorder.update_scaler(node)
    return None


def _scale(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args or isinstance(base, (v.Instance, Tensor, v.Data)):
        return NotImplemented
    loss = args[0] if isinstance(args[0], Tensor) else as_loss(run, args[0])
    return replace(loss, grad_scaled=True)


def _scale_apart(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """apex's ``amp.scale_loss(loss, optimizer)``, which takes the scale out again when its block ends."""
    return NotImplemented if isinstance(base, v.Instance) or not args else as_loss(run, args[0])


def _parameters(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Parameters(sources_of(base))


def _pause(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Instance) and not base.cls.is_model:
        return NotImplemented
    return pause(run, args[0] if args else base, kwargs.get("enabled", args[1] if len(args) > 1 else True))


def _clip_method(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Reference):
        clip(run, node, args, kwargs)
    elif isinstance(base, v.Instance):
        return NotImplemented
    elif run.recorder.has_trained(sources_of(base)):
        # What shards a model clips the gradients of all of it, as they are then.
        clip(run, node, [v.Parameters(sources_of(base)), *args], kwargs)
    else:
        run.recorder.opaque(node, "a clip that a framework makes")
    return Symbol()


def clip(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    parameters = args[0] if args else kwargs.get("parameters")
    limit = kwargs.get("max_norm", args[1] if len(args) > 1 else None)
    if v.is_infinite(limit):
        # The norm is only measured.
        return
    if isinstance(parameters, v.Engine):
        run.recorder.opaque(node, "a clip of gradients that an engine keeps")
        return
    if isinstance(parameters, (list, tuple)) and parameters:
        parameters = parameters[0]
    known = parameters.sources if isinstance(parameters, (v.Parameters, v.Gradient)) else None
    run.recorder.clip(node, known)


def _hook(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A hook on parameters: what it returns takes the place of their gradients."""
    if not isinstance(base, v.Parameters):
        return NotImplemented
    run.made.hooked.update(map(v.whole_of, base.sources or ()))
    return Symbol()


def _hook_on_steps(
    run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any], *, is_before: bool
) -> Any:
    """An optimizer is given a function that each of its steps calls."""
    optimizer, given = optimizer_called_on(run, node, base), [*args, *kwargs.values()]
    if optimizer is None or not given:
        return NotImplemented
    (optimizer.before if is_before else optimizer.after).append(given[0])
    return Symbol()


METHODS: dict[str, Callable[[State, syntax.Call, Any, list[Any], dict[str, Any]], Any]] = {
    "backward": backward,
    "manual_backward": _manual_backward,
    "toggle_optimizer": _toggle,
    "untoggle_optimizer": _untoggle,
    "step": _step,
    "zero_grad": _zero_grad,
    "unscale_": _unscale,
    "update": _update,
    "scale": _scale,
    "scale_loss": _scale_apart,
    "register_hook": _hook,
    **dict.fromkeys(HOOKS_BEFORE_STEPS, partial(_hook_on_steps, is_before=True)),
    **dict.fromkeys(HOOKS_AFTER_STEPS, partial(_hook_on_steps, is_before=False)),
    **dict.fromkeys(PARAMETERS, _parameters),
    **dict.fromkeys(PAUSES, _pause),
    **dict.fromkeys(CLIPS, _clip_method),
    **dict.fromkeys(CLIPS_OF_FRAMEWORKS, _clip_gradients),
}

"""Calls that mean the same whatever they are called on: what is done to gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Factor, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.control import Doubted
from gradcheck_accum.lint.distributed import PAUSES, pause
from gradcheck_accum.lint.graphs import count_held_graphs
from gradcheck_accum.lint.objects import sources_of
from gradcheck_accum.lint.optimizers import as_optimizer, is_lost_optimizer, optimizer_called_on
from gradcheck_accum.lint.schedulers import move
from gradcheck_accum.lint.syntax import text_of
from gradcheck_accum.lint.values import Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter


def as_loss(run: Interpreter, value: Any) -> Tensor:
    """A value that ``backward`` is called on, as a loss: one that came from elsewhere may be scaled already."""
    if isinstance(value, Tensor):
        return value
    plain = isinstance(value, Symbol) and not value.name and not isinstance(value, v.Scaled)
    factors = () if plain else (Factor(None),)
    return Tensor((v.Part("loss", Reduction.MEAN, factors, run.recorder.micro_batch),))


def record_backward(run: Interpreter, node: syntax.Node, value: Any, weighted: bool) -> None:
    """Record a backward; ``weighted`` says that it was given a gradient argument."""
    loss = as_loss(run, value)
    synced = run.sync.of_backward(loss.models)
    weighted = weighted or not run.hooked.isdisjoint(loss.models)
    run.recorder.backward(node, loss.scaled(Factor(None)) if weighted else loss, synced)


def record_step(run: Interpreter, node: syntax.Node, optimizer: v.Optimizer, through_scaler: bool = False) -> None:
    """Record an optimizer's step, with K if a loss has been divided by it."""
    divisors = run.recorder.divisors.items()
    stated = [number for number, origins in divisors if run.knowledge.counts_windows(number, origins)]
    count_held_graphs(run)
    run.recorder.step(node, optimizer, stated[0] if len(stated) == 1 else None, run.knowledge.counter, through_scaler)
    if run.recorder.lost_track:
        raise Doubted


def backward(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
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
    if isinstance(base, Tensor) and not base.models.isdisjoint(run.engines):
        # Newer versions of DeepSpeed scale that too, older ones do not.
        run.recorder.opaque(node, "a backward of an engine's loss that does not go through the engine")
        return None
    gradient = args[:1] + [kwargs[k] for k in ("gradient", "grad_tensors") if k in kwargs]
    record_backward(run, node, base, weighted=any(g is not None for g in gradient))
    return None


def _manual_backward(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.manual_backward(loss)``: PyTorch's own, but for an AMP scale that its own step undoes."""
    if isinstance(base, v.Instance) and args:
        record_backward(run, node, args[0], weighted=len(args) > 1 or bool(kwargs))
        return None
    return backward(run, node, base, args, kwargs)


def _clip_gradients(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.clip_gradients(optimizer, ...)``."""
    run.recorder.clip(node, None)
    return None


def _toggle(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lightning's ``self.toggle_optimizer(optimizer)``: leaves the gradients that are there as they are."""
    return None


def _step(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Scheduler):
        move(run, node, base, args, kwargs)
        return None
    if isinstance(base, v.Average):
        return NotImplemented
    given = [o for o in (as_optimizer(run, a) for a in args[:1]) if o is not None]
    optimizer = optimizer_called_on(run, node, base)
    if optimizer is not None:
        if optimizer.engine is not None:
            run.recorder.opaque(node, "a step of an optimizer that an engine steps")
        elif args or kwargs.get("closure") is not None:
            run.recorder.opaque(node, "an optimizer step with a closure")
        elif not run.holds_back:
            record_step(run, node, optimizer)
        return None
    if given and isinstance(base, (Symbol, v.Reference)):
        _note_scaler(run, node)
        record_step(run, node, given[0], through_scaler=True)
        return None
    if is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "a step of an optimizer that could not be told")
    return NotImplemented if isinstance(base, v.Instance) else None


def _zero_grad(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = optimizer_called_on(run, node, base)
    if optimizer is None and is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "gradients of an optimizer that could not be told")
        return None
    if optimizer is not None and optimizer.engine is not None:
        if optimizer.engine.is_used:
            run.recorder.opaque(node, "the clearing of gradients that an engine keeps")
        return None
    if optimizer is not None and run.holds_back:
        return None
    run.recorder.zero(node, optimizer if optimizer is not None else sources_of(run, base))
    return None


def _unscale(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = as_optimizer(run, args[0]) if args else None
    if optimizer is not None:
        _note_scaler(run, node)
        run.recorder.unscale(node, optimizer)
    return None


def _note_scaler(run: Interpreter, node: syntax.Call) -> None:
    if isinstance(node.func, syntax.Attribute):
        run.scalers.add(text_of(node.func.value))


def _update(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``scaler.update()``, of what has unscaled the gradients of an optimizer or made its step."""
    if args or kwargs or not isinstance(node.func, syntax.Attribute) or text_of(node.func.value) not in run.scalers:
        return NotImplemented
    run.recorder.update_scaler(node)
    return None


def _scale(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args or isinstance(base, (v.Instance, Tensor, v.Data)):
        return NotImplemented
    loss = args[0] if isinstance(args[0], Tensor) else as_loss(run, args[0])
    return replace(loss, grad_scaled=True)


def _scale_apart(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """apex's ``amp.scale_loss(loss, optimizer)``, which takes the scale out again when its block ends."""
    return NotImplemented if isinstance(base, v.Instance) or not args else as_loss(run, args[0])


def _parameters(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Parameters(sources_of(run, base))


def _pause(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Instance) and not base.cls.is_model:
        return NotImplemented
    return pause(run, args[0] if args else base, kwargs.get("enabled", args[1] if len(args) > 1 else True))


def _clip_method(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Reference):
        clip(run, node, args, kwargs)
    elif isinstance(base, v.Instance):
        return NotImplemented
    else:
        run.recorder.opaque(node, "a clip that a framework makes")
    return Symbol()


def clip(run: Interpreter, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    parameters = args[0] if args else kwargs.get("parameters")
    if isinstance(parameters, v.Engine):
        run.recorder.opaque(node, "a clip of gradients that an engine keeps")
        return
    if isinstance(parameters, (list, tuple)) and parameters:
        parameters = parameters[0]
    known = parameters.sources if isinstance(parameters, (v.Parameters, v.Gradient)) else None
    run.recorder.clip(node, known)


def _hook(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A hook on parameters: what it returns takes the place of their gradients."""
    if not isinstance(base, v.Parameters):
        return NotImplemented
    run.hooked.update(map(v.whole_of, base.sources or ()))
    return Symbol()


CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"})


METHODS: dict[str, Callable[[Interpreter, syntax.Call, Any, list[Any], dict[str, Any]], Any]] = {
    "backward": backward,
    "manual_backward": _manual_backward,
    "clip_gradients": _clip_gradients,
    "toggle_optimizer": _toggle,
    "untoggle_optimizer": _toggle,
    "step": _step,
    "zero_grad": _zero_grad,
    "unscale_": _unscale,
    "update": _update,
    "scale": _scale,
    "scale_loss": _scale_apart,
    "parameters": _parameters,
    "named_parameters": _parameters,
    "register_hook": _hook,
    **dict.fromkeys(PAUSES, _pause),
    **dict.fromkeys(CLIPS, _clip_method),
}

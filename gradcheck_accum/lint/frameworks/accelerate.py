"""Accelerate and Fabric: objects whose ``backward`` is PyTorch's own, except for a configured division."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.ledger.events import Operation
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import CLIPS, CLIPS_OF_FRAMEWORKS, PAUSES, PREPARES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_steps
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.torch_calls.arithmetic import scaled
from gradcheck_accum.lint.torch_calls.distributed import pause
from gradcheck_accum.lint.torch_calls.gradients import as_loss, clip, record_backward
from gradcheck_accum.lint.torch_calls.losses import is_divided_for_accumulation
from gradcheck_accum.lint.torch_calls.schedulers import prepared

_DECIDES_ELSEWHERE = frozenset({"deepspeed_plugin"})
_DIVISOR = "gradient_accumulation_steps"
_HOLDS_THE_DIVISOR = frozenset({"gradient_accumulation_plugin", "**"})


def new_framework(path: str, kwargs: dict[str, Any]) -> v.Framework | None:
    """The object that a call of an imported class makes, if it is one of those and the source shows its divisor."""
    library, _, name = path.rpartition(".")
    if library.partition(".")[0] == "accelerate" and name == "Accelerator" and not _DECIDES_ELSEWHERE & kwargs.keys():
        if _DIVISOR not in kwargs and _HOLDS_THE_DIVISOR & kwargs.keys():
            return v.Framework(Symbol(f"accelerator.{_DIVISOR}"))  # as open as that of one that was made elsewhere
        return v.Framework(kwargs.get(_DIVISOR, Num(1)))
    if library.partition(".")[0] in {"lightning", "lightning_fabric"} and name == "Fabric":
        return v.Framework(Num(1))
    return None


def as_framework(value: Any) -> v.Framework | None:
    """The framework's object that a value is, or must be judging by its name: the file's caller has created it.

    Fabric never divides. An Accelerator's divisor is known if the file states it (`accumulate`).
    """
    if isinstance(value, v.Framework):
        return value
    if not isinstance(value, Symbol):
        return None
    match value.name.rpartition(".")[2]:
        case "fabric":
            return v.Framework(Num(1))
        case "accelerator":
            return v.Framework(value.member(_DIVISOR), value.name)
    return None


def accumulate(run: State, value: Any) -> bool:
    """``with accelerator.accumulate(model)``: counts a micro-batch; False if it or its divisor is unknown.

    Until K micro-batches are counted, steps and clearings of prepared optimizers do nothing. At the end of a pass, the
    optimizer steps on a remainder, still divided by K: that is Accelerate's behavior and not a mistake of the loop, so
    passes then have no remainder.
    """
    framework = as_framework(value)
    if framework is None:
        return False
    steps = bind_steps(run, run.resolve(framework.divisor))
    if not (isinstance(steps, Num) and isinstance(steps.value, int) and steps.value > 0):
        return False
    run.knowledge.forget_remainders()
    run.gate.counted += 1
    run.gate.is_shut = bool(run.gate.counted % steps.value)
    if framework.name:
        run.assigned[f"{framework.name}.sync_gradients"] = not run.gate.is_shut
    return True


def framework_method(
    run: State, node: syntax.Call, base: v.Framework, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What a method of such an object does."""
    if name == "backward" and args:
        loss, divisor = as_loss(run, args[0]), run.resolve(base.divisor)
        # What a caller has set, if anything, is unknown. Where the loop divides by K itself, nothing need be.
        is_left_to_the_loop = not isinstance(divisor, Num) and is_divided_for_accumulation(loss)
        if not is_left_to_the_loop and not (isinstance(divisor, Num) and divisor.value == 1):
            loss = scaled(run, loss, divisor, Operation.DIVIDE)
        record_backward(run, node, loss, weighted=len(args) > 1 or bool(kwargs))
        return None
    if name in CLIPS:
        clip(run, node, args, kwargs)
    elif name in CLIPS_OF_FRAMEWORKS:
        clip(run, node, [], {})
    elif name in PAUSES and args:
        return pause(run, args[0], kwargs.get("enabled", args[1] if len(args) > 1 else True))
    elif name in PREPARES and args:
        return prepared(name, args)
    return Symbol()

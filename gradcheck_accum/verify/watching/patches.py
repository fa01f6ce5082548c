"""Patches PyTorch while a loop is watched, and restores it.

Everything here only calls an observer before or after the original; nothing that the loop computes is changed.
"""

from __future__ import annotations

import functools
import math
import multiprocessing.process
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data import dataloader

from gradcheck_accum.engine.checkpoints import instead_of_checkpoints
from gradcheck_accum.engine.transformed import is_in_grad_alone, is_in_grad_of_samples
from gradcheck_accum.verify.book.parameters import parameters_of, with_subclasses
from gradcheck_accum.verify.book.steps_in_steps import calls_step_of_pytorch
from gradcheck_accum.verify.stack import without_us
from gradcheck_accum.verify.watching.observer import Observer
from gradcheck_accum.verify.watching.subprocesses import may_train, runs_python
from gradcheck_accum.verify.watching.timm_hooks import TimmPieces


def install(observer: Observer, stack: ExitStack, *, modules: bool) -> None:
    """Patch PyTorch until ``stack`` is closed; ``modules`` says whether all calls of modules are recorded."""
    pieces = TimmPieces(observer, stack)
    pieces.look()
    _patch_backward(observer, stack)
    _patch_optimizers(observer, stack, pieces)
    _patch_clips(observer, stack)
    _patch_scaler(observer, stack)
    _patch_schedules(observer, stack)
    _patch_data(observer, stack)
    _patch_ranks(observer, stack)
    _patch_processes(observer, stack)
    _patch_warnings(observer, stack)
    if modules:
        _patch_modules(observer, stack)
    else:
        _patch_outermost_modules(observer, stack)


def _patch_modules(observer: Observer, stack: ExitStack) -> None:
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # What is compiled must be the loop's own code alone.
            return original(module, *args, **kwargs)
        return observer.module_called(module, functools.partial(original, module), args, kwargs)

    _replace(nn.Module, "__call__", call, stack)
    checkpoint = CheckpointFunction.apply

    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return observer.checkpointed(function, functools.partial(checkpoint, function, preserve), args)

    stack.enter_context(instead_of_checkpoints(apply))
    _patch_functions(observer, stack)


def _patch_functions(observer: Observer, stack: ExitStack) -> None:
    original = Function.__dict__["apply"]
    function_of = original.__func__

    @functools.wraps(function_of)
    def apply(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return function_of(function, *args, **kwargs)
        return observer.function_applied(function, functools.partial(function_of, function), args, kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    stack.callback(_let_go, apply)
    stack.callback(setattr, Function, "apply", original)


def _patch_outermost_modules(observer: Observer, stack: ExitStack) -> None:
    original, attention = nn.Module.__call__, observer.run.attention
    depth = 0

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth or attention.asleep or torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        # The step before may have raised an error that the script has handled.
        attention.look_again()
        observer.tell(observer.run.given.note, args, kwargs)
        depth = 1
        try:
            return original(module, *args, **kwargs)
        finally:
            depth = 0

    _replace(nn.Module, "__call__", call, stack)


def _replace(owner: Any, name: str, replacement: Any, stack: ExitStack) -> None:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, replacement)
    stack.callback(_let_go, replacement)
    stack.callback(setattr, owner, name, original)


class _NoObserver:
    """Replaces the observer in functions that are still called after watching has ended, and does nothing."""

    idle = True

    def module_called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def checkpointed(self, function: Callable[..., Any], call: Callable[..., Any], args: Any) -> Any:
        return call(*args)

    def function_applied(self, function: type[Function], call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def before_grad(self, outputs: Any, inputs: Any, weights: Any) -> bool:
        return False

    def is_at_work(self) -> bool:
        return False

    def __getattr__(self, name: str) -> _NoObserver:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Any other notification."""


_NO_OBSERVER = _NoObserver()


def _let_go(replacement: Any) -> None:
    """Make a function release the observer, and what that holds: the models and their optimizers.

    The function may still be referenced: by a module that was first imported meanwhile, or in the caches of PyTorch's
    compiler.
    """
    for cell in replacement.__closure__ or ():
        if isinstance(cell.cell_contents, (Observer, TimmPieces)):
            cell.cell_contents = _NO_OBSERVER


def _gone_through_again(tensors: Any) -> Any:
    """What PyTorch is given, which it goes through after us: of an iterator, all that it has."""
    return tuple(tensors) if isinstance(tensors, Iterator) else tensors


def _patch_backward(observer: Observer, stack: ExitStack) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if not observer.run.attention.asleep:
            tensors, grad_tensors = _gone_through_again(tensors), _gone_through_again(grad_tensors)
            observer.notice_threads()
        observer.tell(observer.backwards.before, tensors, grad_tensors)
        failed = True
        try:
            original(tensors, grad_tensors, *args, **kwargs)
            failed = False
        finally:
            observer.tell(observer.backwards.after, failed)

    _replace(torch.autograd, "backward", backward, stack)
    handing_out = torch.autograd.grad

    @functools.wraps(handing_out)
    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not observer.run.attention.asleep:
            outputs, inputs, grad_outputs = map(_gone_through_again, (outputs, inputs, grad_outputs))
        # What has a graph of its own is a part of another loss.
        retain_graph, create_graph = (
            kwargs.get(name, args[position] if len(args) > position else None)
            for position, name in enumerate(("retain_graph", "create_graph"))
        )
        # Nothing of ``torch.func.grad`` is, inside ``vmap`` or alone: it always asks for one.
        alone = not create_graph or is_in_grad_alone() or is_in_grad_of_samples()
        watched = alone and observer.before_grad(outputs, inputs, grad_outputs)
        gradients = None
        try:
            gradients = handing_out(outputs, inputs, grad_outputs, *args, **kwargs)
        finally:
            if watched:
                observer.by_hand.after(inputs, gradients, keeps_graph=bool(retain_graph))
        return gradients

    _replace(torch.autograd, "grad", grad, stack)


def _patch_optimizers(observer: Observer, stack: ExitStack, pieces: TimmPieces) -> None:
    add, zero, module_zero = Optimizer.add_param_group, Optimizer.zero_grad, nn.Module.zero_grad
    restore = Optimizer.__setstate__

    def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        add(optimizer, *args, **kwargs)
        observer.optimizer_made(optimizer)
        pieces.look()

    def set_state(optimizer: Optimizer, state: Any) -> None:
        # A copy, or what was unpickled: no parameter group is added to it.
        restore(optimizer, state)
        observer.optimizer_made(optimizer)

    def zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        if observer.idle:
            # To list the parameters is more than to clear their gradients.
            zero(optimizer, *args, **kwargs)
            return
        own = parameters_of(optimizer)
        observer.tell(observer.before_zero, own)
        with observer.nothing_to_see():
            zero(optimizer, *args, **kwargs)
        observer.tell(observer.changes.after_zero, own)

    def zero_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if observer.idle:
            module_zero(module, *args, **kwargs)
            return
        own: list[torch.Tensor] = list(module.parameters())
        observer.tell(observer.before_zero, own)
        with observer.nothing_to_see():
            module_zero(module, *args, **kwargs)
        observer.tell(observer.changes.after_zero, own)

    _replace(Optimizer, "add_param_group", functools.wraps(add)(add_param_group), stack)
    _replace(Optimizer, "__setstate__", functools.wraps(restore)(set_state), stack)
    _replace(Optimizer, "zero_grad", functools.wraps(zero)(zero_grad), stack)
    _replace(nn.Module, "zero_grad", functools.wraps(module_zero)(zero_module), stack)

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else args[1] if len(args) > 1 and args[0] is optimizer else None
        asleep = observer.run.attention.asleep
        if not asleep:
            observer.notice_threads()
            base = calls_step_of_pytorch(type(optimizer))
            if base is not None:
                _patch_step_of_base(base, before, after, observer, stack)
        observer.tell(observer.steps.before, optimizer, callable(closure))
        if not asleep and observer.steps.is_in_step_of_own_class(optimizer):
            return None
        if not callable(closure):
            if not asleep:
                observer.step_begins(optimizer)
            return None

        @functools.wraps(closure)
        def watched() -> Any:
            observer.tell(observer.steps.before_closure, optimizer)
            result = closure()
            observer.tell(observer.steps.after_closure, optimizer)
            return result

        return (args, {**kwargs, "closure": watched}) if named else ((args[0], watched, *args[2:]), kwargs)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        observer.after_step(optimizer)

    stack.callback(register_optimizer_step_pre_hook(before).remove)
    stack.callback(register_optimizer_step_post_hook(after).remove)


def _patch_step_of_base(
    base: type[Optimizer],
    before: Callable[[Optimizer, Any, Any], Any],
    after: Callable[[Optimizer, Any, Any], None],
    observer: Observer,
    stack: ExitStack,
) -> None:
    """Call hooks at the step of a class of PyTorch that is called in a derived class's.

    PyTorch calls them only if it has made an optimizer of this very class.
    """
    original = base.__dict__["step"]
    if hasattr(original, "hooked"):
        return

    @functools.wraps(original)
    def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if observer.idle or not observer.steps.is_in_step_of_own_class(optimizer):
            return original(optimizer, *args, **kwargs)
        watched, named = before(optimizer, (optimizer, *args), kwargs) or ((optimizer, *args), kwargs)
        result = original(*watched, **named)
        after(optimizer, watched, named)
        return result

    def restore() -> None:
        # PyTorch replaces it by one with hooks when the first optimizer of this very class is made.
        if base.__dict__["step"] is step:
            base.step = original  # type: ignore[method-assign]

    step.hooked = False  # type: ignore[attr-defined]
    base.step = step  # type: ignore[method-assign,assignment]
    stack.callback(_let_go, step)
    stack.callback(restore)


def _patch_clips(observer: Observer, stack: ExitStack) -> None:
    by_norm, by_value = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_

    @functools.wraps(by_norm)
    def clip_norm(parameters: Any, max_norm: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        parameters = _listed(parameters)
        if max_norm == math.inf:
            # The norm is only measured: no gradient is beyond such a limit.
            return by_norm(parameters, max_norm, norm_type, *args, **kwargs)
        observer.tell(observer.changes.before_clip, parameters)
        result = by_norm(parameters, max_norm, norm_type, *args, **kwargs)
        observer.tell(observer.changes.after_clip, parameters, "norm", float(max_norm), float(norm_type), result)
        return result

    @functools.wraps(by_value)
    def clip_value(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> None:
        parameters = _listed(parameters)
        observer.tell(observer.changes.before_clip, parameters)
        by_value(parameters, clip_value, *args, **kwargs)
        observer.tell(observer.changes.after_clip, parameters, "value", float(clip_value), 0.0)

    for owner in (nn.utils, nn.utils.clip_grad):
        _replace(owner, "clip_grad_norm_", clip_norm, stack)
        _replace(owner, "clip_grad_value_", clip_value, stack)


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _patch_scaler(observer: Observer, stack: ExitStack) -> None:
    scaler = torch.amp.GradScaler
    scale, unscale, step, update = scaler.scale, scaler.unscale_, scaler.step, scaler.update

    def patched_scale(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        observer.tell(observer.run.losses.scaled, self, outputs, result)
        return result

    def patched_unscale(self: Any, optimizer: Optimizer) -> None:
        observer.tell(observer.changes.before_unscale, optimizer)
        unscale(self, optimizer)
        observer.tell(observer.changes.after_unscale, self, optimizer)

    def patched_step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        observer.tell(observer.steps.before_scaler)
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            observer.tell(observer.steps.after_scaler, optimizer)

    def patched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        observer.tell(observer.changes.scaler_updated, self)

    _replace(scaler, "update", functools.wraps(update)(patched_update), stack)
    _replace(scaler, "scale", functools.wraps(scale)(patched_scale), stack)
    _replace(scaler, "unscale_", functools.wraps(unscale)(patched_unscale), stack)
    _replace(scaler, "step", functools.wraps(step)(patched_step), stack)


def _patch_schedules(observer: Observer, stack: ExitStack) -> None:
    inside = [0]

    def watched(method: Callable[..., Any], tells: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Schedulers of schedulers step the ones inside; every one makes a first step when it is made.
            inside[0] += 1
            try:
                result = method(self, *args, **kwargs)
            finally:
                inside[0] -= 1
            if tells and not inside[0]:
                observer.tell(observer.schedules.scheduler_stepped, self)
            return result

        return step

    for kind in with_subclasses(LRScheduler):
        for name in ("__init__", "step"):
            if name in vars(kind):
                _replace(kind, name, watched(vars(kind)[name], name == "step"), stack)

    update = AveragedModel.update_parameters

    def update_parameters(self: Any, model: Any) -> None:
        update(self, model)
        observer.tell(observer.schedules.average_updated, self, model)

    _replace(AveragedModel, "update_parameters", functools.wraps(update)(update_parameters), stack)


def _patch_ranks(observer: Observer, stack: ExitStack) -> None:
    original = DistributedDataParallel.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        if not torch.compiler.is_compiling():
            observer.tell(observer.ran_on_rank, self)
        return result

    _replace(DistributedDataParallel, "forward", forward, stack)


def _patch_data(observer: Observer, stack: ExitStack) -> None:
    iterator = dataloader._BaseDataLoaderIter
    begin, original = iterator.__init__, iterator.__next__

    def begun(self: Any, loader: Any) -> None:
        begin(self, loader)
        observer.iterated(self, loader)

    def draw(self: Any) -> Any:
        try:
            item = original(self)
        except StopIteration:
            observer.tell(observer.ended, self)
            raise
        # Workers that persist keep one iterator for every pass; it counts what it gave from the start of each.
        observer.tell(observer.drew, self, item, self._num_yielded == 1)
        return item

    _replace(iterator, "__init__", functools.wraps(begin)(begun), stack)
    _replace(iterator, "__next__", functools.wraps(original)(draw), stack)


def _patch_processes(observer: Observer, stack: ExitStack) -> None:
    process, program = multiprocessing.process.BaseProcess, subprocess.Popen
    start, run = process.start, program.__init__
    inside = [0]

    @functools.wraps(start)
    def started(self: Any) -> None:
        if may_train(self):
            observer.tell(observer.process_started)
        inside[0] += 1
        try:
            start(self)
        finally:
            inside[0] -= 1

    @functools.wraps(run)
    def ran(self: Any, args: Any, *others: Any, **named: Any) -> None:
        if runs_python(args):
            observer.tell(observer.process_started)
        run(self, args, *others, **named)

    _replace(process, "start", started, stack)
    _replace(program, "__init__", ran, stack)
    if not hasattr(os, "fork"):
        return
    fork = os.fork

    @functools.wraps(fork)
    def forked() -> int:
        if not inside[0]:
            observer.tell(observer.process_started)
        return fork()

    _replace(os, "fork", forked, stack)


def _patch_warnings(observer: Observer, stack: ExitStack) -> None:
    original = warnings.warn

    @functools.wraps(original)
    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **prefixes: Any) -> None:
        if torch.compiler.is_compiling():
            original(message, category, stacklevel, source, **prefixes)
            return
        if observer.is_at_work():
            # What the loop did has warned of it already.
            return
        if prefixes.get("skip_file_prefixes"):
            prefixes["skip_file_prefixes"] = (*prefixes["skip_file_prefixes"], without_us.PACKAGE)
            original(message, category, stacklevel + 1, source, **prefixes)
            return
        # One more for this frame.
        original(message, category, without_us.level(stacklevel, sys._getframe(1)) + 1, source)

    _replace(warnings, "warn", warn, stack)

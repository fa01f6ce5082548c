"""A tape of how a loss was computed from data: the calls outside modules; each outermost module call is one call.

Only calls whose result requires a gradient are on the tape, so preprocessing is not: the prepared tensors are the
tape's leaves, and a large batch is the same tape over the concatenated leaves of several micro-batches. (Preprocessing
that would give different results in a large batch is noted separately: see `prepared_data`.)

A call that writes into memory changes all tensors that share the memory: whatever reads one of them later depends on
the call, whatever it returned. A buffer from outside the tape is a leaf with its values before the first such call. If
memory of the tape was changed by something that is not on it (under ``no_grad``, through ``.data``), the tape does not
show how the loss was computed.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from gradcheck_accum.engine.callers import call_from
from gradcheck_accum.engine.checkpoints import Checkpointed
from gradcheck_accum.engine.containers import as_it_is, leaves_of, taken_apart, tensors_in
from gradcheck_accum.engine.copied_models import CopyOfModel
from gradcheck_accum.engine.copies import CopiesOnWrite
from gradcheck_accum.engine.following import READ_GRADIENT, WRITE_DATA, Follower, followed, is_followed
from gradcheck_accum.engine.graph_nodes import weights_below
from gradcheck_accum.engine.inner_steps import InnerGradients
from gradcheck_accum.engine.left_behind import is_heard
from gradcheck_accum.engine.lent_weights import Lent, has_weights, is_parameter, lent_weights
from gradcheck_accum.engine.loss_graph import is_cached
from gradcheck_accum.engine.memory import Region, may_write, memory_of, versions_of, written_among
from gradcheck_accum.engine.one_at_a_time import dimensions_of, takes_one_sample, takes_vectors
from gradcheck_accum.engine.prepared_data import Preparations
from gradcheck_accum.engine.program import Place, Program
from gradcheck_accum.engine.programs_of_losses import Notes, data_below, needed_calls, program_of
from gradcheck_accum.engine.randomness import State, random_state, same_state
from gradcheck_accum.engine.recorded_calls import (
    BY_ROW_NUMBER,
    Applied,
    Call,
    about_to_be_filled,
    index_of_rows,
    memory_of_numbers,
    with_sources,
)
from gradcheck_accum.engine.repeated_rows import REPEATING, RepeatedRows
from gradcheck_accum.engine.scalings import SCALES
from gradcheck_accum.engine.transformed import are_transforms_active, as_outside, is_wrapped, outside

_KEPT_GRAPHLESS = 64
"""How many outputs of modules without a graph are remembered, with the module."""

KEPT_SEGMENTS = 3
"""For how many backwards a recorded call is kept: a tensor may be made before one backward and used by a later one."""

_MOST_OF_ONE_FORWARD = 32
"""How many backwards after one forward pass are treated as one: losses with a retained graph, one backward each."""


def _calls_a_model(segment: Iterable[Call]) -> bool:
    """Whether a module with weights was called."""
    return any(has_weights(call.function) for call in segment)


_BLENDS = frozenset(
    {"add_", "copy_", "lerp_", "mul_", "_foreach_add_", "_foreach_copy_", "_foreach_lerp_", "_foreach_mul_"}
)
CLAMPS = frozenset({"clamp", "clamp_", "clip", "clip_"})
"""Functions that clamp tensors, by name."""


_PURE = frozenset({"__getitem__", "__len__", "cat", "dim", "is_floating_point", "numel", "size", "stack"})
"""Functions that draw no random numbers and, without ``out``, write nowhere: data loaders call them for each row."""

_MARK = "_record_function_"
"""How the names of the calls begin by which loaders and optimizers mark their work for PyTorch's profiler."""


@dataclass(slots=True)
class _Memories:
    """The memory of the results of a segment's calls, which no other tensor can have while they are kept.

    Computed on demand, since few loops write into any of it.
    """

    memories: set[int] = field(default_factory=set)
    _taken: int = 0

    def take(self, calls: Sequence[Call]) -> None:
        """Add the memory of the calls that are new."""
        made = (tensor for call in calls[self._taken :] for tensor in call.made)
        self.memories.update(memory for tensor in made if (memory := memory_of(tensor)) is not None)
        self._taken = len(calls)


def _no_copy(_: nn.Module) -> None:
    """No module is a copy."""


@dataclass(eq=False)
class Tape(TorchFunctionMode):
    """Records calls while it is active; call `program` for a loss right before its backward.

    ``on_scalar`` is called with each scalar that a call outside modules returns, if it requires a gradient, and with
    each tensor that such a call has multiplied or divided by a number, ``on_blend`` with each in-place operation that
    may update an average, and its arguments, ``on_scale`` with what is about to be multiplied or divided, even if it
    requires no gradient, ``on_clamp`` with the arguments of each call that clamps, ``on_write`` with each tensor that
    is about to be written into, ``on_gradient_read`` with each whose ``.grad`` is read, and ``on_call`` with each
    outermost call: its name, arguments and result. ``is_weight`` is asked which tensors are weights, and ``as_weight``
    for those that tensors inside ``torch.func.grad`` stand for. ``copy_of`` is asked what a module that is called is a
    copy of, and a program uses the weights that its copies stand for if it runs ``through_copies``. The ``follower``
    follows calls outside modules.
    """

    on_scalar: Callable[[torch.Tensor], object] | None = None
    on_blend: Callable[[str, Any, Any], object] | None = None
    on_scale: Callable[[Any], object] | None = None
    on_clamp: Callable[[Any, Any], object] | None = None
    on_write: Callable[[torch.Tensor], object] | None = None
    on_gradient_read: Callable[[torch.Tensor], object] | None = None
    on_call: Callable[[str, Any, Any], object] | None = None
    follower: Follower | None = None
    copy_of: Callable[[nn.Module], CopyOfModel | None] = _no_copy
    through_copies: bool = False
    is_weight: Callable[[torch.Tensor], bool] = is_parameter
    as_weight: Callable[[torch.Tensor], torch.Tensor] = as_outside
    segments: list[list[Call]] = field(default_factory=lambda: [[]])
    copies: CopiesOnWrite = field(default_factory=CopiesOnWrite)
    preparations: Preparations = field(init=False)
    inner_gradients: InnerGradients = field(default_factory=InnerGradients)
    repeated: RepeatedRows = field(default_factory=RepeatedRows)
    _memories: list[_Memories] = field(default_factory=lambda: [_Memories()])
    _of_the_same_forward: int = 0
    """How many backwards without a forward pass of their own have run since the last segment was closed."""
    pauses: int = 0
    """How many pauses are under way, one inside another."""
    _depth: int = 0
    _inside: nn.ModuleList | None = None
    """The modules that the running checkpointed function has called."""
    _numbers: set[int] = field(default_factory=set)
    """The memory of the integer tensors that the running module was given."""
    _looks_up_rows: bool = False
    """Whether it has looked up rows by these."""
    _of_one_sample: list[int] = field(default_factory=list)
    """The layers in it that were called with one sample alone."""
    _dimensions: set[int] = field(default_factory=set)
    """How many dimensions the inputs of its linear layers had."""
    _heard: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    """What submodules of it with forward hooks have returned."""
    _graphless: deque[tuple[weakref.ref[torch.Tensor], nn.Module]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_GRAPHLESS)
    )
    """The latest outputs of modules without a graph."""

    def __post_init__(self) -> None:
        super().__init__()
        self.preparations = Preparations(self.copies, KEPT_SEGMENTS)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        caller = sys._getframe(1)
        name = getattr(func, "__name__", "")
        follower = self.follower
        if follower is None or self._depth or self.pauses or not is_followed(follower, name):
            return self._run(caller, name, func, args, kwargs)
        return followed(follower, partial(self._run, caller, name, func, args, kwargs), func, args, kwargs)

    def _run(self, caller: FrameType, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call for ``caller``, and take note of it."""
        if name in _BLENDS and self.on_blend is not None and not self.pauses:
            with torch._C.DisableTorchFunction():
                self.on_blend(name, args, kwargs)
        if name in SCALES and self.on_scale is not None and not (self._depth or self.pauses):
            with torch._C.DisableTorchFunction():
                self.on_scale(args[0] if args else None)
        if name in CLAMPS and not (self._depth or self.pauses):
            self._clamps(args, kwargs)
        if self.pauses or name.startswith(_MARK):
            return call_from(caller, func, args, kwargs)
        if name in _PURE and not self._depth and "out" not in kwargs:
            return self._pure(caller, name, func, args, kwargs)
        if self.on_gradient_read is not None and name == "__get__" and func == READ_GRADIENT and not self._depth:
            self.on_gradient_read(args[0])
        writes = may_write(func)
        if self.on_write is not None and args and (writes or (name == "__set__" and func == WRITE_DATA)):
            with torch._C.DisableTorchFunction():
                for target in args[0] if isinstance(args[0], (list, tuple)) else args[:1]:
                    if isinstance(target, torch.Tensor):
                        self.on_write(target)
        made_of = self.preparations.about_to_write(func, args, kwargs) if writes and not self._depth else None
        if writes and args:
            self.copies.about_to_write(args[0])
        if self._depth:
            if self._numbers and name.rstrip("_") in BY_ROW_NUMBER and not self._looks_up_rows:
                self._looks_up_rows = memory_of_numbers(index_of_rows(args)) in self._numbers
            # A criterion may scale its loss too.
            return self.note_scaling(caller, func, args, kwargs, gradients=False)
        is_recording = torch.is_grad_enabled()
        state = random_state() if name != "__get__" and (is_recording or self.preparations.is_noting) else None
        if is_recording:
            result = self._call(caller, func, args, kwargs, state, writes=writes)
        else:
            result = call_from(caller, func, args, kwargs)
        if writes and args:
            self.preparations.written(args[0], made_of)
        else:
            self.preparations.note(name, func, args, kwargs, result, state)
        self._note_graphless(name, args, kwargs, result)
        if self.on_call is not None:
            with torch._C.DisableTorchFunction():
                self.on_call(name, args, result)
        return result

    def _note_graphless(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note what has no graph: gradients of weights, rows that were made of one, and what is computed from these."""
        if not (self.inner_gradients or self.repeated or name == "grad" or name in REPEATING):
            return
        with torch._C.DisableTorchFunction():
            self.repeated.note(name, args, kwargs, result)
            if name != "grad" or len(args) != 2:
                self.inner_gradients.note(args, kwargs, result)
                return
            inputs = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            pairs = zip(inputs, result, strict=True)
            found = [g for own, g in pairs if g is not None and not g.requires_grad and self._is_made_of_weights(own)]
            if found:
                calls = [call for segment in self.segments for call in segment]
                self.inner_gradients.returned(found, data_below(calls, tensors_in(args[0])))

    def _is_made_of_weights(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a weight, or was computed from weights, and from no data that requires a gradient."""
        if tensor.grad_fn is None:
            return self.is_weight(self.as_weight(tensor))
        return all(map(self.is_weight, weights_below([tensor.grad_fn])))

    def _pure(self, caller: FrameType, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one of the `_PURE` functions outside modules."""
        result = call_from(caller, func, args, kwargs)
        if torch.is_grad_enabled():
            self._record(func, args, kwargs, result, None)
        self.preparations.note(name, func, args, kwargs, result, None)
        self._note_graphless(name, args, kwargs, result)
        if self.on_call is not None:
            with torch._C.DisableTorchFunction():
                self.on_call(name, args, result)
        return result

    def _clamps(self, args: Any, kwargs: Any) -> None:
        if self.on_clamp is not None:
            with torch._C.DisableTorchFunction():
                self.on_clamp(args, kwargs)

    def note_scaling(self, caller: FrameType, func: Any, args: Any, kwargs: Any, *, gradients: bool = True) -> Any:
        """Run a call, and report what it multiplies or divides, and the scalar that it returns.

        ``gradients`` says whether what is about to be scaled may be gradients.
        """
        name = getattr(func, "__name__", "")
        if name in CLAMPS and gradients and not self.pauses:
            self._clamps(args, kwargs)
        if name not in SCALES or self.pauses:
            return call_from(caller, func, args, kwargs)
        if gradients and self.on_scale is not None:
            with torch._C.DisableTorchFunction():
                self.on_scale(args[0] if args else None)
        result = call_from(caller, func, args, kwargs)
        if self.on_scalar is not None and isinstance(result, torch.Tensor):
            with torch._C.DisableTorchFunction():
                if not result.dim() or (result.requires_grad and _is_by_number(func, args)):
                    self.on_scalar(result)
        return result

    def _call(self, caller: FrameType, func: Any, args: Any, kwargs: Any, state: State | None, *, writes: bool) -> Any:
        """Run a call outside modules, and record it if its result has a graph."""
        if state is None:
            result = call_from(caller, func, args, kwargs)
            self._record(func, args, kwargs, result, None)
            return result
        given = list(tensors_in((args, kwargs)))
        versions = versions_of(given)
        before = about_to_be_filled(given) if writes else None
        result = call_from(caller, func, args, kwargs)
        self._record(func, args, kwargs, result, state, written=written_among(given, versions), before=before)
        return result

    def _record(
        self,
        function: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        state: State | None,
        place: Place | None = None,
        written: tuple[int, ...] = (),
        before: tuple[torch.Tensor, torch.Tensor] | None = None,
        is_followed: bool = True,
        looks_up_rows: bool = False,
        of_one_sample: tuple[int, ...] = (),
        of_vectors: bool = False,
        heard: tuple[weakref.ref[torch.Tensor], ...] = (),
        copied: CopyOfModel | None = None,
    ) -> None:
        if isinstance(result, torch.Tensor):
            cached = isinstance(function, nn.Module) and is_cached(result)
            has_graph = cached or (result.requires_grad and not result.is_leaf)
            if has_graph and self.on_scalar is not None and (not result.dim() or _is_by_number(function, args)):
                self.on_scalar(result)
        elif result is None or isinstance(result, (bool, int, float, str, torch.Size, torch.dtype, torch.device)):
            has_graph = False
        else:
            has_graph = any(tensor.requires_grad for tensor in tensors_in(result))
        # Data that is prepared inside a transform exists in it alone: the script's own is what it is prepared from.
        if are_transforms_active() and not has_graph:
            has_graph = any(is_wrapped(tensor) and not tensor.requires_grad for tensor in tensors_in(result))
        if not has_graph and not written:
            return
        outputs = [result] if isinstance(result, torch.Tensor) else list(tensors_in(result))
        # The loop may use a list again, and a function keeps its own.
        args = tuple([*given] if type(given) is list else given for given in args)
        call = Call(function, args, kwargs, outputs, state, _autocast(), place, written)
        call.looks_up_rows, call.of_one_sample, call.of_vectors = looks_up_rows, of_one_sample, of_vectors
        call.heard, call.copied = heard, copied
        is_on_tape = has_graph or any(t.requires_grad and not t.is_leaf for t in call.changed)
        if not is_on_tape and not self._holds(call.changed):
            return
        call.is_followed = is_on_tape and is_followed
        if state is not None and same_state(state, random_state()):
            call.rng_state = None
        if before is not None and written:
            self._fill_from_outside(call, *before)
        self._append(call)

    def _append(self, call: Call) -> None:
        self.segments[-1].append(call)

    def _fill_from_outside(self, call: Call, buffer: torch.Tensor, values: torch.Tensor) -> None:
        """A call fills a tensor from outside the tape: its ``buffer``, or the tensor itself, held ``values`` before."""
        view, known = call.changed[0], self._holds([buffer])
        if view is buffer:
            call.before = None if known else (buffer, values)
            return
        region = Region.of(view, buffer)
        if region is None:
            call.is_followed = False
            return
        taken = Call(region, (buffer,), {}, [view])
        taken.before = None if known else (buffer, values)
        self._append(taken)

    def _holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether any of these tensors shares memory with a tensor on the tape."""
        own = {memory_of(tensor) for tensor in tensors}
        for segment, known in zip(self.segments, self._memories, strict=True):
            known.take(segment)
        return any(not own.isdisjoint(known.memories) for known in self._memories)

    def call_checkpointed(self, function: Callable[..., Any], call: Callable[..., Any], args: Any) -> Any:
        """Run a function that is checkpointed by ``call``, and record it as one module call."""
        if isinstance(function, nn.Module):
            return self.call_module(function, call, args, {})
        module, before = Checkpointed(function), self._inside
        self._inside = module.called
        try:
            return self.call_module(module, call, args, {})
        finally:
            self._inside = before

    def call_module(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an outermost module call, and record it as one.

        A module without weights that is given a model is a function of the loop's, which calls that model: its calls
        are recorded.
        """
        if self._inside is not None and not isinstance(module, Checkpointed):
            self._inside.append(module)
        if not self._depth and _is_given_a_model(module, args, kwargs):
            return call(*args, **kwargs)
        if not self._depth:
            self._of_one_sample, self._dimensions, self._heard = [], set(), []
        if not self.pauses and takes_one_sample(module, args, kwargs):
            self._of_one_sample.append(id(module))
        if not self.pauses and (dimensions := dimensions_of(module, args)) is not None:
            self._dimensions.add(dimensions)
        if self._depth or self.pauses or not torch.is_grad_enabled():
            result = self._as_one(call, args, kwargs)
            if self._depth and not self.pauses and is_heard(module):
                self._heard += map(weakref.ref, tensors_in(result))
            if not self._depth and not self.pauses:
                self._graphless.extend((weakref.ref(tensor), module) for tensor in tensors_in(result))
                with torch._C.DisableTorchFunction():
                    self.repeated.note("__call__", args, kwargs, result)
            return result
        with torch._C.DisableTorchFunction():
            state = random_state()
            # A module may write its results into the dictionary, or the object, that it was given.
            lent, copied = lent_weights(module), self.copy_of(module)
            given = taken_apart((lent, *args) if lent else args, as_it_is), taken_apart(kwargs, as_it_is)
            tensors = list(tensors_in(given))
            versions = versions_of(tensors)
            self._numbers = {memory for t in tensors if (memory := memory_of_numbers(t)) is not None}
        self._looks_up_rows = False
        result = self._as_one(call, args, kwargs)
        with torch._C.DisableTorchFunction():
            written = written_among(tensors, versions)
            # Leaves that no optimizer updates are not computed from weights, and were made of them in a way not seen.
            is_followed = all(map(self._is_of_weights, lent.values()))
            function = Lent(module) if lent else module
            self._record(
                *(function, *given, result, state, _place(), written),
                is_followed=is_followed,
                looks_up_rows=self._looks_up_rows,
                of_one_sample=tuple(self._of_one_sample),
                of_vectors=takes_vectors(tensors, self._dimensions),
                heard=tuple(self._heard),
                copied=copied,
            )
            if self.on_call is not None:
                self.on_call("__call__", given, result)
        return result

    def _is_of_weights(self, lent: torch.Tensor) -> bool:
        """Whether a lent weight is one of those that an optimizer updates, or is computed from others.

        Inside ``torch.func.grad`` it stands for the weight that it wraps.
        """
        return not (lent.requires_grad and lent.is_leaf) or self.is_weight(self.as_weight(lent))

    def _as_one(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run what is recorded as one call: no call that it makes itself is."""
        self._depth += 1
        try:
            return call(*args, **kwargs)
        finally:
            self._depth -= 1

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """A call of our own, recorded as if the loop had made it."""
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            result = function(*given)
            self._record(function, given, {}, result, None)
            self.preparations.note(function.__name__, function, given, {}, result, None)
        return result

    def call_function(self, function: type[Function], call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an autograd function of the loop's own, and record it as one call."""
        if self._depth or self.pauses or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            state = random_state()
            given = list(tensors_in((args, kwargs)))
            versions = versions_of(given)
        result = self._as_one(call, args, kwargs)
        with torch._C.DisableTorchFunction():
            written = written_among(given, versions)
            self._record(Applied(function), args, kwargs, result, state, written=written)
            if self.on_call is not None:
                self.on_call("apply", args, result)
        return result

    def paused(self) -> AbstractContextManager[None]:
        """Inside the block, nothing is recorded."""
        return _Pause(self)

    def next_segment(self) -> None:
        """Called after a backward: old recordings are discarded.

        A backward without a new model call belongs to the previous forward pass, and so may the next one.
        """
        if self.goes_on and self._of_the_same_forward < _MOST_OF_ONE_FORWARD:
            self._of_the_same_forward += 1
            return
        # Recordings before these backwards are that much older; the last segment holds the forward pass of this one.
        kept = max(KEPT_SEGMENTS - self._of_the_same_forward, 2)
        self._close_segment(kept)

    @property
    def goes_on(self) -> bool:
        """Whether no model was called since the last backward, but one before: all was computed before it."""
        *before, last = self.segments
        return not _calls_a_model(last) and any(map(_calls_a_model, before))

    def _close_segment(self, kept: int = KEPT_SEGMENTS) -> None:
        self.segments.append([])
        self._memories.append(_Memories())
        del self.segments[:-kept]
        del self._memories[:-kept]
        self._of_the_same_forward = 0
        self.preparations.next_segment()

    def forget(self) -> None:
        """Discard all recordings."""
        for _ in range(KEPT_SEGMENTS):
            self._close_segment()
        self._graphless.clear()

    def program(self, losses: Sequence[torch.Tensor]) -> Program | None:
        """How the losses of one backward were computed; None if part of it was not recorded."""
        calls = [call for segment in self.segments for call in segment]
        if self.through_copies:
            calls = [with_sources(call) for call in calls]
        with outside():
            found = program_of(
                calls,
                losses,
                Notes(self.preparations, self.inner_gradients, self.repeated),
                self.is_weight,
                self.as_weight,
            )
        if found is not None:
            self.copies.hold(found)
        return found

    def makers_of(self, data: Iterable[torch.Tensor]) -> list[nn.Module]:
        """The modules that returned data which has no graph, or no longer has one."""
        memories = {memory for tensor in data if (memory := memory_of(tensor)) is not None}
        calls = [call for segment in self.segments for call in segment]
        outputs = [call.made for call in calls]
        cut = [t for own in outputs for t in own if t.requires_grad and memory_of(t) in memories]
        graphless = [(made(), module) for made, module in self._graphless]
        functions = [calls[i].function for i in needed_calls(calls, outputs, cut) or ()]
        return [
            *(function for function in functions if isinstance(function, nn.Module)),
            *(module for made, module in graphless if made is not None and memory_of(made) in memories),
        ]


class _Pause(AbstractContextManager[None]):
    """A block in which a tape records nothing; a generator would take longer, and every backward has one."""

    __slots__ = ("_tape",)

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __enter__(self) -> None:
        self._tape.pauses += 1

    def __exit__(self, *error: object) -> None:
        self._tape.pauses -= 1


def _is_by_number(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call multiplies or divides by a number."""
    if len(args) != 2 or getattr(function, "__name__", "") not in SCALES:
        return False
    return any(type(one) in (int, float) or (isinstance(one, torch.Tensor) and not one.dim()) for one in args)


def _is_given_a_model(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a module has no weights of its own, and is given a module that has some, or a method of one."""
    if isinstance(module, Checkpointed) or has_weights(module):
        return False
    return any(has_weights(getattr(value, "__self__", value)) for value in leaves_of((args, kwargs)))


def _place() -> Place:
    """The call stack, without the frames of this module."""
    frame: FrameType | None = sys._getframe(2)
    place = []
    while frame is not None:
        place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(place)


def _autocast() -> tuple[str, torch.dtype] | None:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None


class ScalingNotes(TorchFunctionMode):
    """Passes what is multiplied, divided or clamped to a tape, as `Tape` itself does, and records nothing.

    Used if nothing is replayed: the role of a number is still read from the source.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name, follower = getattr(func, "__name__", ""), self._tape.follower
        if follower is None or self._tape.pauses or not is_followed(follower, name):
            if name not in SCALES and name not in CLAMPS:
                # Nearly all functions are of this kind.
                return call_from(sys._getframe(1), func, args, kwargs)
            return self._tape.note_scaling(sys._getframe(1), func, args, kwargs)
        run = partial(self._tape.note_scaling, sys._getframe(1), func, args, kwargs)
        return followed(follower, run, func, args, kwargs)

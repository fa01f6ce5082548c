"""Watches a running loop: turns what PyTorch does into events, and keeps each window's gradients for its judgement."""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.reference import LARGE_BATCH, MICRO_BATCHES, CannotReplay, ReferenceEngine
from gradcheck_accum.engine.tape import Program, Tape
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.events import (
    Backward,
    Clip,
    Event,
    Factor,
    Location,
    Opaque,
    Operation,
    Reduction,
    ScaleGrads,
    Step,
    Term,
    Trace,
    Unscale,
    ZeroGrad,
)
from gradcheck_accum.verify.clipping import ClipCall, clipped
from gradcheck_accum.verify.frames import user_location
from gradcheck_accum.verify.graph import LossReading, read_loss
from gradcheck_accum.verify.measure import InnerProducts, dense, inner_products
from gradcheck_accum.verify.shadow import ShadowStep

CHANGED_BY_HAND = "gradients were changed by hand"
CHANGED_ON_ITS_WAY = "a hook on the parameters changes their gradients while they are added up"


class SeenEnough(BaseException):
    """As many windows as were asked for have been watched; no `except Exception` of a script stops it."""


@dataclass(slots=True, eq=False)
class Record:
    """One backward with the gradients that it alone gave, by parameter identity, and how to run it again."""

    event: Backward
    gradients: dict[int, torch.Tensor]
    program: Program | None
    changed: bool = False


@dataclass(slots=True)
class Replay:
    """The replayed gradient of the records of one place in the source; ``vectors`` are indices of inner products."""

    records: list[int]
    vectors: list[int]
    kind: str


@dataclass(slots=True)
class Measured:
    """One optimizer step as it was measured; vector 0 is the gradient before any clip, 1 the one that was used."""

    step: Step
    records: list[Record]
    products: InnerProducts | None = None
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype = torch.float32
    device: str = ""
    clips: list[ClipCall] = field(default_factory=list)
    after_clip: int | None = None
    replays: list[Replay] = field(default_factory=list)
    replay_problem: str = ""
    coupled_modules: list[str] = field(default_factory=list)
    shadow: ShadowStep | None = None
    unmeasured: str = ""

    @property
    def first_record(self) -> int:
        """The index of the first record's own gradient among the inner products."""
        return 2


class Watch:
    """The observer of one run. Every method that PyTorch calls leaves the loop's own state as it is."""

    def __init__(self, *, replay: bool, engine: ReferenceEngine, max_windows: int | None) -> None:
        self.events: list[Event] = []
        self.measured: list[Measured] = []
        self.notes: list[str] = []
        self.precision = 0.0
        self.tape = Tape()
        self.replay = replay
        self.engine = engine
        self.max_windows = max_windows
        self._process = os.getpid()
        self._busy = 0
        self._optimizers: list[Optimizer] = []
        self._parameters: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._hooks: list[Any] = []
        self._arriving: dict[int, torch.Tensor] | None = None
        self._reading: tuple[LossReading, Program | None, Location] | None = None
        self._depth = 0
        self._changed_after_clip: set[int] = set()
        self.stray_backwards = 0
        self._scales: dict[Any, float] = {}
        self._unscaled: dict[int, tuple[Any, Any]] = {}
        self._scale_inside: dict[int, float] = {}
        self._expected: dict[int, torch.Tensor | None] = {}
        self._since: dict[int, list[Record]] = {}
        self._before_clip: dict[int, tuple[int, dict[int, torch.Tensor | None]]] = {}
        self._clips: dict[int, tuple[int, list[ClipCall]]] = {}
        self._backwards = 0
        self._scaler_step: list[bool] = []
        self._micro_batch = -1
        self._lines: set[tuple[str, int]] = set()
        self._data: set[int] = set()
        self._draws = 0
        self._uses_loader = False
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._pass_count = 0
        self._pass: int | None = None
        self._pending_step: Measured | None = None
        self._replayed: dict[tuple[int, ...], tuple[str, list[dict[int, torch.Tensor]]]] = {}

    # Parameters and optimizers

    @property
    def idle(self) -> bool:
        """Whether what happens now is not the loop's: our own reference, or another process."""
        return bool(self._busy) or os.getpid() != self._process

    def adopt_existing(self) -> None:
        """Take in the optimizers that were made before watching began."""
        # What nobody holds any more would only be in the way.
        gc.collect()
        for candidate in gc.get_objects():
            # The type is asked, not the object: some objects answer isinstance with a warning of their own.
            if issubclass(type(candidate), Optimizer) and getattr(candidate, "param_groups", None):
                self.optimizer_made(candidate)

    def release(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got more parameters."""
        if self.idle:
            return
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
            same = sum(type(o) is type(optimizer) for o in self._optimizers)
            self._names[id(optimizer)] = type(optimizer).__name__ + (f" #{same}" if same > 1 else "")
        for parameter in _parameters_of(optimizer):
            if id(parameter) not in self._parameters and parameter.is_leaf and parameter.requires_grad:
                self._parameters[id(parameter)] = parameter
                self._expected[id(parameter)] = _copy(parameter.grad)
                self._hooks.append(parameter.register_hook(self._arrival(id(parameter))))  # type: ignore[no-untyped-call]

    def _arrival(self, key: int) -> Callable[[torch.Tensor], None]:
        def arrived(gradient: torch.Tensor) -> None:
            if self._arriving is not None and not self.idle:
                earlier = self._arriving.get(key)
                own = dense(gradient.detach())
                self._arriving[key] = own.clone() if earlier is None else earlier + own

        return arrived

    def _stores(self, keys: Iterable[int]) -> frozenset[str]:
        cells = self._cells()
        return frozenset(cells[key] for key in keys if key in cells)

    def _cells(self) -> dict[int, str]:
        """The store of every parameter: the parameters that the same optimizers own are filled and cleared together."""
        size = sum(len(group["params"]) for o in self._optimizers for group in o.param_groups)
        if getattr(self, "_cell_size", None) != (size, len(self._optimizers)):
            owners: dict[int, list[str]] = {}
            for optimizer in self._optimizers:
                for parameter in _parameters_of(optimizer):
                    owners.setdefault(id(parameter), []).append(self._names[id(optimizer)])
            self._cell_names = {key: " + ".join(names) for key, names in owners.items()}
            self._cell_size = (size, len(self._optimizers))
        return self._cell_names

    # Backward

    def module_called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module is called."""
        if self.idle or not self.replay:
            return call(*args, **kwargs)
        return self.tape.call_module(module, call, args, kwargs)

    def drawn(self, iterator: Any, is_first: bool) -> None:
        """A data loader gave a batch, the first of a pass over its data or another."""
        if self.idle:
            return
        self._draws += 1
        if is_first or iterator not in self._passes:
            self._passes[iterator] = self._pass_count
            self._pass_count += 1
        self._pass = self._passes[iterator]

    def scaled(self, scaler: Any, before: Any, after: Any) -> None:
        """A grad scaler multiplied a loss by its scale."""
        if self.idle or not isinstance(after, torch.Tensor) or after.grad_fn is None or before is after:
            return
        self._scales[after.grad_fn] = float(scaler.get_scale())
        self._unscaled[id(after)] = (after, before)

    def before_backward(self, losses: Any, weights: Any) -> None:
        """``backward`` is entered; ``weights`` is its gradient argument."""
        if self.idle:
            return
        self._depth += 1
        if self._depth > 1:
            # Reentrant checkpointing runs backwards inside a backward: what they give is part of the outer one's.
            return
        where = user_location()
        self._notice_changes(where)
        tensors = [losses] if isinstance(losses, torch.Tensor) else list(losses)
        reading, program = LossReading(()), None
        weight = _one_number(weights)
        if len(tensors) == 1 and tensors[0].numel() == 1 and weight is not None:
            loss = tensors[0]
            reading = read_loss(loss, self._scales, weight)
            self.precision = max(self.precision, unit_roundoff(loss.dtype)) if loss.is_floating_point() else 0.0
            if self.replay and weight == 1.0:
                original = self._unscaled.get(id(loss), (None, loss))[1]
                with _paused(self.tape):
                    program = self.tape.program(original)
        else:
            reading = LossReading((Term("a loss with a gradient argument", Reduction.MEAN, None, (Factor(None),)),))
        self._reading = (reading, program, where)
        self._arriving = {}

    def after_backward(self, failed: bool) -> None:
        """``backward`` has returned."""
        if self.idle:
            return
        self._depth -= 1
        if self._depth or self._reading is None or self._arriving is None:
            return
        reading, program, where = self._reading
        arrived, self._arriving, self._reading = self._arriving, None, None
        self._scales.clear()
        self._unscaled.clear()
        self.tape.next_segment()
        if not arrived:
            self.stray_backwards += 1
            return
        self._number(where, program)
        gradients = {key: g / reading.scale if reading.scale != 1.0 else g for key, g in arrived.items()}
        event = Backward(
            where=where,
            micro_batch=self._micro_batch,
            stores=self._stores(arrived),
            terms=reading.terms,
            epoch=self._pass,
            grad_scaled=reading.scale != 1.0,
        )
        self._add(event)
        record = Record(event, gradients, program, self._was_changed_on_its_way(arrived))
        for optimizer in self._optimizers:
            if any(id(p) in arrived for p in _parameters_of(optimizer)):
                self._since.setdefault(id(optimizer), []).append(record)
        for key in arrived:
            self._scale_inside[key] = reading.scale
        self._backwards += 1
        if record.changed:
            self._add(Opaque(where=where, stores=event.stores, reason=CHANGED_ON_ITS_WAY))
        self._expect(arrived)
        if failed:
            self._add(Opaque(where=where, stores=event.stores, reason="a backward that raised"))

    def _was_changed_on_its_way(self, arrived: dict[int, torch.Tensor]) -> bool:
        """Whether ``.grad`` did not grow by just what arrived: another hook had its hands on it after ours."""
        for key, own in arrived.items():
            now, then = self._parameters[key].grad, self._expected.get(key)
            if now is None:
                # ``autograd.grad`` inside a module, or a hook that applies the gradient at once.
                return True
            total = own if then is None else dense(then) + own
            room = 4 * unit_roundoff(now.dtype) * (total.abs() + own.abs())
            if not bool(((dense(now).detach() - total).abs() <= room).all()) and bool(torch.isfinite(total).all()):
                return True
        return False

    def _number(self, where: Location, program: Program | None) -> None:
        """Decide whether this backward is over the same batch of data as the last one."""
        line = (where.path, where.line)
        data = {t.data_ptr() for t in program.leaves if not t.requires_grad} if program is not None else set()
        if self._draws:
            # Batches that were all drawn before the first backward are a list, and no loader drives the loop.
            self._uses_loader = self._draws == 1 or self._backwards > 0
        if self._uses_loader:
            new = self._draws > 0 or line in self._lines
        else:
            # Without a loader only the tensors themselves tell whether two losses share their data.
            new = line in self._lines or (bool(data) and bool(self._data) and not data & self._data)
        if new or self._micro_batch < 0:
            self._micro_batch += 1
            self._lines, self._data = set(), set()
        self._draws = 0
        self._lines.add(line)
        self._data |= data

    # Changes of .grad

    def _expect(self, keys: Iterable[int]) -> None:
        """Remember the gradients as they are now, so that the next look tells whether somebody changed them."""
        for key in keys:
            self._expected[key] = _copy(self._parameters[key].grad) if key in self._parameters else None

    def _notice_changes(self, where: Location) -> None:
        """Emit what was done to ``.grad`` since the last look by other means than a call that is watched."""
        changed = [key for key, p in self._parameters.items() if not _same(p.grad, self._expected.get(key))]
        if not changed:
            return
        cells = self._cells()
        for store in sorted({cells[key] for key in changed if key in cells}):
            filled = [k for k, cell in cells.items() if cell == store and self._expected.get(k) is not None]
            own = [k for k in changed if cells.get(k) == store]
            self._add(self._explain(where, store, own, filled))
        for optimizer in self._optimizers:
            clip_position, _ = self._clips.get(id(optimizer), (-1, []))
            if clip_position == self._backwards and any(id(p) in changed for p in _parameters_of(optimizer)):
                self._changed_after_clip.add(id(optimizer))
        self._expect(changed)

    def _explain(self, where: Location, store: str, changed: list[int], filled: list[int]) -> Event:
        stores = frozenset({store})
        if all(_is_cleared(self._parameters[key].grad) for key in changed):
            if set(filled) <= set(changed):
                return ZeroGrad(where=where, stores=stores)
            return Opaque(where=where, stores=stores, reason="only some of the gradients were cleared")
        inner = squares = new = 0.0
        for key in filled:
            now, then = self._parameters[key].grad, self._expected[key]
            if now is None or then is None:
                return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND)
            a, b = dense(now).detach().double(), dense(then).double()
            inner, squares, new = (
                inner + float((a * b).sum()),
                squares + float((b * b).sum()),
                new + float((a * a).sum()),
            )
        ratio = inner / squares if squares else 1.0
        residual = math.sqrt(max(new - ratio * inner, 0.0))
        roundoff = unit_roundoff(self._parameters[filled[0]].dtype) if filled else 0.0
        scale = self._scale_inside.get(filled[0], 1.0) if filled else 1.0
        if scale != 1.0 and squares and math.isclose(ratio * scale, 1.0, rel_tol=1e-5):
            self._scale_inside.update(dict.fromkeys(filled, 1.0))
            return Unscale(where=where, stores=stores)
        if squares and ratio and residual <= max(16 * roundoff, 1e-7) * math.sqrt(new):
            operation = Operation.DIVIDE if abs(ratio) < 1 else Operation.MULTIPLY
            return ScaleGrads(where=where, stores=stores, factor=Factor(_tidy(ratio), operation))
        return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND)

    def before_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` is entered."""
        if not self.idle:
            self._notice_changes(user_location())

    def after_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` has returned."""
        if self.idle:
            return
        keys = {id(p) for p in parameters} & self._parameters.keys()
        cells = self._cells()
        where = user_location()
        whole: set[str] = set()
        part: set[str] = set()
        for store in self._stores(keys):
            own = {key for key, cell in cells.items() if cell == store}
            left = [k for k in own - keys if self._expected.get(k) is not None and not _is_cleared(self._expected[k])]
            (part if left else whole).add(store)
        if whole:
            self._add(ZeroGrad(where=where, stores=frozenset(whole)))
        if part:
            self._add(Opaque(where=where, stores=frozenset(part), reason="only some of the gradients were cleared"))
        for key in keys:
            self._scale_inside.pop(key, None)
        self._expect(keys)

    def before_clip(self, parameters: Any) -> None:
        """A clip is entered: the gradient before it is what the large batch is compared with."""
        if self.idle:
            return
        self._notice_changes(user_location())
        keys = {id(p) for p in parameters}
        for optimizer in self._optimizers:
            if any(id(p) in keys for p in _parameters_of(optimizer)):
                known = self._before_clip.get(id(optimizer))
                if known is None or known[0] != self._backwards:
                    self._before_clip[id(optimizer)] = (self._backwards, self._gradients(optimizer))

    def after_clip(self, parameters: Any, kind: str, limit: float, norm_type: float) -> None:
        """A clip has returned."""
        if self.idle:
            return
        keys = {id(p) for p in parameters} & self._parameters.keys()
        self._add(Clip(where=user_location(), stores=self._stores(keys)))
        for optimizer in self._optimizers:
            own = {id(p) for p in _parameters_of(optimizer)}
            if own & keys:
                position, calls = self._clips.get(id(optimizer), (-1, []))
                calls = calls if position == self._backwards else []
                call = ClipCall(frozenset(keys), kind, limit, norm_type)
                self._clips[id(optimizer)] = (self._backwards, [*calls, call])
        self._expect(keys)

    def before_unscale(self, optimizer: Optimizer) -> None:
        """A grad scaler is about to divide its scale out."""
        if not self.idle:
            self._notice_changes(user_location())

    def after_unscale(self, scaler: Any, optimizer: Optimizer) -> None:
        """A grad scaler has divided its scale out."""
        if self.idle:
            return
        keys = {id(p) for p in _parameters_of(optimizer)} & self._parameters.keys()
        for key in keys:
            self._scale_inside[key] = 1.0
        self._add(Unscale(where=user_location(), stores=self._stores(keys)))
        self._expect(keys)

    # Steps

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """``scaler.step`` is entered."""
        if not self.idle:
            self._scaler_step.append(False)

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """``scaler.step`` has returned, with or without a step of the optimizer."""
        if self.idle or not self._scaler_step:
            return
        if not self._scaler_step.pop():
            step = self._step_event(optimizer, skipped=True)
            self._add(step)
            records = self._since.pop(id(optimizer), [])
            self.measured.append(Measured(step, records, unmeasured="skipped by the grad scaler (inf or nan)"))

    def _step_event(self, optimizer: Optimizer, skipped: bool = False) -> Step:
        stores = self._stores(id(p) for p in _parameters_of(optimizer))
        name = self._names.get(id(optimizer), type(optimizer).__name__)
        scaled = bool(self._scaler_step) or skipped
        return Step(where=user_location(), optimizer=name, stores=stores, through_scaler=scaled, skipped=skipped)

    def before_step(self, optimizer: Optimizer, with_closure: bool) -> None:
        """``optimizer.step`` is entered, the weights still those of the window's start."""
        if self.idle:
            return
        self.optimizer_made(optimizer)
        where = user_location()
        self._notice_changes(where)
        step = self._step_event(optimizer)
        if self._scaler_step:
            self._scaler_step[-1] = True
        if with_closure:
            self._add(Opaque(where=where, stores=step.stores, reason="a step with a closure runs its own backwards"))
        self._add(step)
        records = self._since.pop(id(optimizer), [])
        measured = Measured(step, records)
        if with_closure:
            measured.unmeasured = "a step with a closure runs its own backwards"
        elif self._depth:
            measured.unmeasured = "the step runs inside backward, on gradients that are not complete"
        else:
            with self._own_work():
                self._measure(optimizer, measured)
        self._pending_step = measured

    def after_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        if self.idle or self._pending_step is None:
            return
        measured, self._pending_step = self._pending_step, None
        self._changed_after_clip.discard(id(optimizer))
        self._clips.pop(id(optimizer), None)
        self._before_clip.pop(id(optimizer), None)
        if measured.shadow is not None:
            with self._own_work():
                measured.shadow.finish()
        if measured.unmeasured.startswith("a step with a closure"):
            self._since.pop(id(optimizer), None)
        awaited = {id(record) for records in self._since.values() for record in records}
        for record in measured.records:
            # Only the numbers are needed from here on, unless another optimizer has yet to step on them.
            if id(record) not in awaited:
                record.gradients, record.program = {}, None
        self._replayed = {k: v for k, v in self._replayed.items() if awaited & set(k)}
        self.measured.append(measured)
        self._expect(id(p) for p in _parameters_of(optimizer) if id(p) in self._parameters)
        if self.max_windows is not None and len(self.measured) >= self.max_windows:
            raise SeenEnough

    def _gradients(self, optimizer: Optimizer) -> dict[int, torch.Tensor | None]:
        """The gradients without the grad scaler's scale that is still to be divided out."""
        found: dict[int, torch.Tensor | None] = {}
        for parameter in _parameters_of(optimizer):
            scale = self._scale_inside.get(id(parameter), 1.0)
            gradient = _copy(parameter.grad)
            found[id(parameter)] = gradient / scale if gradient is not None and scale != 1.0 else gradient
        return found

    def _measure(self, optimizer: Optimizer, measured: Measured) -> None:
        parameters = [p for p in _parameters_of(optimizer) if p.requires_grad]
        if parameters:
            measured.dtype, measured.device = parameters[0].dtype, parameters[0].device.type
        if not measured.records or not parameters:
            measured.unmeasured = "no gradient was made for this step"
            return
        if any(record.changed for record in measured.records):
            measured.unmeasured = CHANGED_ON_ITS_WAY
            return
        used = self._gradients(optimizer)
        position, before = self._before_clip.get(id(optimizer), (-1, used))
        if position != self._backwards:
            before = used
        if not measured.step.through_scaler:
            # Nobody will divide the scale out any more: it is part of what the optimizer gets.
            scales = {key: self._scale_inside.get(key, 1.0) for key in used}
            used = {key: g * scales[key] if g is not None else None for key, g in used.items()}
            if before is not used:
                before = {key: g * scales.get(key, 1.0) if g is not None else None for key, g in before.items()}
        clip_position, clips = self._clips.get(id(optimizer), (-1, []))
        measured.clips = clips if clip_position == self._backwards else []
        keys = [id(p) for p in parameters]
        vectors = [[before.get(k) for k in keys], [used.get(k) for k in keys]]
        vectors += [[record.gradients.get(k) for k in keys] for record in measured.records]
        if any(v is not None and not bool(torch.isfinite(dense(v)).all()) for v in vectors[0]):
            measured.unmeasured = "the gradient is not finite"
            return
        if measured.clips:
            if id(optimizer) in self._changed_after_clip:
                measured.unmeasured = "the gradients were changed by hand after they were clipped"
                return
            expected = clipped(vectors[0], keys, measured.clips)
            if expected is not None:
                vectors.append(expected)
                measured.after_clip = len(vectors) - 1
        if self.replay:
            self._replay(measured, parameters, vectors)
        measured.products = inner_products(vectors, parameters)
        measured.shadow = ShadowStep.prepare(
            optimizer,
            parameters,
            vectors,
            Trace(tuple(self.events[-self._recent() :]), precision=self.precision),
            measured,
        )

    def _recent(self) -> int:
        """How many of the last events tell how this loop scales: those of the last few windows."""
        steps = 0
        for position, event in enumerate(reversed(self.events), 1):
            steps += isinstance(event, Step)
            if steps > 8:
                return position - 1
        return len(self.events)

    def _replay(self, measured: Measured, parameters: list[torch.Tensor], vectors: list[Any]) -> None:
        programs = [record.program for record in measured.records]
        groups = _alike(measured.records)
        low = [p.lowest_dtype for p in programs if p is not None and p.lowest_dtype is not None]
        measured.compute_dtype = low[0] if low else measured.dtype
        names = {
            type(m).__name__
            for program in programs
            if program is not None
            for module in program.modules
            for m in module.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
        }
        measured.coupled_modules = sorted(names)
        for own in groups:
            chosen = [programs[i] for i in own]
            known = [p for p in chosen if p is not None]
            if len(known) < len(chosen):
                measured.replay_problem = "part of the loss was computed in a way that could not be recorded"
                return
            try:
                self._replay_line(measured, own, known, parameters, vectors)
            except CannotReplay as error:
                measured.replay_problem = str(error)
                return

    def _replay_line(
        self,
        measured: Measured,
        own: list[int],
        programs: list[Program],
        parameters: list[torch.Tensor],
        vectors: list[Any],
    ) -> None:
        records = [measured.records[i] for i in own]
        key = tuple(id(record) for record in records)
        if key not in self._replayed:
            # All that these micro-batches reached is replayed at the first step that uses them: after it the weights
            # are no longer those that the gradients were computed with.
            reached = {k for record in records for k in record.gradients}
            wanted = [p for k, p in self._parameters.items() if k in reached]
            self._replayed[key] = self._replay_records(measured, programs, wanted)
        kind, gradients = self._replayed[key]
        first = len(vectors)
        vectors.extend([gradient.get(id(p)) for p in parameters] for gradient in gradients)
        measured.replays.append(Replay(own, list(range(first, len(vectors))), kind))

    def _replay_records(
        self, measured: Measured, programs: list[Program], parameters: list[torch.Tensor]
    ) -> tuple[str, list[dict[int, torch.Tensor]]]:
        keys = [id(p) for p in parameters]
        if not any(program.random for program in programs):
            try:
                gradient = self.engine.large_batch(programs, parameters)
                return LARGE_BATCH, [dict(zip(keys, gradient, strict=True))]
            except CannotReplay as error:
                measured.replay_problem = str(error)
        several = [self.engine.one_by_one(program, parameters) for program in programs]
        return MICRO_BATCHES, [dict(zip(keys, gradient, strict=True)) for gradient in several]

    # Bookkeeping

    def _add(self, event: Event) -> None:
        self.events.append(event)

    def _own_work(self) -> _Busy:
        return _Busy(self)


class _Busy:
    """While it is entered, what happens is ours and not the loop's."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __enter__(self) -> None:
        self.watch._busy += 1
        self.watch.tape.paused += 1

    def __exit__(self, *exception: object) -> None:
        self.watch._busy -= 1
        self.watch.tape.paused -= 1


class _paused:
    """While it is entered, the tape does not record."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __enter__(self) -> None:
        self.tape.paused += 1

    def __exit__(self, *exception: object) -> None:
        self.tape.paused -= 1


def _alike(records: list[Record]) -> list[list[int]]:
    """The records that can be one batch: other micro-batches of the same computation."""
    groups: list[list[int]] = []
    for index, record in enumerate(records):
        for group in groups:
            first = records[group[0]]
            apart = all(records[i].event.micro_batch != record.event.micro_batch for i in group)
            if apart and (
                record.event.where == first.event.where
                or (
                    record.program is not None
                    and first.program is not None
                    and first.program.same_shape(record.program)
                )
            ):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _copy(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def _is_cleared(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not bool(dense(gradient).any())


def _same(now: torch.Tensor | None, then: torch.Tensor | None) -> bool:
    if now is None or then is None:
        return now is then
    if now.layout is not torch.strided or then.layout is not torch.strided:
        return torch.equal(dense(now), dense(then))
    return torch.equal(now.detach(), then) or bool(torch.isnan(then).any())


def _tidy(ratio: float) -> float:
    """A measured ratio, as the reciprocal of a whole number where it is one within rounding."""
    if ratio and math.isclose(1 / ratio, round(1 / ratio), rel_tol=1e-4):
        return 1 / round(1 / ratio)
    return ratio


def _one_number(weights: Any) -> float | None:
    """The gradient argument of ``backward`` as one number, 1 where there is none; None where it is no number."""
    if isinstance(weights, (list, tuple)) and len(weights) == 1:
        weights = weights[0]
    if weights is None:
        return 1.0
    if isinstance(weights, torch.Tensor) and weights.numel() == 1 and not weights.requires_grad:
        return float(weights)
    return None

"""Watches a running loop: turns what PyTorch does into events, and keeps each window's gradients for its judgement."""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.alone import is_sharded
from gradcheck_accum.engine.determinism import thawed
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.events import (
    AverageUpdate,
    Backward,
    Cause,
    Clip,
    DataGradientRead,
    Event,
    Factor,
    GraphsHeld,
    Opaque,
    Operation,
    Reason,
    ScaleGrads,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Trace,
    Unscale,
    ZeroGrad,
)
from gradcheck_accum.folding import fold
from gradcheck_accum.location import Location
from gradcheck_accum.stated import NAME_OF_LENGTH
from gradcheck_accum.verify.averaging import AVERAGED_OTHERWISE, Averaging
from gradcheck_accum.verify.batches import BatchCounter, data_of, identity_of
from gradcheck_accum.verify.by_hand import OwnAverages, Rates
from gradcheck_accum.verify.clipping import ClipBook, ClipCall, change_by
from gradcheck_accum.verify.companion import AtStep, Companion
from gradcheck_accum.verify.comparing import Comparer
from gradcheck_accum.verify.frames import user_location
from gradcheck_accum.verify.frameworks import Remark, remark
from gradcheck_accum.verify.gradient_scaling import GradientScalings
from gradcheck_accum.verify.gradients import (
    PARTLY_CLEARED,
    GradientBook,
    Held,
    is_cleared,
    parameters_of,
    tensors_of,
    with_subclasses,
)
from gradcheck_accum.verify.handed_out import NOT_FOLLOWED, Handed, HandedOut
from gradcheck_accum.verify.held_graphs import HeldGraphs
from gradcheck_accum.verify.holding import Mode, Wanted
from gradcheck_accum.verify.measure import dense, squared_norm
from gradcheck_accum.verify.measuring import Measurer
from gradcheck_accum.verify.modes import without_modes
from gradcheck_accum.verify.moved import MovedWeights
from gradcheck_accum.verify.own_steps import OwnSteps
from gradcheck_accum.verify.parts import Part, kind_of
from gradcheck_accum.verify.provenance.counting import bound_of_window, call_chain
from gradcheck_accum.verify.records import Measured, Record
from gradcheck_accum.verify.sent_back import LossReader, SentBack
from gradcheck_accum.verify.shadow import ShadowStep
from gradcheck_accum.verify.shards import NORM_UNKNOWN, Shards, whole_norm
from gradcheck_accum.verify.shared import Shared

_Gradients = dict[int, Held | None]

_TOUCHING = (ZeroGrad, ScaleGrads, Clip, Unscale, Opaque, Step)
"""Events that may set backwards apart: those before weigh otherwise than those after."""

PARTLY_AVERAGED = Reason(
    "one backward averages some of its gradients over the ranks and leaves others local: let one no_sync() hold for "
    "all of the model"
)
CHANGED_ON_ITS_WAY = Reason(
    "a hook on the parameters changes their gradients while they are added up: change the whole gradient once, right "
    "before the step",
    Cause.BY_HAND,
)
USED_BY_HAND = Reason(
    "the weights were changed by hand, and the gradients cleared without a step: what is compared is what an "
    "optimizer's step() gets",
    Cause.BY_HAND,
)
RAISED = Reason("a backward raised, and what it had added by then is not known: clear the gradients where it is caught")
INSIDE_BACKWARD = "the step runs inside backward, on gradients that are not complete: step after it to compare"
CHANGED_AFTER_CLIP = "the gradients were changed by hand after they were clipped: change them before the clip"
SKIPPED = "skipped by the grad scaler (inf or nan)"
NO_GRADIENT = "no gradient was made for this step: none of its parameters has one, so check what backward() reaches"
PUT_IN = (
    "the gradients of this step come from neither backward() nor torch.autograd.grad(): which micro-batches they are "
    "made of is not known, so compute them with one of these"
)
WITH_CLOSURE = (
    "a step that calls its closure several times, or never, uses no one gradient: train with an optimizer that calls "
    "it once to compare"
)

_WAITED_FOR = 3
"""Steps on the same parameters after which an optimizer that has made none is not expected to make one."""


class SeenEnough(BaseException):
    """As many windows as were asked for have been watched; no `except Exception` of a script stops it."""


class Watch:
    """The observer of one run. Every method that PyTorch calls leaves the loop's own state as it is."""

    def __init__(
        self, *, wanted: Wanted, engine: ReferenceEngine, max_windows: int | None, companion: Companion | None = None
    ) -> None:
        self.events: list[Event] = []
        self.measured: list[Measured] = []
        self.from_start = True
        """Whether ``events`` go back to where the loop began."""
        self.losses = LossReader(records=wanted.records or companion is not None)
        self._wanted = wanted
        self.mode: Mode | None = None
        """What is compared, chosen when the first gradients are made."""
        self._companion = companion
        self.max_windows = max_windows
        self._process = os.getpid()
        self._busy = 0
        self._worker = 0
        """The thread in which our own work is done."""
        self.book = GradientBook()
        self.batches = BatchCounter()
        # Nothing of a run may hold its watch in a circle: the run's model and optimizers would outlive it.
        filled = weakref.WeakMethod(self._shard_filled)
        self.shards = Shards(lambda key, gradient: (filled() or _ignore)(key, gradient))
        self.averaging = Averaging(self.shards)
        blended, book = weakref.WeakMethod(self._blended), self.book
        self.losses.tape.on_blend = lambda *call: (blended() or _ignore)(*call)
        self._averages = OwnAverages(lambda: book.optimizers)
        self._scalings = GradientScalings(book)
        self.losses.tape.on_scale = self._scalings.seen
        read = weakref.WeakMethod(self._gradient_read)
        self.losses.tape.on_gradient_read = lambda tensor: (read() or _ignore)(tensor)
        self._reads_data = True
        """Whether it is known what data's gradient the last backward was for, or there is no backward yet."""
        self._rates = Rates()
        self.measurer = Measurer(engine, wanted.records, self.shards, book.sketcher)
        self._moved = MovedWeights()
        self.comparer = Comparer(self.book, self.measurer, self._moved)
        self.stray_backwards = 0
        self.own_steps = OwnSteps()
        self.children = 0
        """How many processes that may train the loop has started."""
        self.accumulation_steps: int | None = None
        """K, where the caller states it."""
        self.on_step: Callable[[int], object] | None = None
        """Told after every step how many there have been."""
        self.remarks: dict[tuple[str, int], Remark] = {}
        """What a framework said about the backwards of a line, by path and line."""
        self._hooks: list[Any] = []
        self._arriving: dict[int, list[torch.Tensor]] | None = None
        self._sent_back: tuple[SentBack, Location, Part] | None = None
        self._handed = HandedOut()
        self._asked: tuple[SentBack, Location] | None = None
        """What ``torch.autograd.grad`` is computing the gradients of."""
        self._depth = 0
        self._since: dict[int, list[Record]] = {}
        self._clips = ClipBook(self.book)
        self._scaler_step: list[bool] = []
        self._unscaled_optimizers: set[int] = set()
        self._pending: tuple[Measured, ShadowStep | None] | None = None
        self._stepping: frozenset[int] = frozenset()
        """The parameters of the step that is pending, as long as no backward follows it."""
        self._inner: set[int] = set()
        """Optimizers whose step is a part of another's."""
        self._closure_calls: dict[int, int] = {}
        self._graphs = HeldGraphs()
        self._shared = Shared()
        self._weights: dict[int, int] = {}
        """The version counters of the parameters that a backward has reached since their last step."""
        self._stepped: Counter[int] = Counter()

    # Parameters and optimizers

    @property
    def idle(self) -> bool:
        """Whether what happens now is not the loop's: our own reference, or another process."""
        return bool(self._busy) or os.getpid() != self._process

    def is_at_work(self) -> bool:
        """Whether what the calling thread does is our own reference's work."""
        return bool(self._busy) and threading.get_ident() == self._worker

    def process_started(self) -> None:
        """A process is started that may train, and is not watched."""
        if not self.idle:
            self.children += 1

    @property
    def moved_unseen(self) -> bool:
        """Whether weights that a backward has reached were changed since, by something else than a step."""
        return any(self.book.parameters[key]._version != version for key, version in self._weights.items())

    def restart(self) -> None:
        """Begin anew with the gradients as they are: what was seen before is forgotten."""
        self.from_start = False
        self.events.clear()
        self.measured.clear()
        self._since.clear()
        self._clips.forget()
        self._graphs.forget()
        self._moved.forget()
        self._weights.clear()
        # A scaler's step that was under way when we fell asleep has ended since.
        self._scaler_step.clear()
        self._unscaled_optimizers.clear()
        self._choose_mode()
        self.book.look(self.book.parameters)
        self.book.close_part()

    def forget_before(self, windows: int) -> None:
        """Forget all but the last ``windows`` windows."""
        if len(self.measured) > windows:
            self.from_start = False
            del self.measured[:-windows]
            del self.events[: -self._recent(windows)]

    def adopt_existing(self) -> None:
        """Take in the optimizers that were made before watching began."""
        alive = _optimizers_alive()
        if alive:
            # What nobody holds any more would only be in the way.
            del alive
            gc.collect()
            alive = _optimizers_alive()
        for optimizer in alive:
            if getattr(optimizer, "param_groups", None):
                self.optimizer_made(optimizer)

    def release(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.shards.release()

    def listen(self) -> None:
        """Put the hooks on all parameters again, after `release`."""
        self.release()
        self._hook(self.book.parameters.values())
        self.shards.listen()

    def _hook(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if is_sharded(parameter):
                # Backward fills the whole weight, when a module has gathered it.
                self.shards.adopt(parameter)
                continue
            self._hooks.append(parameter.register_hook(self._arrival(id(parameter))))  # type: ignore[no-untyped-call]
            # Ours runs before all others: what they make of a gradient is what the script does to it. Autograd goes by
            # the order of insertion, which moving to an end does not change.
            hooks: dict[int, Any] = parameter._backward_hooks  # type: ignore[assignment]
            for other in [key for key in hooks if key != self._hooks[-1].id]:
                hooks[other] = hooks.pop(other)

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got more parameters."""
        if self.idle:
            return
        self._hook(self.book.adopt(optimizer))

    def _arrival(self, key: int) -> Callable[[torch.Tensor], None]:
        def arrived(gradient: torch.Tensor) -> None:
            if self._arriving is not None and not self.idle:
                self.averaging.gradient_arrived()
                # Our own arithmetic needs no mode of anybody's, the tape among them.
                with torch._C.DisableTorchFunction():
                    own = dense(gradient.detach())
                    self._arriving.setdefault(key, []).append(squared_norm(own))
                    self.book.arrives(key, own)

        return arrived

    def _shard_filled(self, key: int, gradient: torch.Tensor) -> None:
        if self._arriving is not None and not self.idle and key in self.book.parameters:
            with torch._C.DisableTorchFunction():
                own = dense(gradient.detach())
                self._arriving.setdefault(key, []).append(squared_norm(own))
                self.book.arrives_apart(key, self.shards.sketch(key, own))

    # Backward

    def module_called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module is called."""
        if self.idle:
            return call(*args, **kwargs)
        return self.losses.tape.call_module(module, call, args, kwargs)

    def checkpointed(self, function: Callable[..., Any], call: Callable[..., Any], args: Any) -> Any:
        """A function is run that is checkpointed, with ``args`` by ``call``."""
        return call(*args) if self.idle else self.losses.tape.call_checkpointed(function, call, args)

    def drawn(self, iterator: Any, is_first: bool) -> None:
        """A data loader gave a batch, the first of a pass over its data or another."""
        if self.idle:
            return
        self.batches.drawn(iterator, is_first)

    def ran_on_rank(self, model: DistributedDataParallel) -> None:
        """A model has run forward whose gradients may be averaged over the ranks."""
        if not self.idle and torch.is_grad_enabled():
            self.averaging.ran_forward(model)

    def scaled(self, scaler: Any, before: Any, after: Any) -> None:
        """A grad scaler multiplied a loss by its scale."""
        if self.idle or not isinstance(after, torch.Tensor) or after.grad_fn is None or before is after:
            return
        self.losses.scaled(scaler, before, after)

    def before_backward(self, losses: Any, weights: Any) -> None:
        """``backward`` is entered; ``weights`` is its gradient argument."""
        if self.idle:
            return
        self._depth += 1
        if self._depth > 1:
            # Reentrant checkpointing runs backwards inside a backward: what they give is part of the outer one's.
            return
        self._stepping = frozenset()
        self._choose_mode()
        where = user_location()
        self._notice_changes(where, thoroughly=False)
        self._notice_rates(where)
        tensors = [losses] if isinstance(losses, torch.Tensor) else list(losses)
        sent_back = self.losses.read(tensors, weights, self.batches.drawn_since)
        reading = sent_back.reading
        if where.through and where.place not in self.remarks:
            self.remarks[where.place] = remark(where, reading.terms)
        for node in reading.reductions[:1]:
            self._graphs.mark(node)
        part = self.book.part_of(kind_of(where, reading.terms, self.batches.current_pass), reading.scale)
        self._sent_back = sent_back, where, part
        self._arriving = {}

    def _choose_mode(self) -> None:
        """Where gradients are about to be made for the first time: choose what is compared, and what is held for it."""
        if self.mode is not None or not self.book.parameters:
            return
        self.mode = self._wanted.mode(list(self.book.parameters.values()), self.book.optimizers)
        if self.mode.sketches:
            self.book.begin_sketches()
        if self.measurer.replays and not self.mode.replays:
            self.measurer.replays = False
            self.losses.records = self._companion is not None

    def after_backward(self, failed: bool) -> None:
        """``backward`` has returned."""
        if self.idle:
            return
        self._depth -= 1
        if self._depth or self._sent_back is None or self._arriving is None:
            return
        sent_back, where, part = self._sent_back
        reading = sent_back.reading
        # Reentrant checkpointing may fill one parameter several times in one backward: no norm is larger than the sum.
        arrived = {
            key: own[0] if len(own) == 1 else torch.stack(own).sqrt().sum().square()
            for key, own in self._arriving.items()
        }
        self._arriving, self._sent_back = None, None
        cut_off = self._cut_off(sent_back) - self.book.stores(arrived)
        self.losses.next_segment()
        if not arrived:
            self.stray_backwards += not self.book.sharded
            self.losses.went_astray(reading)
            if not self.measured:
                self._look_for_own_steps(reading, where)
            return
        self.losses.next_micro_batch()
        squares = {key: own / reading.scale**2 if reading.scale != 1.0 else own for key, own in arrived.items()}
        averaged = self.averaging.of_backward(arrived)
        micro_batch = self.batches.backward(where, sent_back.program)
        event = Backward(
            where=where,
            micro_batch=micro_batch,
            stores=self.book.stores(arrived),
            terms=self._shared.terms(reading.terms),
            epoch=self.batches.current_pass,
            given=self.batches.given,
            batch=identity_of(sent_back.program),
            grad_scaled=reading.scale != 1.0,
            synced=averaged.synced if averaged is not None else None,
            ranks=averaged.ranks if averaged is not None else 1,
            kept_apart=averaged is not None and averaged.kept_apart,
            rescale=averaged.rescale if averaged is not None else 1.0,
            cut_off=cut_off,
        )
        self._add(event)
        self._reads_data = False
        self._clips.forget()
        self._weights.update((key, self.book.parameters[key]._version) for key in arrived)
        if averaged is not None and (averaged.kept_apart or (averaged.keys and averaged.ranks != 1)):
            # What the other ranks added is seen when the step is compared, and not here.
            self.book.look(averaged.keys)
            changed = AVERAGED_OTHERWISE if averaged.reworked else None
        else:
            changed = CHANGED_ON_ITS_WAY if self.book.arrived(arrived) else None
        record = Record(event, part, squares, sent_back.program, changed, call_chain())
        self._await_step(record, reading.scale)
        if record.changed:
            self._add(Opaque(where=where, stores=event.stores, reason=record.changed))
        if sent_back.unknown:
            self._add(Opaque(where=where, stores=event.stores, reason=Reason(sent_back.unknown)))
        if averaged is not None and averaged.synced is None:
            self._add(Opaque(where=where, stores=event.stores, reason=PARTLY_AVERAGED))
        if failed:
            self._add(Opaque(where=where, stores=event.stores, reason=RAISED))

    def _cut_off(self, sent_back: SentBack) -> frozenset[str]:
        """The stores of the networks that made data of a loss, of which its graph knows nothing."""
        if len(self.book.optimizers) < 2 or sent_back.program is None:
            return frozenset()
        with self.losses.tape.paused():
            modules = self.losses.tape.makers_of(data_of(sent_back.program))
        return self.book.stores(id(parameter) for module in modules for parameter in module.parameters())

    def _gradient_read(self, tensor: torch.Tensor) -> None:
        """The loop reads ``.grad`` of a tensor: of data, it is what the last backward was for."""
        if self.idle or self._reads_data or id(tensor) in self.book.parameters or isinstance(tensor, nn.Parameter):
            return
        if tensor.is_leaf and tensor.requires_grad:
            self._reads_data = True
            self._add(DataGradientRead(where=user_location()))

    def _look_for_own_steps(self, reading: LossReading, where: Location) -> None:
        """A backward has filled gradients of no optimizer, and none has stepped: who changes its weights is a step."""
        self.own_steps.filled(reading.reductions, where)
        found, tape = weakref.ref(self.own_steps), self.losses.tape

        def written(tensor: torch.Tensor) -> None:
            own = found()
            if own is None or not own.is_looking:
                tape.on_write = None
            else:
                own.written(tensor)

        if self.own_steps.is_looking:
            tape.on_write = written

    def _await_step(self, record: Record, scale: float) -> None:
        """What a backward gave is in ``.grad``, with a grad scaler's ``scale`` inside."""
        for optimizer in self.book.optimizers:
            own = [id(p) for p in parameters_of(optimizer) if id(p) in record.squares]
            if own:
                self._since.setdefault(id(optimizer), []).append(record)
            if id(optimizer) not in self._unscaled_optimizers:
                # After unscale_ nobody divides the scale of what still comes out any more.
                self.book.scale_inside.update(dict.fromkeys(own, scale))

    # Gradients that the loop puts into .grad itself

    def before_grad(self, outputs: Any, inputs: Any, weights: Any) -> bool:
        """``torch.autograd.grad`` is entered; whether its gradients are those of watched parameters."""
        if self.idle or self._depth or self._asked is not None:
            return False
        if not any(id(own) in self.book.parameters for own in _listed(inputs)):
            return False
        self._choose_mode()
        sent_back = self.losses.read(_listed(outputs), weights, self.batches.drawn_since)
        self._asked = sent_back, user_location()
        return True

    def after_grad(self, inputs: Any, gradients: Any, *, keeps_graph: bool) -> None:
        """``torch.autograd.grad`` has returned gradients, or raised where they are None."""
        asked, self._asked = self._asked, None
        if self.idle or asked is None or gradients is None:
            return
        sent_back, where = asked
        with self._own_work():
            known = [
                (own, gradient)
                for own, gradient in zip(_listed(inputs), gradients, strict=True)
                if id(own) in self.book.parameters and gradient is not None
            ]
            squares = {id(own): squared_norm(dense(g.detach())) / sent_back.reading.scale**2 for own, g in known}
            kept = {id(own): self.book.kept(id(own), gradient) for own, gradient in known}
        if sent_back.reading.scale != 1.0:
            kept = {key: own / sent_back.reading.scale for key, own in kept.items()}
        micro_batch = self.batches.backward(where, sent_back.program)
        self._handed.add(Handed(where, sent_back, micro_batch, self.batches.current_pass, kept, squares))
        if not keeps_graph:
            self.losses.next_segment()

    def _take_in_handed_out(self, where: Location, *, thoroughly: bool) -> bool:
        """Enter what the loop has put into ``.grad`` of the gradients that were handed out to it, if it has any."""
        changed = self.book.unexpected(self._handed.keys, thoroughly=thoroughly)
        if not changed:
            return False
        held = {key for key, (_, then) in changed.items() if then is not None and bool(then.any())}
        with self._own_work():
            added = {key: now if then is None else now - then for key, (now, then) in changed.items()}
            roundoff = max(unit_roundoff(self.book.parameters[key].dtype) for key in changed)
            taken = self._handed.take(added, roundoff)
            if not taken and held:
                taken = self._handed.take({key: now for key, (now, _) in changed.items()}, roundoff)
                if taken:
                    self._add(ZeroGrad(where=where, stores=self.book.stores(held)))
        used = next((factor for _, factor in taken if factor), 1.0)
        for position, (handed, factor) in enumerate(taken):
            if factor and position and not taken[position - 1][1]:
                # Those before it were thrown away, and would have been scaled as it is.
                self._add(ZeroGrad(where=where, stores=self.book.stores(handed.gradients)))
            self._enter_handed_out(handed, factor or used, where)
        self.book.look(changed if taken else ())
        return bool(taken)

    def _enter_handed_out(self, handed: Handed, factor: float, where: Location) -> None:
        """Enter one of them, which the loop has put in ``factor`` times."""
        reading, terms = handed.sent_back.reading, handed.sent_back.reading.terms
        program = handed.sent_back.program
        if not math.isclose(factor, 1.0, rel_tol=1e-6):
            program = None if program is None else program.times(factor)
            operation = Operation.DIVIDE if abs(factor) < 1 else Operation.MULTIPLY
            applied = Factor(factor, operation, where=where)
            terms = tuple(replace(term, factors=(*term.factors, applied)) for term in terms)
        stores = self.book.stores(handed.gradients)
        event = Backward(
            where=handed.where,
            micro_batch=handed.micro_batch,
            stores=stores,
            terms=terms,
            epoch=handed.epoch,
            grad_scaled=reading.scale != 1.0,
        )
        self._add(event)
        self._weights.update((key, self.book.parameters[key]._version) for key in handed.gradients)
        with self._own_work():
            squares = {key: square * factor**2 for key, square in handed.squares.items()}
            part = self.book.put_in(kind_of(handed.where, terms, handed.epoch), handed.gradients, factor)
        self._await_step(Record(event, part, squares, program), 1.0)
        if handed.sent_back.unknown:
            self._add(Opaque(where=handed.where, stores=stores, reason=Reason(handed.sent_back.unknown)))

    # Changes of .grad

    def _notice_changes(self, where: Location, *, thoroughly: bool = True) -> bool:
        """Emit what was done to ``.grad`` since the last look by other means than a watched call, if anything was."""
        taken_in = bool(self._handed) and self._take_in_handed_out(where, thoroughly=thoroughly)
        with self.losses.tape.paused():
            # What is multiplied to find out what was done to gradients is not done to them.
            events, changed = self.book.changes(where, thoroughly=thoroughly)
        for event in events:
            self._add(self._scalings.with_origins(event, changed))
        if thoroughly or changed:
            self._scalings.forget()
        # A clearing is one, whoever makes it: nothing that was clipped is left to compare.
        self._clips.changed(key for key in changed if not is_cleared(self.book.gradient(key)))
        return taken_in or bool(events)

    def before_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` is entered; what values are cleared does not matter."""
        if self.idle:
            return
        where = user_location()
        self._notice_changes(where, thoroughly=False)
        if any(p._version != self._weights.get(id(p), p._version) for p in parameters):
            # A step by hand, or the first of two that belong together (sharpness-aware minimisation).
            self._add(Opaque(where=where, stores=self.book.stores(id(p) for p in parameters), reason=USED_BY_HAND))

    def after_zero(self, parameters: list[torch.Tensor]) -> None:
        """``zero_grad`` has returned."""
        if self.idle:
            return
        whole, part = self.book.cleared({id(p) for p in parameters} & self.book.parameters.keys())
        where = user_location()
        if whole:
            self._add(ZeroGrad(where=where, stores=whole))
        if part:
            self._add(Opaque(where=where, stores=part, reason=PARTLY_CLEARED))

    def before_clip(self, parameters: Any) -> None:
        """A clip is entered: the gradient before it is what the large batch is compared with."""
        if self.idle:
            return
        self._notice_changes(user_location())
        self._clips.begin(id(p) for p in parameters)

    def after_clip(self, parameters: Any, kind: str, limit: float, norm_type: float, norm: Any = None) -> None:
        """A clip has returned, and ``norm`` is what it did."""
        if self.idle:
            return
        keys = {id(p) for p in parameters} & self.book.parameters.keys()
        self._add(Clip(where=user_location(), stores=self.book.stores(keys)))
        returned = norm.detach().clone() if type(norm) is torch.Tensor else None
        call = ClipCall(frozenset(keys), kind, limit, norm_type, whole_norm(norm), returned)
        self._clips.end(call)
        # Of a sketch no element can be cut off.
        unknown = self.book.sharded or (self.book.sketches and kind != "norm")
        change = None if unknown else change_by(call, norm)
        if change is None:
            self.book.look(keys)
        else:
            self.book.changed_by(keys, change)

    def before_unscale(self, optimizer: Optimizer) -> None:
        """A grad scaler is about to divide its scale out."""
        if not self.idle:
            self._notice_changes(user_location())

    def after_unscale(self, scaler: Any, optimizer: Optimizer) -> None:
        """A grad scaler has divided its scale out."""
        if self.idle:
            return
        keys = {id(p) for p in parameters_of(optimizer)} & self.book.parameters.keys()
        self._unscaled_optimizers.add(id(optimizer))
        self._add(Unscale(where=user_location(), stores=self.book.stores(keys)))
        self.book.unscaled(keys, self.losses.scale_of(scaler))

    def scaler_updated(self, scaler: Any) -> None:
        """A grad scaler has chosen its scale anew."""
        if self.idle or not scaler.is_enabled():
            return
        self._unscaled_optimizers.clear()
        self._add(ScalerUpdate(where=user_location()))

    def scheduler_stepped(self, scheduler: Any) -> None:
        """A learning rate scheduler has moved on."""
        if self.idle:
            return
        self._rates.scheduled()
        optimizer = getattr(scheduler, "optimizer", None)
        own = parameters_of(optimizer) if isinstance(optimizer, Optimizer) else ()
        self._add(
            SchedulerStep(
                where=user_location(),
                scheduler=f"{id(scheduler):x}",
                stores=self.book.stores(id(p) for p in own),
                horizon=_horizon(scheduler),
            )
        )

    def average_updated(self, average: Any, model: Any) -> None:
        """A moving average has taken in the weights of a model."""
        if not self.idle:
            own = model.parameters() if isinstance(model, torch.nn.Module) else ()
            stores = self.book.stores(id(p) for p in own)
            self._add(AverageUpdate(where=user_location(), average=f"{id(average):x}", stores=stores))

    def _blended(self, name: str, args: Any, kwargs: Any) -> None:
        """An operation that may take weights into an average is about to be called, by the script or by a package.

        What a package blends is its own average, which is told of where it is known.
        """
        for average, weight in () if self.idle else self._averages.seen(name, args, kwargs):
            where = user_location()
            if not where.through:
                self._add(AverageUpdate(where=where, average=average, stores=self.book.stores((id(weight),))))

    def _notice_rates(self, where: Location) -> None:
        """Emit that a learning rate was changed by hand since the last look, if one was."""
        for optimizer in self._rates.look(self.book.optimizers):
            name = self.book.names.get(id(optimizer), type(optimizer).__name__)
            stores = self.book.stores(id(p) for p in parameters_of(optimizer))
            self._add(SchedulerStep(where=where, scheduler=f"the rate of {name}", stores=stores, by_hand=True))

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
            self.measured.append(Measured(step, records, unmeasured=SKIPPED))
            self._let_go(records)
            self._unscaled_optimizers.discard(id(optimizer))

    def _step_event(self, optimizer: Optimizer, skipped: bool = False) -> Step:
        stores = self.book.stores(id(p) for p in parameters_of(optimizer))
        name = self.book.names.get(id(optimizer), type(optimizer).__name__)
        scaled = bool(self._scaler_step) or skipped
        window = self._since.get(id(optimizer), ())
        return Step(
            where=user_location(),
            optimizer=name,
            stores=stores,
            accumulation_steps=self.accumulation_steps,
            counted_by=bound_of_window(record.called_from for record in window),
            through_scaler=scaled,
            skipped=skipped,
        )

    def before_step(self, optimizer: Optimizer, with_closure: bool) -> None:
        """``optimizer.step`` is entered, the weights still those of the window's start."""
        if self.idle:
            return
        if with_closure:
            # What the step uses is complete when its closure has run.
            self._closure_calls[id(optimizer)] = 0
        else:
            self._begin_step(optimizer)

    def before_closure(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` calls its closure."""
        if self.idle or id(optimizer) not in self._closure_calls:
            return
        self._closure_calls[id(optimizer)] += 1
        if self._closure_calls[id(optimizer)] == 2 and self._pending is not None:
            # The optimizer looks at several gradients: none of them is the step's.
            self._take_back_step()

    def after_closure(self, optimizer: Optimizer) -> None:
        """The closure of ``optimizer.step`` has returned."""
        if not self.idle and self._closure_calls.get(id(optimizer)) == 1:
            self._begin_step(optimizer)

    def _begin_step(self, optimizer: Optimizer) -> None:
        self.optimizer_made(optimizer)
        where = user_location()
        if not self._notice_changes(where) and self._pending is not None:
            own = frozenset(id(p) for p in parameters_of(optimizer))
            if own < self._stepping:
                # An optimizer hands its parameters out, a part to each of others (or of the ranks): it has been
                # measured as a whole, with the gradients as they still are.
                self._inner.add(id(optimizer))
                self._since.pop(id(optimizer), None)
                return
            if own == self._stepping:
                # An optimizer wraps another: the step is the other's, and what is done after it none of ours.
                self._take_back_step()
        # A fused optimizer is called all the same, and leaves its weights as they are.
        skipped = bool(getattr(optimizer, "found_inf", False))
        step = self._step_event(optimizer, skipped)
        self._notice_rates(where)
        if self._scaler_step:
            self._scaler_step[-1] = True
        if not self._depth:
            # Inside a backward its own graph is still in use.
            self._add(GraphsHeld(where=where, count=self._graphs.count()))
        self._add(step)
        self.averaging.stepped()
        measured, shadow = Measured(step, self._since.pop(id(optimizer), [])), None
        # What is frozen by now may have got its gradient before (two networks that are frozen in turn).
        parameters = [
            p
            for p in parameters_of(optimizer)
            if p.requires_grad or any(id(p) in record.squares for record in measured.records)
        ]
        if parameters:
            measured.dtype, measured.device = parameters[0].dtype, parameters[0].device.type
        measured.unmeasured = SKIPPED if skipped else self._why_not(optimizer, measured, parameters)
        if not measured.unmeasured:
            with self._own_work(), thawed(parameters):
                shadow = self._measure(optimizer, measured, parameters)
        if self._companion is not None and not self._depth:
            with self._own_work():
                self._companion.before_step(self._at_step(optimizer, measured))
        with torch.no_grad():
            self._moved.keep(parameters, (r for records in self._since.values() for r in records))
        self._pending = measured, shadow
        self._stepping = frozenset(id(p) for p in parameters_of(optimizer))

    def _take_back_step(self) -> None:
        """The step that is pending was none."""
        if self._pending is not None:
            (measured, _), self._pending = self._pending, None
            # It is one of the last: a long run has very many.
            del self.events[next(i for i in range(len(self.events) - 1, -1, -1) if self.events[i] is measured.step)]

    def _why_not(self, optimizer: Optimizer, measured: Measured, parameters: list[torch.Tensor]) -> str:
        """Why a step can not be measured, or nothing."""
        if self._depth:
            return INSIDE_BACKWARD
        unfollowed = self.shards.why_not(parameters) if any(map(is_sharded, parameters)) else ""
        if unfollowed:
            return unfollowed
        if not measured.records or not parameters:
            return self._why_no_gradient(parameters)
        changed = next((record.changed for record in measured.records if record.changed), None)
        if changed is not None:
            return changed.words
        clips = self._clips.of(optimizer)
        if clips is not None and clips.changed_since:
            return CHANGED_AFTER_CLIP
        if clips is not None and any(is_sharded(p) for p in parameters):
            return NORM_UNKNOWN if any(call.kind == "norm" and call.norm is None for call in clips.calls) else ""
        return ""

    def _why_no_gradient(self, parameters: list[torch.Tensor]) -> str:
        """Why a step has no micro-batches."""
        if self._handed.keys & {id(p) for p in parameters}:
            return NOT_FOLLOWED
        return PUT_IN if any(p.grad is not None for p in parameters) else NO_GRADIENT

    def after_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        if self.idle:
            return
        called = self._closure_calls.pop(id(optimizer), 1)
        if id(optimizer) in self._inner:
            self._inner.discard(id(optimizer))
            return
        if called != 1:
            self._give_up_step(optimizer)
        if self._pending is None:
            return
        (measured, shadow), self._pending = self._pending, None
        self._clips.forget(optimizer)
        self._rates.stepped(self.book.optimizers)
        self._handed.forget({id(p) for p in parameters_of(optimizer)})
        self._unscaled_optimizers.discard(id(optimizer))
        self._forget_idle(optimizer)
        if shadow is not None:
            with self._own_work():
                measured.update = shadow.finish()
        if self.comparer.trajectory is not None:
            measured.drift = self.comparer.trajectory.drift(optimizer)
        self._let_go(measured.records)
        self.measured.append(measured)
        if self._companion is not None and not self._depth:
            with self._own_work():
                self._companion.after_step(optimizer)
        if self.on_step is not None:
            self.on_step(len(self.measured))
        if self.max_windows is not None and len(self.measured) >= self.max_windows:
            raise SeenEnough

    def _let_go(self, records: Iterable[Record]) -> None:
        """Keep no more than the numbers of a window that is over, unless another optimizer has yet to step on it."""
        awaited = {id(record) for own in self._since.values() for record in own}
        for record in records:
            if id(record) not in awaited:
                if record.part is not None:
                    record.part.is_over = all(r.part is not record.part for own in self._since.values() for r in own)
                record.part, record.program, record.squares, record.called_from = None, None, {}, ()
        self.measurer.forget(awaited)
        if not awaited:
            self._moved.forget()

    def _forget_idle(self, optimizer: Optimizer) -> None:
        """Wait no longer for an optimizer that another has stepped for: one that wraps it, say, and never steps."""
        own = {id(p) for p in parameters_of(optimizer)}
        for key in own:
            self._weights.pop(key, None)
        self._stepped[id(optimizer)] += 1
        if self._stepped[id(optimizer)] < _WAITED_FOR:
            return
        for other in self.book.optimizers:
            if not self._stepped[id(other)] and all(id(p) in own for p in parameters_of(other)):
                self._since.pop(id(other), None)

    def _give_up_step(self, optimizer: Optimizer) -> None:
        """A step whose closure was called several times, or never, has been made."""
        step = self._step_event(optimizer)
        self._add(Opaque(where=step.where, stores=step.stores, reason=Reason(WITH_CLOSURE)))
        self._add(step)
        self._pending = Measured(step, self._since.pop(id(optimizer), []), unmeasured=WITH_CLOSURE), None

    def _measure(self, optimizer: Optimizer, measured: Measured, parameters: list[torch.Tensor]) -> ShadowStep | None:
        before, used = self._gradients(optimizer, through_scaler=measured.step.through_scaler)
        clips = self._clips.of(optimizer)
        if clips is not None:
            measured.clips = clips.calls
        ledger = fold(Trace(tuple(self.events[-self._recent() :]), precision=self.losses.precision))
        return self.comparer.compare(optimizer, measured, parameters, before, used, ledger)

    def _gradients(self, optimizer: Optimizer, *, through_scaler: bool) -> tuple[_Gradients, _Gradients]:
        """An optimizer's gradients as they were before any clip, and as they are."""
        used = self.book.held(optimizer)
        clips = self._clips.of(optimizer)
        before = used if clips is None else clips.before
        if through_scaler:
            return before, used
        # Nobody will divide the scale out any more: it is part of what the optimizer gets.
        scales = {key: self.book.scale_inside.get(key, 1.0) for key in used}
        return _multiplied(before, scales), _multiplied(used, scales)

    def _at_step(self, optimizer: Optimizer, measured: Measured) -> AtStep:
        before, used = self._gradients(optimizer, through_scaler=measured.step.through_scaler)
        clips, where = self._clips.of(optimizer), measured.step.where
        known = clips is None or not clips.changed_since
        now = tensors_of(used)
        return AtStep(
            optimizer,
            measured.step.optimizer,
            measured.records,
            now,
            None if not known else now if clips is None else tensors_of(before),
            where.path,
            where.line,
            parameters_of(optimizer),
            window=len(self.measured),
        )

    def left_over(self) -> dict[str, list[Record]]:
        """The backwards that no step has followed so far, by the name of the optimizer that would have made it."""
        named = {id(o): self.book.names[id(o)] for o in self.book.optimizers}
        return {named[key]: records for key, records in self._since.items() if key in named and records}

    def _recent(self, windows: int = 8) -> int:
        """How many of the last events tell how this loop scales: those of the last few windows."""
        steps = 0
        for position, event in enumerate(reversed(self.events), 1):
            steps += isinstance(event, Step)
            if steps > windows:
                return position - 1
        return len(self.events)

    # Bookkeeping

    def _add(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, _TOUCHING):
            self.book.close_part()

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """While it is entered, what happens is ours and not the loop's."""
        self._busy += 1
        self._worker = threading.get_ident()
        try:
            with self.losses.tape.paused(), without_modes():
                yield
        finally:
            self._busy -= 1


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _ignore(*told: object) -> None:
    """What becomes of what nobody watches any more."""


def _horizon(scheduler: Any) -> int | None:
    """How many moves a scheduler was made for, where it says: those of Transformers bind it to their lambdas.

    timm's say how many updates, or how many epochs.
    """
    said = [getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")]
    said += [getattr(scheduler, "t_initial", None)] if not getattr(scheduler, "t_in_epochs", False) else []
    bound = (getattr(function, "keywords", {}) for function in getattr(scheduler, "lr_lambdas", ()))
    said += [keywords.get(NAME_OF_LENGTH) for keywords in bound]
    return next((h for h in said if isinstance(h, int) and not isinstance(h, bool)), None)


def _optimizers_alive() -> list[Optimizer]:
    # The type is asked, not the object: some objects answer isinstance with a warning of their own.
    kinds = set(with_subclasses(Optimizer))
    objects = gc.get_objects()
    if kinds.isdisjoint(map(type, objects)):
        return []
    return [candidate for candidate in objects if type(candidate) in kinds]


def _multiplied(gradients: _Gradients, factors: dict[int, float]) -> _Gradients:
    return {key: None if own is None else own.times(factors.get(key, 1.0)) for key, own in gradients.items()}

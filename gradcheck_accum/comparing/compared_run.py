"""One of the runs that are compared, in its own process: at each step it waits for an order and measures what it asks.

Between two steps the run is independent. At a step it reports what the step consists of, and waits; nothing of that is
kept after the next step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.comparing.distances import Distances
from gradcheck_accum.comparing.dropout import spread_of, without_dropout
from gradcheck_accum.comparing.fingerprints import fingerprint, rows_seen
from gradcheck_accum.comparing.messages import Arrival, GradientDistance, Numbers, Order, Over, receive, send
from gradcheck_accum.comparing.numbers_read import NumbersRead
from gradcheck_accum.comparing.rows import Rows
from gradcheck_accum.comparing.state import Gradient, State, generators, kept_by, seed_generators
from gradcheck_accum.comparing.updates import Updates, settings_of
from gradcheck_accum.engine.independence import Prover
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.engine.tolerance import CLIP_ROUNDINGS, Addends, replay_tolerance, unit_roundoff
from gradcheck_accum.portable import NotPortable
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.measure.measurer import coupled_modules
from gradcheck_accum.verify.measure.worst_parameters import Worst, by_parameter, names_of
from gradcheck_accum.verify.vectors.inner_products import dense, norm_of
from gradcheck_accum.verify.watching.companion import AtStep
from gradcheck_accum.verify.watching.steps import SeenEnough

_SEED = 0
_Place = tuple[str, int]

_SHARDED = "compare does not support weights that are sharded over the ranks: use verify"
_COUNTS = "a loss that indexes the rows of its own batch"


class Side:
    """The companion of run ``number`` of those that are led from ``address``; as in `Seat`."""

    def __init__(
        self,
        address: str,
        number: int,
        *,
        no_dropout: bool = False,
        tolerance: tuple[float, float] | None = None,
        is_free: bool = False,
        rank: int = 0,
    ) -> None:
        self._address = address
        self._number = number
        self._rank = rank
        self._no_dropout = no_dropout
        self._tolerance = tolerance
        self._is_free = is_free
        self._process = os.getpid()
        self._reads = NumbersRead()
        self._pending: tuple[AtStep, Arrival] | None = None
        self._computed_in = torch.float32
        self._starts: dict[str, list[torch.Tensor]] = {}
        self._parameter_names: dict[str, list[str]] = {}
        self._worst = {"used": Worst(), "before a clip": Worst()}
        self._spread: float | None = None
        self._is_alone = False
        self._coupled: dict[_Place, bool] = {}
        self._asked_of: dict[_Place, list[Program]] = {}
        self._steps = 0
        self._names: dict[str, str] = {}
        self._updates = Updates()
        self._while_stepping = ExitStack()

    @contextmanager
    def along(self, tape: Tape) -> Iterator[None]:
        """The run is led from the address, and starts with the same random numbers as the others."""
        tape.on_call = self._reads.called
        self._tape = tape
        with self._while_stepping, ExitStack() as stack:
            if self._no_dropout:
                stack.enter_context(without_dropout())
            self._leader: Connection = stack.enter_context(Client(self._address, family="AF_UNIX"))
            send(self._leader, [self._number, self._rank])
            seed_generators(_SEED)
            yield

    def before_step(self, step: AtStep) -> None:
        """Note what the step consists of, while the weights are those that its gradient was computed with."""
        # The step before may have raised an error that the script has handled.
        self._while_stepping.close()
        if any(map(is_sharded, step.parameters)):
            raise NotPortable(_SHARDED)
        with torch._C.DisableTorchFunction():
            arrival = self._arrival(step)
        self._spread = spread_of(step) if arrival.random and not self._is_alone else None
        self._asked_of = self._unasked(step.records)
        self._updates.before_step(step.optimizer, arrival.optimizer)
        self._pending = step, arrival
        if not step.has_closure:
            # What the optimizer computes is part of no loss, and would be most of the overhead of the tape.
            self._while_stepping.enter_context(self._tape.paused())

    def _arrival(self, step: AtStep) -> Arrival:
        records, name = step.records, self._named(step.name)
        programs = [record.program for record in records]
        self._computed_in = _coarsest(records, step.parameters)
        is_idle = not records and all(gradient is None for gradient in step.used.values())
        is_first = name not in self._parameter_names and not is_idle
        if is_first:
            if self._is_free:
                self._starts[name] = [p.detach().clone() for p in step.parameters]
            self._updates.first(step.parameters)
            self._parameter_names[name] = names_of(step.parameters, records, step.optimizer)
        rows = _rows_of(step)
        return Arrival(
            self._steps,
            name,
            step.path,
            step.line,
            len({record.event.micro_batch for record in records}),
            rows,
            tuple(float(group["lr"]) for group in step.optimizer.param_groups if "lr" in group),
            self._reads.take(),
            fingerprint(step.parameters) if is_first else b"",
            tuple(tuple(p.shape) for p in step.parameters) if is_first else (),
            any(program is not None and program.random for program in programs),
            (*coupled_modules(programs), *([_COUNTS] if rows is not None and rows.counting else [])),
            self._allowed(step, [1.0] * max(len(records), 1), 1.0),
            step.window,
            _place_of_backward(records),
            tuple(dict.fromkeys(record.event.epoch for record in records if record.event.epoch is not None)),
            is_idle,
            settings_of(step.optimizer),
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """The step has been made: follow the leader's order, and go on."""
        self._while_stepping.close()
        if self._pending is None or self._pending[0].optimizer is not optimizer:
            return
        (step, arrival), self._pending = self._pending, None
        self._steps += not arrival.is_idle
        self._reads.window = self._steps
        try:
            self._led(step, arrival)
        except (EOFError, OSError):
            # There is no leader any more, so no report would be read.
            raise SeenEnough from None
        finally:
            self._asked_of = {}

    def _led(self, step: AtStep, arrival: Arrival) -> None:
        """Report the step, and follow an order; raises EOFError and OSError if there is no leader any more."""
        send(self._leader, arrival)
        if self._is_alone:
            return
        order, path = receive(self._leader)
        if order is Order.STOP:
            raise SeenEnough
        if order is Order.ALONE:
            self._is_alone = True
            self._updates.let_go()
        if order.is_answered:
            with torch._C.DisableTorchFunction():
                answer = self._obey(order, Path(path), step)
            send(self._leader, answer)

    def over(self, left: Mapping[str, Sequence[Record]]) -> None:
        """The run has ended."""
        if os.getpid() != self._process:
            return
        rows = {self._named(name): rows_seen(records) for name, records in left.items()}
        try:
            send(self._leader, Over(rows, self._reads.take()))
        except OSError:
            return

    def _named(self, name: str) -> str:
        """What an optimizer is called in every run: by its class, and by when it steps first among those of its class.

        A process may hold others that never step, and the run's own numbers count these too.
        """
        kind = name.partition(" #")[0]
        before = sum(own.partition(" #")[0] == kind for own in self._names.values())
        return self._names.setdefault(name, f"{kind} #{before + 1}" if before else kind)

    def _obey(self, order: Order, path: Path, step: AtStep) -> Numbers | None:
        optimizer = step.optimizer
        own = path.with_name(f"{path.name}-{self._rank}")
        if order is Order.PUBLISH:
            self._updates.let_go()
            self._state(step).write(own)
            return None
        # Where the reference has fewer ranks, its first has all that they have in common.
        is_of_this_rank = own.exists()
        try:
            theirs = State.read(own if is_of_this_rank else path.with_name(f"{path.name}-0"))
        except (OSError, NotPortable):
            # The run that was to write it has failed, and says why.
            raise SeenEnough from None
        numbers = None if order is Order.SETTLE else self._compared(step, theirs)
        if order is not Order.COMPARE:
            theirs.settle(optimizer, draws=is_of_this_rank)
            self._updates.settled(parameters_of(optimizer), theirs.weights)
        return numbers

    def _state(self, step: AtStep) -> State:
        optimizer = step.optimizer
        weights = [p.detach() for p in parameters_of(optimizer)]
        return State(
            _listed(step, step.used),
            None if step.before_clip is None or step.before_clip is step.used else _listed(step, step.before_clip),
            step.before_clip is step.used,
            weights,
            [] if self._is_free else kept_by(optimizer),
            generators(),
            norm_of(torch._foreach_sub(weights, self._starts[self._named(step.name)])) if self._is_free else None,
            self._spread,
        )

    def _compared(self, step: AtStep, theirs: State) -> Numbers:
        mine = _listed(step, step.used)
        before, carried = None, 0.0
        unclipped = theirs.used if theirs.is_unclipped else theirs.before_clip
        if step.before_clip is not None and unclipped is not None and step.before_clip is not step.used:
            before = self._distance(step, _listed(step, step.before_clip), unclipped, "before a clip")
            if step.clips_elements and self._tolerance is None:
                # After such a clip two gradients are no further apart than before it, but smaller.
                carried = (before.error or 0.0) * norm_of([g for g in unclipped if g is not None])
        used = self._distance(step, mine, theirs.used, "used", carried)
        is_apart = any(one.error is not None and one.error > one.allowed for one in (used, before) if one is not None)
        name = self._named(step.name)
        moved = self._updates.compared(step, mine, theirs, name=name, allowed=used.allowed)
        if self._is_free:
            self._updates.let_go()
        is_coupled = is_apart and self._is_coupled(step)
        return Numbers(used, before, self._drift(step, theirs), theirs.spread, is_coupled, moved)

    def _unasked(self, records: Sequence[Record]) -> dict[_Place, list[Program]]:
        """For each place whose losses have not been tested, one program to test, and another to recognize its data."""
        found: dict[_Place, list[Program]] = {}
        for record in records:
            where, program = record.event.where.place, record.program
            if program is not None and not program.random and where not in self._coupled:
                found.setdefault(where, []).append(program)
        return {where: programs[:2] for where, programs in found.items()}

    def _is_coupled(self, step: AtStep) -> bool:
        """Whether the samples of a step's losses are known to influence each other."""
        wanted = [p for p in step.parameters if p.requires_grad]
        for where, programs in self._asked_of.items():
            prover = Prover.of(ReferenceEngine(), wanted, self._computed_in)
            self._coupled[where] = bool(prover.prove(programs[0], programs).coupled)
        return any(self._coupled.get(record.event.where.place) for record in step.records)

    def _drift(self, step: AtStep, theirs: State) -> float | None:
        """The distance of the weights from the reference's, relative to how far these have moved.

        None in lockstep, where they are the reference's again at every step.
        """
        if not theirs.moved:
            return None
        weights = [p.detach() for p in parameters_of(step.optimizer)]
        return norm_of(torch._foreach_sub(weights, theirs.weights)) / theirs.moved

    def _allowed(self, step: AtStep, contributions: Sequence[float], total: float) -> float:
        """The tolerance for two ways of computing ``total`` from ``contributions``, in the precision of this step."""
        dtype = step.parameters[0].dtype if step.parameters else torch.float32
        return replay_tolerance(Addends(contributions, total), dtype, self._computed_in)

    def _distance(
        self, step: AtStep, mine: Gradient, theirs: Gradient, kind: str, carried: float = 0.0
    ) -> GradientDistance:
        """The distance of a gradient from the reference's, and the tolerance for rounding.

        ``carried`` is the distance (absolute) that may be left of the one before a clip.
        """
        between = Distances.between(mine, theirs)
        size, wrong = math.hypot(*between.theirs), math.hypot(*between.apart)
        if not size:
            return GradientDistance(0.0 if not wrong else None, 0.0, None)
        parts = [
            math.sqrt(float(sum(record.squares.values(), torch.zeros(())))) for record in step.records if record.squares
        ]
        clips = CLIP_ROUNDINGS * unit_roundoff(step.parameters[0].dtype)
        allowed = max(self._allowed(step, parts or [size], size) + clips, carried / size)
        if self._tolerance is not None:
            rtol, atol = self._tolerance
            allowed = rtol + atol / size
        error, parts_of_it = wrong / size, None
        if error > allowed and self._worst[kind].takes(step.name, error):
            names = self._parameter_names[self._named(step.name)]
            parts_of_it = by_parameter(between.apart, between.theirs, step.parameters, names)
        return GradientDistance(error, allowed, math.hypot(*between.mine) / size, parts_of_it)


def _rows_of(step: AtStep) -> Rows | None:
    """The rows of data in a step; None where they are not known.

    A step without backwards has none, if its gradients are empty too.
    """
    if step.records:
        return rows_seen(step.records)
    return None if any(bool(g.any()) for g in step.used.values() if g is not None) else Rows()


def _place_of_backward(records: Sequence[Record]) -> tuple[str, int]:
    """Where the last of several backwards is."""
    if not records:
        return "", 0
    where = records[-1].event.where
    return where.path, where.line


def _coarsest(records: Sequence[Record], parameters: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype with the most rounding that anything of a step was computed in."""
    programs = [record.program for record in records if record.program is not None]
    dtypes = [p.dtype for p in parameters] + [p.coarsest for p in programs if p.coarsest is not None]
    return max(dtypes, key=unit_roundoff, default=torch.float32)


def _listed(step: AtStep, gradients: Mapping[int, torch.Tensor | None]) -> Gradient:
    found = (gradients.get(id(parameter)) for parameter in step.parameters)
    return [None if gradient is None else dense(gradient).detach() for gradient in found]

"""Which backwards average their gradients over the ranks, and what the averages cost that were not needed.

DistributedDataParallel decides in forward whether the next backward averages. The averages run while the rest of
backward is still computed; what they cost is the time that backward takes after the last gradient has been computed.
FSDP2 decides in backward itself, and averages in the midst of it (`gradcheck_accum.verify.vectors.sharded`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.nn.parallel import DistributedDataParallel

from gradcheck_accum.ledger.events import Reason
from gradcheck_accum.verify.vectors.sharded import Shards

_PLAIN_AVERAGE = ("torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "allreduce_hook")
"""PyTorch's own communication hook that averages as DistributedDataParallel does without one."""

AVERAGED_OTHERWISE = Reason(
    "a DistributedDataParallel communication hook does not average the gradients (register_comm_hook)"
)


@dataclass(slots=True)
class Needless:
    """Averages over the ranks that a later one of the same step made unnecessary.

    ``bytes`` is the size of the gradients, ``seconds`` how long backward waited, None where a GPU does the waiting.
    """

    averages: int = 0
    of: int = 0
    bytes: int = 0
    seconds: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Averaged:
    """What a backward did for the ranks: the parameters that hold averages, their divisor, and by whom they changed.

    ``synced`` is None where some of the models averaged and others did not. ``reworked`` means that a communication
    hook does something else to the gradients than averaging them, ``kept_apart`` that what is not averaged is kept
    outside ``.grad``. ``rescale`` is what the average is multiplied by.
    """

    synced: bool | None
    ranks: int | None
    keys: frozenset[int]
    reworked: bool = False
    kept_apart: bool = False
    rescale: float = 1.0


@dataclass(slots=True)
class Averaging:
    """The wrapped models of a run, and which of them will average their gradients in the next backward."""

    shards: Shards
    needless: Needless = field(default_factory=Needless)
    _models: dict[int, weakref.ref[DistributedDataParallel]] = field(default_factory=dict)
    _keys: dict[int, frozenset[int]] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _expecting: set[int] = field(default_factory=set)
    _last_gradient: float = 0.0
    _last_average: tuple[int, float | None] | None = None

    def ran_forward(self, model: DistributedDataParallel) -> None:
        """A wrapped model ran forward, where gradients are recorded."""
        key = id(model)
        known = self._models.get(key)
        if known is None or known() is not model:
            own = [p for p in model.parameters() if p.requires_grad]
            self._models[key] = weakref.ref(model)
            self._keys[key] = frozenset(id(p) for p in own)
            self._bytes[key] = sum(p.nbytes for p in own)
            self._expecting.discard(key)
        if model.require_backward_grad_sync:
            self._expecting.add(key)

    def gradient_arrived(self) -> None:
        """A gradient of this rank's own has been computed."""
        if self._models:
            self._last_gradient = time.perf_counter()

    def of_backward(self, arrived: Iterable[int]) -> Averaged | None:
        """What the backward that has just run did, by the parameters that it reached; None where nothing averages."""
        reached = set(arrived)
        reduced = self.shards.of_backward(reached)
        if reduced is not None:
            if reduced.size:
                self._note_cost(reduced.size, reduced.waited)
            return Averaged(reduced.synced, reduced.ranks, reduced.keys, kept_apart=True, rescale=reduced.rescale)
        models = {k: m for k, ref in self._models.items() if (m := ref()) is not None and reached & self._keys[k]}
        if not models:
            return None
        synced = {k for k in models if k in self._expecting}
        self._expecting -= synced
        on_cpu = all(models[k].device_type == "cpu" for k in synced)
        waited = time.perf_counter() - self._last_gradient if on_cpu else None
        self._note_cost(sum(self._bytes[k] for k in synced), waited)
        ranks = {_divisor(model) for model in models.values()}
        return Averaged(
            None if 0 < len(synced) < len(models) else bool(synced),
            ranks.pop() if len(ranks) == 1 else None,
            frozenset().union(*(self._keys[k] for k in synced)),
            any(map(_reworks, models.values())),
        )

    def _note_cost(self, averaged: int, waited: float | None) -> None:
        if self._last_average is not None:
            size, seconds = self._last_average
            self.needless.averages += 1
            self.needless.bytes += size
            known = self.needless.seconds
            self.needless.seconds = None if seconds is None or known is None else known + seconds
        self._last_average = None
        if averaged:
            self.needless.of += 1
            self._last_average = averaged, waited

    def stepped(self) -> None:
        """An optimizer has used the gradients: the last average was needed."""
        self._last_average = None


def _divisor(model: DistributedDataParallel) -> int | None:
    ranks: int = torch.distributed.get_world_size(model.process_group)
    joins = model._join_config.enable and not model._divide_by_initial_world_size
    return None if joins else ranks


def _reworks(model: DistributedDataParallel) -> bool:
    """Whether a communication hook makes anything but the plain average of a model's gradients."""
    hooks = getattr(model, "_comm_hooks", ())
    named = ((getattr(hook, "__module__", ""), getattr(hook, "__qualname__", "")) for hook, _ in hooks)
    return any(name != _PLAIN_AVERAGE for name in named)

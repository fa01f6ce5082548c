"""A reference runs on one rank alone: nothing in it may wait for the other ranks of distributed training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class NotAlone(Exception):
    """Something was about to be sent to another rank, or received from one."""


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES:
            raise NotAlone("the model exchanges data between ranks in its own forward or backward")
        return func(*args, **(kwargs or {}))


@contextmanager
def alone() -> Iterator[None]:
    """Inside the block, wrapped models run on this rank alone, and a collective raises NotAlone instead of running.

    The forward of DistributedDataParallel prepares the averaging in backward, and that of DeepSpeed's engine its own
    ``backward()``: ours must not trigger either.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        yield
        return
    deepspeed = getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", None)
    wrappers: list[Any] = [DistributedDataParallel, *([deepspeed] if deepspeed is not None else [])]
    originals = [wrapper.forward for wrapper in wrappers]
    for wrapper in wrappers:
        wrapper.forward = _forward_alone
    try:
        with _Alone():  # type: ignore[no-untyped-call]
            yield
    finally:
        for wrapper, original in zip(wrappers, originals, strict=True):
            wrapper.forward = original


def _forward_alone(model: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(model, DistributedDataParallel) and model.device_ids:
        # DistributedDataParallel moves its inputs to its own device.
        device = torch.device(model.device_type, model.device_ids[0])
        args = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in args)
        kwargs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in kwargs.items()}
    return model.module(*args, **kwargs)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether each rank holds only a shard of a parameter, which a module gathers when it is called."""
    return hasattr(parameter, "placements") or is_flattened(parameter)


def is_flattened(parameter: torch.Tensor) -> bool:
    """Whether ``FullyShardedDataParallel`` manages a parameter, or it is one that it has flattened others into."""
    return bool(getattr(parameter, "_fsdp_flattened", False))

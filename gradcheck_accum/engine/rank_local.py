"""A reference is one rank's own: nothing that it runs may wait for the other ranks of distributed training."""

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
    """Something was about to be sent to another rank, or awaited from one."""


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES:
            raise NotAlone("the model exchanges data between ranks in its own forward or backward")
        return func(*args, **(kwargs or {}))


@contextmanager
def alone() -> Iterator[None]:
    """While it is entered, wrapped models run on this rank alone, and a collective raises NotAlone before it begins.

    DistributedDataParallel prepares in forward for the backward that will average, and DeepSpeed's engine for its own
    ``backward()``: they must not be told of ours.
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
        # It moves its inputs to its own device.
        device = torch.device(model.device_type, model.device_ids[0])
        args = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in args)
        kwargs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in kwargs.items()}
    return model.module(*args, **kwargs)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether each rank holds only its part of a parameter, and a module gathers it when it is called.

    Either as a DTensor (``fully_shard``), or flattened together with others (``FullyShardedDataParallel``).
    """
    return hasattr(parameter, "placements") or is_flattened(parameter)


def is_flattened(parameter: torch.Tensor) -> bool:
    """Whether ``FullyShardedDataParallel`` keeps a parameter, or is it that keeps several as one."""
    return bool(getattr(parameter, "_fsdp_flattened", False))

"""A reference is one rank's own: nothing that it runs may wait for the other ranks of distributed training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
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


def alone() -> AbstractContextManager[object]:
    """While it is entered, every collective raises NotAlone, before it has begun."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return nullcontext()
    return nullcontext() if torch.distributed.get_world_size() == 1 else _Alone()  # type: ignore[no-untyped-call]


def is_sharded(module: nn.Module) -> bool:
    """Whether a module gathers its weights from all ranks when it is called."""
    return any(hasattr(parameter, "placements") for parameter in module.parameters())


def own_model(module: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, which averages nothing over the ranks; any other as it is."""
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return inner if isinstance(inner, nn.Module) else module

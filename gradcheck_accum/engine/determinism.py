"""The numerical settings that a reference runs under, and the state that it must leave as it found it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def reference_settings() -> Iterator[None]:
    """Deterministic kernels, TF32 off; every setting is put back afterwards."""
    # use_deterministic_algorithms would import the compiler's configuration and change it too, at 20 ms a call.
    deterministic = torch.get_deterministic_debug_mode()
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    benchmark = torch.backends.cudnn.benchmark
    # Operations without a deterministic kernel are still better compared than not.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def untouched(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Random generators and the buffers of ``modules`` are as they were when the block is left."""
    cpu = torch.get_rng_state()
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    buffers = {id(b): (b, b.detach().clone()) for module in modules for b in module.buffers()}
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        with torch.no_grad():
            for buffer, saved in buffers.values():
                buffer.copy_(saved)

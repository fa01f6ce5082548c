"""The numerical settings that a reference runs under, and the state that it must restore."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.kept import Kept, kept_for_hooks

_PRODUCTS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    *(
        getattr(backend, name)
        for backend in (torch.backends.cudnn, torch.backends.mkldnn)
        for name in ("conv", "rnn", "matmul")
        if hasattr(backend, name)
    ),
)
_WHOLE = ("ieee", "none")
"""The settings under which float32 keeps full precision."""


@contextmanager
def reference_settings() -> Iterator[None]:
    """Deterministic kernels, TF32 off; every setting is restored afterwards."""
    # use_deterministic_algorithms would import the compiler's configuration and change it too, at 20 ms a call.
    deterministic = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    # A nondeterministic operation is still better compared than not.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.benchmark = False
    try:
        with _all_digits():
            yield
    finally:
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def _all_digits() -> Iterator[None]:
    """Inside the block, float32 products and convolutions use full precision.

    PyTorch 2.9 and later have two interfaces to these settings. Reading one raises an error if the script or a compiled
    model has used the other, so settings are changed through the one that the script uses.
    """
    newer = [part for part in _PRODUCTS if hasattr(part, "fp32_precision")]
    before = [part.fp32_precision for part in newer]
    try:
        with without_warnings():
            products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        reduced = [(part, was) for part, was in zip(newer, before, strict=True) if was not in _WHOLE]
        for part, _ in reduced:
            part.fp32_precision = "ieee"
        try:
            yield
        finally:
            for part, was in reduced:
                part.fp32_precision = was
        return
    with without_warnings():
        _set(products="highest", convolutions=False)
    try:
        yield
    finally:
        with without_warnings():
            _set(products, convolutions)
            # A script may have set only one kind of product.
            for part, was in zip(newer, before, strict=True):
                if part.fp32_precision != was:
                    part.fp32_precision = was


def _set(products: str, convolutions: bool) -> None:
    if torch.get_float32_matmul_precision() != products:
        torch.set_float32_matmul_precision(products)
    if torch.backends.cudnn.allow_tf32 != convolutions:
        torch.backends.cudnn.allow_tf32 = convolutions


def loses_digits(node: str) -> bool:
    """Whether TF32 rounds what a graph node of this name computes in float32 on a GPU."""
    if node.startswith(("Convolution", "CudnnConvolution")):
        part: Any = torch.backends.cudnn.conv if hasattr(torch.backends.cudnn, "conv") else None
    elif node.startswith("CudnnRnn"):
        part = torch.backends.cudnn.rnn if hasattr(torch.backends.cudnn, "rnn") else None
    else:
        part = torch.backends.cuda.matmul
    if hasattr(part, "fp32_precision"):
        return part.fp32_precision not in _WHOLE
    return bool((part or torch.backends.cudnn).allow_tf32)


@contextmanager
def untouched(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restores the random generators, Python's and numpy's too, and the state of ``modules`` when the block is left.

    The state consists of buffers and attributes, including tensors, lists, dictionaries and sets, and of what the
    modules' hooks can reach.
    """
    cpu = torch.get_rng_state()
    python = random.getstate()
    numpy = sys.modules.get("numpy.random")
    of_numpy = None if numpy is None else numpy.get_state()
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    every = {id(module): module for top in modules for module in top.modules()}
    kept = [*(Kept(vars(module)) for module in every.values()), *kept_for_hooks(every.values())]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(python)
        if numpy is not None and of_numpy is not None:
            numpy.set_state(of_numpy)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        with torch.no_grad():
            for one in kept:
                one.restore()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Inside the block, no warnings are shown: the loop has shown them itself, or they concern no batch of its own.

    The filters are left alone: changing them resets which warnings have been shown.
    """
    show = warnings.showwarning
    warnings.showwarning = lambda *_, **__: None
    try:
        yield
    finally:
        warnings.showwarning = show


@contextmanager
def without_hooks(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside the block, no hook on these parameters runs: hooks are meant for the loop's own gradients."""
    kept = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in kept:
            hooks.update(own)


@contextmanager
def thawed(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside the block, all ``parameters`` require a gradient, including those that are frozen."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def holding(values: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Inside the block, each tensor holds the values paired with it; version counters do not change."""
    held = []
    try:
        for tensor, data in values:
            held.append((tensor, tensor.data))
            tensor.data = data
        yield
    finally:
        for tensor, data in held:
            tensor.data = data

"""What a script did, as hooks of the tests' own saw it, and what it should have done, in float64: nothing of verify's.

What a step got is read from ``.grad``; what it should have got is computed from the weights at the step's entry and the
data that the loader gave, as one large batch.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import multiprocessing
import os
import runpy
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import observe

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "frameworks"
STEPS = 4
RUNS_ON = {"ignite_engine", "deepspeed_engine"}
"""Their windows run on over the end of a pass."""

APART = {"deepspeed_engine"}
"""They change PyTorch for the whole process, and are run in one of their own."""


def not_installed(package: str) -> str:
    """Why a framework's scripts can not be run here, or nothing. It is not imported: that is left to the script."""
    needed = [package, "torchvision"] if package == "timm" else [package]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)}: not installed" if missing else ""


@dataclass(frozen=True)
class Measurement:
    """What verify says of a run, and the flat gradients of its steps: as they should be, and as they were."""

    result: VerifyResult
    truth: list[torch.Tensor]
    seen: list[torch.Tensor]


def measure(name: str, path: Path, condition: str, *, with_truth: bool) -> Measurement:
    """Run a script, or a twin of it, under observation; a twin's truth may be another, and is then not asked for."""
    if name not in APART:
        return _measure(name, path, condition, with_truth)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, name, path, condition, with_truth).result()


def _measure(name: str, path: Path, condition: str, with_truth: bool) -> Measurement:
    arguments = ["equal", "clip"] if condition == "clip" else [condition]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}))
        stack.enter_context(mock.patch.object(sys, "argv", [str(path), *arguments]))
        stack.enter_context(mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        ground = stack.enter_context(on_the_ground())
        observation = stack.enter_context(observe(script=str(path)))
        left = runpy.run_path(str(path), run_name="__main__")
    if not with_truth:
        return Measurement(observation.result(), [], [])
    with mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]):
        truth = true_gradients(name, left["model"], ground, windows(name, condition))
    return Measurement(observation.result(), truth, seen_gradients(left["model"], ground))


@dataclass
class Ground:
    """What happened, as the test's own hooks saw it: the batches in order, and each step's weights and gradients."""

    batches: list[Any] = field(default_factory=list)
    weights: list[dict[int, torch.Tensor]] = field(default_factory=list)
    gradients: list[dict[int, torch.Tensor]] = field(default_factory=list)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@contextlib.contextmanager
def on_the_ground() -> Iterator[Ground]:
    ground = Ground()
    known: set[int] = set()
    drawn = dataloader._BaseDataLoaderIter.__next__

    def draw(iterator: Any) -> Any:
        ground.batches.append(copy.deepcopy(batch := drawn(iterator)))
        return batch

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # The first to step is the script's own: verify steps copies.
        known.add(id(optimizer)) if not known else None
        if id(optimizer) in known:
            ground.weights.append({id(p): p.detach().clone() for p in _parameters(optimizer)})

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in known:
            found = {id(p): p.grad.detach().clone() for p in _parameters(optimizer) if p.grad is not None}
            ground.gradients.append(found)

    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        with mock.patch.object(dataloader._BaseDataLoaderIter, "__next__", draw):
            yield ground
    finally:
        for handle in handles:
            handle.remove()


def token_loss(model: nn.Module, batches: list[Any]) -> torch.Tensor:
    """The mean over all the targets of a window, of next-token prediction."""
    import toy

    losses = []
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        if hasattr(model, "config"):
            # trl puts a forward of its own on the module.
            logits = type(model).forward(model, **inputs).logits[:, :-1]
        else:
            logits = toy.Model.forward(model, inputs["input_ids"][:, :-1])
        targets = batch["labels"][:, 1:]
        kept = targets != -100
        losses.append(-torch.log_softmax(logits, -1)[kept].gather(-1, targets[kept].unsqueeze(-1)).squeeze(-1))
    return torch.cat(losses).mean()


def similarity_loss(model: nn.Module, batches: list[Any]) -> torch.Tensor:
    """The mean over all the pairs of a window of (cosine - score)^2."""
    losses = []
    for batch in batches:
        first, second = (
            model({k.removeprefix(side): v for k, v in batch.items() if k.startswith(side)})["sentence_embedding"]
            for side in ("first_", "second_")
        )
        losses.append((torch.cosine_similarity(first, second) - batch["label"].double()) ** 2)
    return torch.cat(losses).mean()


def picture_loss(model: nn.Module, batches: list[Any]) -> torch.Tensor:
    """The mean over all the pictures of a window that have a class, of its negative log probability."""
    losses = []
    for pictures, classes in batches:
        kept = classes != -100
        scores = torch.log_softmax(model(pictures.double()), -1)
        losses.append(-scores[kept].gather(-1, classes[kept].unsqueeze(-1)).squeeze(-1))
    return torch.cat(losses).mean()


def windows(name: str, condition: str) -> list[int]:
    """How many micro-batches the windows of two passes over the data hold."""
    if condition != "remainder":
        return [STEPS] * 4
    return [STEPS] * 5 if name in RUNS_ON else [STEPS, STEPS, 2] * 2


def true_gradients(name: str, model: nn.Module, ground: Ground, sizes: list[int]) -> list[torch.Tensor]:
    """The large batch's gradient at every step, in float64, flat."""
    loss = {"sentence_similarity": similarity_loss, "timm_loop": picture_loss}.get(name, token_loss)
    own = [p for p in model.parameters() if p.requires_grad]
    found, start = [], 0
    for size, weights in zip(sizes, ground.weights, strict=True):
        exact = copy.deepcopy(model).double()
        targets = [p for p in exact.parameters() if p.requires_grad]
        with torch.no_grad():
            for target, parameter in zip(targets, own, strict=True):
                target.copy_(weights[id(parameter)])
        gradients = torch.autograd.grad(
            loss(exact, ground.batches[start : start + size]), targets, materialize_grads=True
        )
        found.append(torch.cat([g.reshape(-1) for g in gradients]))
        start += size
    assert start == len(ground.batches)
    return found


def seen_gradients(model: nn.Module, ground: Ground) -> list[torch.Tensor]:
    own = [p for p in model.parameters() if p.requires_grad]
    return [
        torch.cat([g.get(id(p), torch.zeros_like(p)).detach().double().reshape(-1) for p in own])
        for g in ground.gradients
    ]

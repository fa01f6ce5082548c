"""How far right gradients are from their references: what the tolerances of `verify` are held against.

    python benchmarks/rounding.py [--seeds 3]

A small transformer accumulates K micro-batches in the dtype of its parameters, every micro-batch's own gradient kept
beside it. *sum*: the worst |grad - Σ g_j| of any element, in units of the bound gamma_(K-1) Σ|g_j|. *norm of sum*: its
Euclidean norm, in units of u √(Σ ‖s_j‖²) over the partial sums s_j. *large batch*: the relative error against the
gradient of the one large batch, of the worst tensor and of all together, and of the norm alone, in units of √K eps.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from gradcheck_accum.engine.tolerance import gamma, unit_roundoff

ROWS, LENGTH, WIDTH, VOCABULARY = 2, 16, 64, 64


class Transformer(nn.Module):
    """Two encoder layers of width 64 and a vocabulary of 64: about 75,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(self.embed(tokens)))
        return scores


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.hypot(*(float(t.double().norm()) for t in tensors))


def measure(dtype: torch.dtype, autocast: bool, steps: int, seed: int) -> list[float]:
    """The five numbers of one window."""
    torch.manual_seed(seed)
    model = Transformer().to(torch.float32 if autocast else dtype)
    parameters = list(model.parameters())
    data = torch.randint(0, VOCABULARY, (steps, ROWS, LENGTH + 1))
    own: list[list[torch.Tensor]] = [[] for _ in parameters]
    hooks = [
        p.register_hook(lambda g, kept=kept: kept.append(g.detach().clone()))
        for p, kept in zip(parameters, own, strict=True)
    ]
    cast: AbstractContextManager[object] = torch.autocast("cpu", dtype) if autocast else nullcontext()
    for tokens in data:
        with cast:
            loss = loss_of(model, tokens) / steps
        loss.backward()
    for hook in hooks:
        hook.remove()
    grads = [p.grad for p in parameters if p.grad is not None]
    held = unit_roundoff(grads[0].dtype)
    bound = gamma(steps - 1, held)
    worst, squares = 0.0, 0.0
    errors = []
    for grad, parts in zip(grads, own, strict=True):
        stacked = torch.stack(parts).double()
        errors.append(grad.double() - stacked.sum(0))
        allowed = bound * stacked.abs().sum(0)
        worst = max(worst, float((errors[-1].abs() / allowed.clamp_min(1e-300)).max()))
        squares += float(stacked.cumsum(0)[1:].square().sum())
    with cast:
        loss = loss_of(model, data.flatten(0, 1))
    large = torch.autograd.grad(loss, parameters)
    unit = math.sqrt(steps) * torch.finfo(dtype).eps
    tensors = max(norm([g.double() - r.double()]) / norm([r]) for g, r in zip(grads, large, strict=True) if norm([r]))
    together = norm([g.double() - r.double() for g, r in zip(grads, large, strict=True)]) / norm(large)
    length = abs(norm(grads) / norm(large) - 1.0)
    return [worst, norm(errors) / (held * math.sqrt(squares)), tensors / unit, together / unit, length / unit]


def main() -> None:
    """Print a table, the worst of all seeds in each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print("| dtype | K | sum | norm of sum | worst tensor | all tensors | norm alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, dtype, autocast in (
        ("float64", torch.float64, False),
        ("float32", torch.float32, False),
        ("bfloat16", torch.bfloat16, False),
        ("float16", torch.float16, False),
        ("bfloat16 autocast", torch.bfloat16, True),
    ):
        for steps in (4, 16, 64):
            runs = [measure(dtype, autocast, steps, seed) for seed in range(seeds)]
            cells = [max(column) for column in zip(*runs, strict=True)]
            print(f"| {name} | {steps} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""How often a mistake of a few per cent is seen in sketch mode: of so many runs with other random numbers.

    python benchmarks/sketch_power.py [--runs 20] [--parts 0.001 0.01 0.03 0.1]

What the graph of a loss shows is read from its graph, whatever is kept of gradients: a micro-batch whose weight is a
few per cent too large. What it does not show is seen from the sketches alone: here gradients that are multiplied past
PyTorch's version counters (``p.grad.data``), all of them by the same number or those of one weight.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

K, ROWS, WIDTH = 3, 5, 160


def heavier(model: nn.Module, losses: list[torch.Tensor], part: float) -> None:
    """The weight of the first micro-batch is too large."""
    for position, loss in enumerate(losses):
        (loss * ((1 + part if position == 0 else 1.0) / K)).backward()


def all_scaled(model: nn.Module, losses: list[torch.Tensor], part: float) -> None:
    """All gradients are multiplied unseen."""
    for loss in losses:
        (loss / K).backward()
    for parameter in model.parameters():
        parameter.grad.data.mul_(1 + part)


def one_scaled(model: nn.Module, losses: list[torch.Tensor], part: float) -> None:
    """The gradients of one weight are multiplied unseen."""
    for loss in losses:
        (loss / K).backward()
    next(model.parameters()).grad.data.mul_(1 + part)


def is_seen(mistake: Callable[[nn.Module, list[torch.Tensor], float], None], part: float, seed: int, low: bool) -> bool:
    """Whether a run with this mistake is not called equivalent."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if low else torch.float32
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(reference="sketch", loss_coefficient=1.0) as observation:
        for _ in range(2):
            losses = [model(torch.randn(ROWS, WIDTH, dtype=dtype)).square().mean() for _ in range(K)]
            mistake(model, losses, part)
            optimizer.step()
            optimizer.zero_grad()
    return observation.result().verdict is not Verdict.EQUIVALENT


def main() -> None:
    """Print a row for every mistake and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--parts", type=float, nargs="+", default=[0.0, 0.001, 0.01, 0.03, 0.1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| mistake | dtype | " + " | ".join(f"{part:.1%}" for part in options.parts) + " |")
    print("| --- | --- |" + " --- |" * len(options.parts))
    for mistake in (heavier, all_scaled, one_scaled):
        for low in (False, True):
            seen = [sum(is_seen(mistake, part, seed, low) for seed in range(options.runs)) for part in options.parts]
            told = " | ".join(f"{count} of {options.runs}" for count in seen)
            print(f"| {(mistake.__doc__ or '').rstrip('.')} | {'bfloat16' if low else 'float32'} | {told} |")


if __name__ == "__main__":
    main()

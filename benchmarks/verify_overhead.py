"""What watching costs: windows of a small transformer, plain and watched, in pairs; the medians of their ratios.

    python benchmarks/verify_overhead.py [--pairs 7] [--windows 6]

Every pair runs the plain loop and the watched one right after each other, in turn, in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from gradcheck_accum.verify import observe

K, ROWS, LENGTH, WIDTH, VOCABULARY = 8, 4, 64, 256, 512


class Transformer(nn.Module):
    """Four encoder layers of width 256 and a vocabulary of 512: about 3.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(self.embed(tokens)))
        return scores


def train(windows: int) -> None:
    """A right loop of ``windows`` windows of K micro-batches."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(windows):
        for _ in range(K):
            tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1))
            scores = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()


def seconds(windows: int, watched: Callable[[], AbstractContextManager[Any]]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    with watched():
        train(windows)
    return time.perf_counter() - start


def main() -> None:
    """Print the median ratio of every way of watching."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--windows", type=int, default=6)
    options = parser.parse_args()
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "reference ledger": lambda: observe(reference="ledger"),
        "reference both": lambda: observe(reference="both"),
    }
    seconds(2, nullcontext)
    for name, way in ways.items():
        ratios = []
        for pair in range(options.pairs):
            order = (nullcontext, way) if pair % 2 == 0 else (way, nullcontext)
            times = {is_plain: seconds(options.windows, one) for one in order for is_plain in [one is nullcontext]}
            ratios.append(times[False] / times[True])
        low, high = min(ratios), max(ratios)
        print(
            f"{name}: {statistics.median(ratios):.3f} of the plain run ({low:.3f} to {high:.3f}, {options.pairs} pairs)"
        )


if __name__ == "__main__":
    main()

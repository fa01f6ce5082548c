"""What watching costs: windows of a small transformer, plain and watched, in turn; ratios of their median times.

    python benchmarks/verify_overhead.py [--runs 8] [--windows 5] [--tokens 1024]

One process and one thread, processor time: other programs on the machine disturb it less than the clock. The first
window of a run is not counted: it also asks for the memory that the others use again. `watch` judges one window in 16:
the second 16 of a run count, since the window before the first that is judged is read too.
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

import gradcheck_accum
from gradcheck_accum.verify import observe

K, ROWS, WIDTH, VOCABULARY, EVERY = 8, 4, 256, 512, 16

Way = Callable[[], AbstractContextManager[Any]]


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


def train(windows: int, tokens: int) -> list[float]:
    """A right loop of ``windows`` windows of K micro-batches of ``tokens`` tokens; seconds of all but the first."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(windows):
        start = time.process_time()
        for _ in range(K):
            text = torch.randint(0, VOCABULARY, (ROWS, tokens // ROWS + 1))
            scores = model(text[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            (loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
    return seconds[1:]


def window_time(seconds: list[float], at_a_time: int) -> list[float]:
    """The mean time of a window in each stretch of ``at_a_time`` windows."""
    stretches = (seconds[i : i + at_a_time] for i in range(0, len(seconds) - at_a_time + 1, at_a_time))
    return [statistics.fmean(own) for own in stretches]


def main() -> None:
    """Print the ratio of every way of watching."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, tuple[Way, int]] = {
        "verify --reference ledger": (lambda: observe(reference="ledger"), 1),
        "verify --reference sketch": (lambda: observe(reference="sketch"), 1),
        "verify --reference both": (lambda: observe(reference="both"), 1),
        f"watch(every={EVERY})": (lambda: gradcheck_accum.watch(every=EVERY), EVERY),
    }
    train(2, options.tokens)
    for name, (way, at_a_time) in ways.items():
        windows = options.windows if at_a_time == 1 else 2 * at_a_time + 1
        ratios = []
        for run in range(options.runs):
            order: tuple[Way, ...] = (nullcontext, way) if run % 2 == 0 else (way, nullcontext)
            found: dict[bool, float] = {}
            for one in order:
                with one():
                    times = window_time(train(windows, options.tokens), at_a_time)
                found[one is nullcontext] = statistics.median(times if at_a_time == 1 else times[-1:])
            ratios.append(found[False] / found[True])
        print(
            f"{name}: {statistics.median(ratios):.3f} of the plain window "
            f"({min(ratios):.3f} to {max(ratios):.3f} in {options.runs} runs)"
        )


if __name__ == "__main__":
    main()

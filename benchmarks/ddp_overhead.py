"""What watching two ranks costs in ledger mode: windows of a small transformer, plain and watched, in pairs.

    torchrun --nproc-per-node 2 benchmarks/ddp_overhead.py [--pairs 7] [--windows 4] [--reference ledger]

Every pair runs the plain loop and the watched one right after each other, in turn, on both ranks at once. The median of
the pairs' ratios is printed, by processor time (both ranks together) and by the clock. The loop synchronises once per
window. What is done once when the run has ended (putting the ranks' accounts together) is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from verify_overhead import LENGTH, ROWS, VOCABULARY, K, Transformer

from gradcheck_accum.verify import observe


def train(windows: int) -> None:
    """A right loop of ``windows`` windows of K micro-batches."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(windows):
        for j in range(K):
            tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1))
            with nullcontext() if j == K - 1 else model.no_sync():
                scores = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()


def cost(windows: int, reference: Any) -> tuple[float, float]:
    """Processor seconds of all ranks together, and seconds by the clock, of one run."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    with nullcontext() if reference is None else observe(reference=reference):
        train(windows)
    used = torch.tensor(time.process_time() - processor, dtype=torch.float64)
    dist.all_reduce(used)
    return float(used), time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--reference", choices=["ledger", "both"], default="ledger")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    cost(1, None), cost(1, options.reference)
    ratios: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        # In turn, so that neither always comes first.
        sides = [None, options.reference] if pair % 2 else [options.reference, None]
        found = {side: cost(options.windows, side) for side in sides}
        plain, watched = found[None], found[options.reference]
        ratios.append((watched[0] / plain[0], watched[1] / plain[1]))
    if dist.get_rank() == 0:
        for name, own in (("processor", [r[0] for r in ratios]), ("clock", [r[1] for r in ratios])):
            spread = f"pairs {min(own):.3f} to {max(own):.3f}"
            print(f"{options.reference} on 2 ranks, by {name}: {statistics.median(own):.3f}x ({spread})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

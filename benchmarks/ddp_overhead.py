"""What watching two ranks costs in ledger mode: windows of a small transformer, plain and watched, in pairs.

    torchrun --nproc-per-node 2 benchmarks/ddp_overhead.py [--pairs 7] [--windows 4] [--tokens 1024]

Every pair runs the plain loop and the watched one right after each other, in turn, on both ranks at once. The median of
the pairs' ratios is printed, by processor time (both ranks together) and by the clock. The loop synchronizes once per
window; the first window of each run is left out. What is done once when the run has ended (putting the ranks' accounts
together) is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from verify_overhead import ROWS, VOCABULARY, K, Transformer

from gradcheck_accum.verify import observe


def train(windows: int, tokens: int) -> tuple[float, float]:
    """A right loop of ``windows`` windows of K micro-batches; seconds of all but the first: processor's and clock's."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    processor = clock = 0.0
    for window in range(windows):
        if window == 1:
            processor, clock = time.process_time(), time.perf_counter()
        for j in range(K):
            text = torch.randint(0, VOCABULARY, (ROWS, tokens // ROWS + 1))
            with nullcontext() if j == K - 1 else model.no_sync():
                scores = model(text[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
                (loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - processor, time.perf_counter() - clock


def cost(options: argparse.Namespace, *, watched: bool) -> tuple[float, float]:
    """Processor seconds of all ranks together, and seconds by the clock, of one run."""
    dist.barrier()
    with observe(reference=options.reference) if watched else nullcontext():
        processor, clock = train(options.windows, options.tokens)
    used = torch.tensor(processor, dtype=torch.float64)
    dist.all_reduce(used)
    return float(used), clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro-batch")
    parser.add_argument("--reference", choices=["ledger", "both"], default="ledger")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ratios: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        # In turn, so that neither always comes first.
        found = {watched: cost(options, watched=watched) for watched in (bool(pair % 2), not pair % 2)}
        plain, watched = found[False], found[True]
        ratios.append((watched[0] / plain[0], watched[1] / plain[1]))
    if dist.get_rank() == 0:
        for name, own in (("processor", [r[0] for r in ratios]), ("clock", [r[1] for r in ratios])):
            spread = f"pairs {min(own):.3f} to {max(own):.3f}"
            print(f"{options.reference} on 2 ranks, by {name}: {statistics.median(own):.3f}x ({spread})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

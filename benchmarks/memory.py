"""What watching holds: peak memory over the plain run, in copies of the gradients.

    python benchmarks/memory.py [--parameters 1e6 2e7] [--optimizers SGD AdamW] [--tokens 128] [--k 4]

Every measurement has a process of its own, on one thread: it trains a right loop once on a tiny model, so that all
libraries are loaded, and then takes the highest resident memory of the run over what was resident before it (Linux:
VmHWM). Large tensors are mapped one by one there, so that what is freed is given back at once and no heap's holes are
counted. "Between" is what is resident between two windows, right after the gradients were cleared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradcheck_accum
from gradcheck_accum.verify import observe

ROWS, WINDOWS = 4, 3

WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "ledger": lambda: observe(reference="ledger"),
    "both": lambda: observe(reference="both"),
    "sketch": lambda: observe(reference="sketch"),
    "watch(every=2)": lambda: gradcheck_accum.watch(every=2),
}


class Transformer(nn.Module):
    """Four encoder layers and a vocabulary of eight times their width: 64 width² parameters or a little more."""

    def __init__(self, parameters: float) -> None:
        super().__init__()
        width = max(8, round((parameters / 64) ** 0.5 / 8) * 8)
        self.vocabulary = 8 * width
        self.embed = nn.Embedding(self.vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, self.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(self.embed(tokens)))
        return scores


def train(model: Transformer, options: argparse.Namespace, between: Callable[[], None]) -> None:
    """A right loop, which calls ``between`` after each window."""
    torch.manual_seed(0)
    optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-4, fused=options.fused or None)
    for _ in range(WINDOWS):
        for _ in range(options.k):
            text = torch.randint(0, model.vocabulary, (ROWS, options.tokens // ROWS + 1))
            with torch.autocast("cpu", torch.bfloat16, enabled=options.amp):
                scores = model(text[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            (loss / options.k).backward()
            del scores, loss
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not options.zeros)
        between()


def measure(options: argparse.Namespace) -> dict[str, float]:
    """The highest memory of a run, the highest between its windows, and the size of its gradients, in bytes."""
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    way = WAYS[options.way]
    with way():
        train(Transformer(1e4).to(dtype), options, lambda: None)
    held = [0]
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    with way():
        model = Transformer(options.parameters[0]).to(dtype)
        train(model, options, lambda: held.append(_resident("VmRSS") - before))
    size = sum(p.numel() * p.itemsize for p in model.parameters())
    return {"peak": _resident("VmHWM") - before, "between": max(held), "size": size}


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def in_a_process(options: argparse.Namespace, **own: object) -> dict[str, float]:
    """What `measure` finds with these options, in a fresh process."""
    child = argparse.Namespace(**{**vars(options), **own})
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", json.dumps(vars(child))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print a row for every model, optimizer, kind of loop and way of watching."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 2e7])
    parser.add_argument("--optimizers", nargs="+", default=["SGD", "AdamW"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16 (autocast)")
    parser.add_argument("--fused", action="store_true", help="PyTorch's fused optimizers")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS)[1:], default=list(WAYS)[1:])
    parser.add_argument("--zeros", action="store_true", help="zero_grad(set_to_none=False)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(argparse.Namespace(**json.loads(options.child)))))
        return
    print("| parameters | optimizer | clip | watched by | peak over plain, copies | between windows, copies |")
    print("| --- | --- | --- | --- | --- | --- |")
    for parameters in options.parameters:
        for optimizer in options.optimizers:
            for clip in (False, True):
                own = {"parameters": [parameters], "optimizer": optimizer, "clip": clip}
                plain = in_a_process(options, way="plain", **own)
                for way in options.ways:
                    found = in_a_process(options, way=way, **own)
                    more = [(found[what] - plain[what]) / plain["size"] for what in ("peak", "between")]
                    numbers = " | ".join(f"{number:.2f}" for number in more)
                    print(f"| {parameters:.3g} | {optimizer} | {'yes' if clip else 'no'} | {way} | {numbers} |")


if __name__ == "__main__":
    main()

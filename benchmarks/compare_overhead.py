"""What `compare` costs relative to the plain runs of its configurations: processor time, and the clock.

    python benchmarks/compare_overhead.py [--runs 5] [--steps 400]

A script with a multi-layer perceptron and one with a small transformer, each at K = 4 and K = 1 on the same rows. The
plain runs and the comparison take turns; each ratio is that of one turn. One thread a process. Starting Python and
importing PyTorch is part of every run, as it is for a user; `without start` subtracts that of a script which trains
nothing, from both sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MLP = """
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
x, y = torch.randn(32 * steps, 64), torch.randint(0, 10, (32 * steps,))
score = model
"""
TRANSFORMER = """
layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
embed, body = nn.Embedding(256, 128), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
head = nn.Linear(128, 256)
model = nn.ModuleList([embed, body, head])
x = torch.randint(0, 256, (32 * steps, 33))
x, y = x[:, :-1], x[:, 1:]
score = lambda x: head(body(embed(x))).transpose(1, 2)
"""
SCRIPT = """
import sys
import torch
from torch import nn

batch, accumulation_steps, steps = map(int, sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(0)
{model}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
running = 0.0
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(score(x), y)
    (loss / accumulation_steps).backward()
    running += loss.item() / accumulation_steps
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        running = 0.0
"""
CONFIGURATIONS = ("8 4", "32 1")


def spent(commands: list[list[str]]) -> tuple[float, float]:
    """The processor time and the clock time of commands, one after the other."""
    before, start = os.times(), time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return used, time.perf_counter() - start


def turn(script: Path, steps: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the plain runs take together, and what comparing them does."""
    plain = [[sys.executable, str(script), *one.split(), str(steps)] for one in CONFIGURATIONS]
    given = [word for one in CONFIGURATIONS for word in ("--with", f"{one} {steps}")]
    compare = [sys.executable, "-m", "gradcheck_accum", "compare", str(script), *given]
    return spent(plain), spent([compare])


def main() -> None:
    """Print the ratios of both scripts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    # An installed package is not compiled anew in every process.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        for name, model, steps in (("mlp", MLP, options.steps), ("transformer", TRANSFORMER, options.steps // 8)):
            script = Path(folder) / f"{name}.py"
            script.write_text(SCRIPT.format(model=model))
            turn(script, 1)
            turns = [turn(script, steps) for _ in range(options.runs)]
            (least, _), (least_compared, _) = turn(script, 1)
            for label, number in (("processor", 0), ("clock", 1)):
                ratios = [compared[number] / plain[number] for plain, compared in turns]
                print(f"{name}, {steps} steps: {label} {statistics.median(ratios):.2f} of the plain runs "
                      f"({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip
            ratios = [(compared[0] - least_compared) / (plain[0] - least) for plain, compared in turns]
            print(f"{name}, {steps} steps: processor without start {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()

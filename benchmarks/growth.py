"""How what watching costs grows with the parameters, with K and with the number of windows: three plots.

    python benchmarks/growth.py [--pairs 3] [--parameters 1e5 1e6 1e7] [--ks 2 4 8 16] [--windows 3000]

Writes `growth_parameters.svg`, `growth_k.svg` and `growth_windows.svg` beside itself, and prints their numbers. Each
point of the first two is the median ratio of a watched window's processor time to a plain one's, in pairs of runs of
the transformer of `memory.py` in one process and one thread, without the first window of a run; a bar goes from the
lowest to the highest pair. The third is the processor time of each window of one long run of a tiny model, and how
much the process had grown since its first windows. Needs Matplotlib.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import torch
from matplotlib import pyplot
from memory import ROWS, Transformer
from torch import nn

from gradcheck_accum.verify import observe

HERE = Path(__file__).resolve().parent
WAYS = ("ledger", "sketch", "both")
WINDOWS = 4


def train(parameters: float, k: int, tokens: int) -> float:
    """A right loop of a transformer; the median processor time of its windows, but for the first."""
    torch.manual_seed(0)
    model = Transformer(parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(WINDOWS):
        begun = time.process_time()
        for _ in range(k):
            text = torch.randint(0, model.vocabulary, (ROWS, tokens // ROWS + 1))
            scores = model(text[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            (loss / k).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds[1:])


def way(name: str) -> AbstractContextManager[Any]:
    """The block in which a loop is watched, or not."""
    return nullcontext() if name == "plain" else observe(reference=name)  # type: ignore[arg-type]


def ratios(parameters: float, k: int, tokens: int, pairs: int) -> dict[str, list[float]]:
    """By way of watching, what a watched window takes in relation to a plain one, in several pairs."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(pairs):
        seconds = {}
        for name in ("plain", *WAYS) if number % 2 == 0 else (*WAYS[::-1], "plain"):
            with way(name):
                seconds[name] = train(parameters, k, tokens)
        for name in WAYS:
            found[name].append(seconds[name] / seconds["plain"])
    return found


def long_run(windows: int) -> tuple[list[float], list[float]]:
    """Of each window of a tiny model with the ledger: its milliseconds, and the KiB that the process has grown."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.ones(5, 3), torch.ones(5, 2)
    times, sizes = [], []
    with observe(reference="ledger"):
        for _ in range(windows):
            begun = time.process_time()
            for _ in range(4):
                (nn.functional.mse_loss(model(x), y) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(1000 * (time.process_time() - begun))
            sizes.append(_resident())
    return times, sizes


def _resident() -> float:
    """The resident memory of this process, in KiB (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1])


def plot(name: str, label: str, points: Sequence[float], found: Sequence[dict[str, list[float]]]) -> None:
    """Write one plot of ratios, and print them."""
    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    for own in WAYS:
        middle = [statistics.median(each[own]) for each in found]
        below = [m - min(each[own]) for m, each in zip(middle, found, strict=True)]
        above = [max(each[own]) - m for m, each in zip(middle, found, strict=True)]
        axes.errorbar(points, middle, yerr=[below, above], marker="o", capsize=3, label=own)
        for point, each in zip(points, found, strict=True):
            values = each[own]
            text = f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            print(f"{label} {point:g}, {own}: {text}", flush=True)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel=label, ylabel="CPU time, of the plain window's", ylim=(0.8, None))
    axes.set_xticks(points, [f"{point:g}" for point in points], minor=False)
    axes.minorticks_off()
    axes.legend()
    _write(figure, name)


def plot_windows(windows: int) -> None:
    """Write the plot of a long run, and print its fifths."""
    times, sizes = long_run(windows)
    fifth = windows // 5
    means = [statistics.fmean(times[i * fifth : (i + 1) * fifth]) for i in range(5)]
    grown = [size - sizes[fifth // 4] for size in sizes]
    print(f"{windows} windows: ms a window by fifths {', '.join(f'{mean:.2f}' for mean in means)}")
    print(f"grown since window {fifth // 4}: {grown[-1]:.0f} KiB, {grown[-1] / (windows - fifth // 4):.3f} a window")
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(5, 4), sharex=True, layout="constrained")
    step = max(1, windows // 100)
    places = range(0, windows - step + 1, step)
    upper.plot(places, [statistics.median(times[place : place + step]) for place in places])
    upper.set(ylabel="CPU time, ms a window", ylim=(0, None))
    lower.plot(places, [grown[place] / 1024 for place in places])
    lower.set(xlabel="windows", ylabel="grown, MiB")
    _write(figure, "growth_windows.svg")


def _write(figure: Any, name: str) -> None:
    """Write a figure without what differs from run to run."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(HERE / name, metadata={"Date": None})


def main() -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--parameters", type=float, nargs="*", default=[1e5, 1e6, 1e7])
    parser.add_argument("--ks", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--windows", type=int, default=3000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("plain", *WAYS):
        with way(name):
            train(1e4, 2, 16)
    if options.parameters:
        found = [ratios(size, 4, options.tokens, options.pairs) for size in options.parameters]
        plot("growth_parameters.svg", "parameters", options.parameters, found)
    if options.ks:
        found = [ratios(1e6, k, options.tokens, options.pairs) for k in options.ks]
        plot("growth_k.svg", "K", options.ks, found)
    gc.collect()
    if options.windows:
        plot_windows(options.windows)


if __name__ == "__main__":
    main()

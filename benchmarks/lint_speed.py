"""What lint costs, as ratios of times measured in one run: medians of whole processes, in turn.

    python benchmarks/lint_speed.py [--repeats 5]

- all of the installed torch package without a cache, beside parsing with libcst those of its files that call backward;
- one small faulty script, beside a bare ``import libcst``;
- a file without a training loop, beside bare Python;
- all of torch with a cache, beside the same without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARSE = """
import sys, pathlib, libcst
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    content = path.read_bytes()
    if b".backward(" in content:
        libcst.parse_module(content)
"""


def seconds(command: list[str], folder: Path) -> float:
    """The time of one process."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def ratio(name: str, command: list[str], beside: list[str], folder: Path, repeats: int) -> None:
    """Print the median time of two commands and of their ratios, run in turn."""
    pairs = [(seconds(command, folder), seconds(beside, folder)) for _ in range(repeats)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    middle = statistics.median(a / b for a, b in pairs)
    print(f"{name}: {ours:.3f} s beside {theirs:.3f} s: {middle:.2f}x")


def main() -> None:
    """Print every ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("torch is not installed: there is nothing to read")
    package = str(Path(spec.origin).parent)
    python = sys.executable
    lint = [python, "-m", "gradcheck_accum", "lint"]
    faulty = str(ROOT / "fixtures" / "unscaled.py")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plain.py").write_text("def f(x):\n    return x + 1\n")
        everything = [*lint, package, "--extend-exclude", "none"]
        ratio(
            "torch, beside libcst's parse", [*everything, "--no-cache"], [python, "-c", PARSE, package], folder, repeats
        )
        ratio(
            "one faulty script, beside import libcst", [*lint, faulty], [python, "-c", "import libcst"], folder, repeats
        )
        ratio("no loop, beside bare Python", [*lint, "plain.py"], [python, "-c", "pass"], folder, repeats)
        seconds(everything, folder)
        ratio("torch from the cache, beside without", everything, [*everything, "--no-cache"], folder, repeats)


if __name__ == "__main__":
    main()

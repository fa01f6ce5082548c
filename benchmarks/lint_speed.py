"""What lint costs relative to others, as ratios of processor times (user and system) measured in one run.

    python benchmarks/lint_speed.py [--repeats 5] [--torchfix path/to/torchfix]

- all of the installed torch package without a cache, relative to parsing its files that call backward with libcst;
- one small faulty script, relative to a bare ``import libcst``;
- a file without a training loop, relative to bare Python;
- all of torch with a cache, relative to the same without;
- a copy of torch's Python files, relative to ``ruff check`` on the same, neither with a cache, then both;
- torch's files that call backward, relative to TorchFix on the same files, where that is installed.

Whole processes, in turn, after one run of each that is not counted; medians. Processor time, because other programs on
the machine disturb it less than the clock. lint loads libcst only where a file trains; TorchFix it never needs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
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
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""As where a package is installed: its modules are compiled once, those of the checkout too."""


def seconds(command: list[str], folder: Path) -> float:
    """The processor time of one process and of those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def ratio(name: str, command: list[str], beside: list[str], folder: Path, repeats: int) -> None:
    """Print the median times of two commands and of their ratios, run in turn."""
    if repeats > 1:
        seconds(command, folder)
        seconds(beside, folder)
    pairs = [(seconds(command, folder), seconds(beside, folder)) for _ in range(repeats)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    spread = f" ({ratios[0]:.3f} to {ratios[-1]:.3f}, {repeats} pairs)" if repeats > 1 else " (once)"
    print(f"{name}: {ours:.3f} s vs. {theirs:.3f} s: {statistics.median(ratios):.3f}x{spread}", flush=True)


def _all_but_python(folder: str, names: list[str]) -> list[str]:
    """What of a folder is not copied."""
    return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]


def main() -> None:
    """Print every ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--torchfix", default=shutil.which("torchfix"), help="TorchFix's command, if not on the path")
    options = parser.parse_args()
    repeats = options.repeats
    spec = find_spec("torch")
    if spec is None or spec.origin is None or find_spec("libcst") is None:
        sys.exit("torch and libcst have to be installed: the one to be read, the other to be compared with")
    package = Path(spec.origin).parent
    python = sys.executable
    lint = [python, "-m", "gradcheck_accum", "lint"]
    faulty = str(ROOT / "fixtures" / "unscaled.py")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plain.py").write_text("def f(x):\n    return x + 1\n")
        torch = [*lint, str(package)]
        parse = [python, "-c", PARSE, str(package)]
        ratio("torch, vs. libcst's parse", [*torch, "--no-cache"], parse, folder, repeats)
        ratio("one faulty script, vs. import libcst", [*lint, faulty], [python, "-c", "import libcst"], folder, repeats)
        ratio("no loop, vs. bare Python", [*lint, "plain.py"], [python, "-c", "pass"], folder, repeats)
        ratio("torch from the cache, vs. without", torch, [*torch, "--no-cache"], folder, repeats)
        # A copy, because Ruff leaves out what is in an environment.
        copied = folder / "copied"
        shutil.copytree(package, copied, ignore=_all_but_python)
        ruff = [python, "-m", "ruff", "check", "--isolated", "--quiet", str(copied)]
        ours = [*lint, str(copied)]
        ratio("torch, vs. Ruff", [*ours, "--no-cache"], [*ruff, "--no-cache"], folder, repeats)
        ratio("torch, vs. Ruff, both from their caches", ours, ruff, folder, repeats)
        if options.torchfix is None:
            sys.exit("TorchFix is not installed: not compared with it (pip install torchfix)")
        same = folder / "same"
        same.mkdir()
        calling = [path for path in sorted(package.rglob("*.py")) if b".backward(" in path.read_bytes()]
        for number, path in enumerate(calling):
            shutil.copy(path, same / f"{number}_{path.name}")
        ours = [*lint, str(same), "--no-cache"]
        ratio(f"{len(calling)} files, vs. TorchFix", ours, [options.torchfix, str(same)], folder, 1)


if __name__ == "__main__":
    main()

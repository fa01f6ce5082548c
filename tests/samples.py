"""The code blocks of README.md and docs/, run as a reader would run them.

A page is a story: a block with a ``title`` is a file that the reader saves, the commands of its ``console`` blocks are
run in order in one folder, and the output that is shown must be what they print, where ``...`` stands for any lines. A
block of Python is run with `PREAMBLE` before it, which defines what such samples take for granted.

    python tests/samples.py docs/tutorial.md

writes what the commands print today into the page where it shows something else (a line ``?``, say), for a person to
look at. Commands without any output there are run all the same.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

ANYTHING = "..."
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

NOT_RUN = {
    r"(pip install|python3 -m venv|eval) ": "changes the environment",
    r"python benchmarks/": "takes minutes",
    r"gradcheck-accum verify -m project\.train ": "is run as a script elsewhere on the page",
    r".* \| jq ": "needs jq",
}
"""Commands that are shown and not run, and why."""

NOT_RUN_PYTHON = {
    ("callbacks.md", "# Accelerate"): "needs the frameworks: tests/frameworks/test_callbacks.py",
    ("compare.md", "gradcheck_accum.compare("): "is a sketch: tests/test_compare_loop.py",
    ("fuzz.md", "# factories.py"): "is a sketch: tests/fuzz/test_own_loops.py",
}
"""Blocks of Python, by page and first words, that are shown and only compiled, and why."""

PREAMBLE = """\
import hypothesis
import pytest
import torch

import gradcheck_accum

hypothesis.settings.register_profile("samples", max_examples=5, deadline=None, database=None)
hypothesis.settings.load_profile("samples")
weight = torch.ones(1, requires_grad=True)
loss = weight.sum()
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(10)]


def train(model, loader, optimizer, criterion=None, steps=4):
    batches = list(loader)
    for start in range(0, len(batches), steps):
        window = batches[start : start + steps]
        count = sum(int((y != -100).sum()) for _, y in window)
        for x, y in window:
            (torch.nn.functional.cross_entropy(model(x), y, reduction="sum") / count).backward()
        optimizer.step()
        optimizer.zero_grad()


train_one_epoch = train


def run_recipe():
    train(model, loader, optimizer)


"""

WITH_OVERRIDES = """\
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from train import train

settings = {"data.batch_size": 5, "trainer.accum": 3, **dict(word.split("=") for word in sys.argv[1:])}
torch.manual_seed(0)
data = TensorDataset(torch.randn(55, 6), torch.randint(0, 3, (55,)))
loader = DataLoader(data, batch_size=int(settings["data.batch_size"]))
model = torch.nn.Linear(6, 3)
train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), int(settings["trainer.accum"]), 1)
"""
"""A script that takes its settings as Hydra gives them."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is if it is one, its text, and where the text begins and ends."""

    language: str
    title: str
    body: str
    span: tuple[int, int]


def blocks(text: str, language: str = "") -> list[Block]:
    """The fenced blocks of a page, of one language if one is given."""
    found = (Block(match[1], match[2] or "", match[3], match.span(3)) for match in _FENCE.finditer(text))
    return [block for block in found if language in ("", block.language)]


def exchanges(body: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that are shown below it."""
    parted = re.split(r"^\$ (.*)\n", body, flags=re.MULTILINE)
    if parted[0]:
        raise ValueError(f"a console block that begins with no command: {parted[0]!r}")
    return [(command, output.splitlines()) for command, output in zip(parted[1::2], parted[2::2], strict=True)]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """All commands of a page."""
    for block in blocks(text, "console"):
        yield from exchanges(block.body)


def is_run(command: str) -> bool:
    """Whether a command is run here."""
    return not any(re.match(pattern, command) for pattern in NOT_RUN)


def is_run_python(page: Path, block: Block) -> bool:
    """Whether a block of Python is run here."""
    return not any(page.name == name and block.body.startswith(first) for name, first in NOT_RUN_PYTHON)


def prepare(folder: Path) -> None:
    """What a reader's folder holds besides what the page has them save: our fixtures, and scripts of their own."""
    shutil.copytree(ROOT / "fixtures", folder / "fixtures", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "finetune.py"):
        shutil.copy(ROOT / "fixtures" / "demo" / "train_options.py", folder / name)
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(WITH_OVERRIDES, encoding="utf-8")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as in a shell that has our environment active; what it prints for people is on standard output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "COLUMNS"))}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**kept, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def run_python(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block of Python: as a test module if it holds tests."""
    name = "test_sample.py" if re.search(r"^def test_", block.body, re.MULTILINE) else "sample.py"
    (folder / name).write_text(PREAMBLE + block.body, encoding="utf-8")
    runs = "python -m pytest -q -p no:cacheprovider" if name.startswith("test_") else "python"
    return run(f"{runs} {name}", folder)


_NUMBER = re.compile(r"\d+\.\d+e[-+]\d+|\d+\.\d+|\d+")
# A number of a table, with the spaces that align it.
_ALIGNED = re.compile(f" *(?:{_NUMBER.pattern})")
# Errors below this are rounding in float32.
_ROUNDING = 1e-6
# How many cases Hypothesis takes to find the smallest is the installed release's affair.
_COUNTS = re.compile(r"\d+(?= (?:cases|equivalent|undecided|deviates)\b)")


def same_line(shown: str, printed: str) -> bool:
    """Whether a line is what is shown, but for what another processor's rounding makes of its numbers."""
    shown, printed = (_COUNTS.sub("N", line) for line in (shown, printed))
    if _ALIGNED.sub("", shown) != _ALIGNED.sub("", printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(_same_number(a, b) for a, b in pairs)


def _same_number(shown: str, printed: str) -> bool:
    if "0" in (shown, printed) and "e" in shown + printed:
        # What is exact on one processor may be rounded on another.
        return max(float(shown), float(printed)) < _ROUNDING
    if "e" in shown and "e" in printed:
        return abs(math.log10(float(shown) / float(printed))) < 1
    return shown == printed if shown.isdigit() else math.isclose(float(shown), float(printed), rel_tol=0.02)


def same_output(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the lines that are shown are those that were printed; ``...`` is any number of lines."""
    if not shown:
        return not printed
    if shown[0] == ANYTHING:
        return any(same_output(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and same_output(shown[1:], printed[1:])


def follow(page: Path, folder: Path) -> Iterator[tuple[str, list[str], subprocess.CompletedProcess[str]]]:
    """Do what a page says, and give each command with what is shown and what happened."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.title:
            (folder / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "console":
            for command, shown in exchanges(block.body):
                if is_run(command):
                    yield command, shown, run(command, folder)
        elif block.language == "python" and is_run_python(page, block):
            yield block.body, [], run_python(block, folder)


def rewritten(page: Path, folder: Path) -> str:
    """The page with what its commands print today, where it shows something else."""
    text, done_to = page.read_text(encoding="utf-8"), 0
    for command, shown, done in follow(page, folder):
        printed = done.stdout.splitlines()
        if shown and not same_output(shown, printed):
            before, after = ("\n".join([f"$ {command}", *lines]) + "\n" for lines in (shown, printed))
            at = text.index(before, done_to)
            text = text[:at] + after + text[at + len(before) :]
            done_to = at + len(after)
        elif shown:
            done_to = text.index(f"$ {command}\n", done_to) + 1
    return text


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as made:
            prepare(Path(made))
            new = rewritten(Path(name), Path(made))
        Path(name).write_text(new, encoding="utf-8")

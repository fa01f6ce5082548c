"""Coverage-guided fuzzing (atheris) of what reads other people's files: lint, notebooks and settings.

    make fuzz-inputs                                   # each target for five minutes
    python benchmarks/fuzz_inputs.py lint --seconds 60  # one of them (pip install atheris: Python 3.11 to 3.13)

Anything but an answer, or a refusal in one line, is a find: its input is written below ``--finds``, and becomes a test
in ``tests/lint_doors/test_hostile_trees.py``. Seeds are the loops of this repository; half of all inputs consist of
their lines and words, because most changes of single bytes leave no Python.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import atheris
from programs import ROOT, programs

os.environ["GRADCHECK_ACCUM_DEBUG"] = "1"  # an error of ours comes out as it is
with atheris.instrument_imports(include=["gradcheck_accum"]):
    import gradcheck_accum.diagnosis
    import gradcheck_accum.lint
    from gradcheck_accum.lint.project.run import lint_given
    from gradcheck_accum.settings import Settings, SettingsError, settings_for

    for package in (gradcheck_accum.lint, gradcheck_accum.diagnosis):
        # What is imported where it is needed only would not be seen.
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

LOOPS = [program.encode() for program in programs("fixtures")]
_PIECE = re.compile(rb"\w+|[ \t]+|\n|.", re.DOTALL)
_LONGEST = 8192


def lint(content: bytes) -> None:
    """A script: linted with its fixes, or refused."""
    _lint(content, "train.py")


def notebook(content: bytes) -> None:
    """A notebook: linted with its fixes, or refused."""
    _lint(content, "train.ipynb")


def _lint(content: bytes, path: str) -> None:
    # To look for fixes takes the most time: every fourth input has to do.
    fixes: Literal["unsafe"] | None = "unsafe" if zlib.crc32(content) % 4 == 0 else None
    result = lint_given(content, path, Settings(), report_unused=True, fixes=fixes)
    for problem in result.unreadable:
        assert problem.reason and "\n" not in problem.reason, problem
    for finding in result.findings:
        assert finding.where.line >= 1, finding
    for rewrite in result.rewrites:
        assert not lint_given(rewrite.after, path, Settings(), report_unused=False).unreadable, "a fix broke it"


def settings(content: bytes) -> None:
    """A pyproject.toml: settings that paths can be asked about, or a complaint of one line."""
    folder = Path(os.environ["FUZZ_PROJECT"])
    (folder / "pyproject.toml").write_bytes(content)
    try:
        found = settings_for([str(folder / "train.py")])
        found.excludes(str(folder / "train.py"))
        found.reports("GA101", str(folder / "train.py"))
        found.of_verify()
    except SettingsError as complaint:
        assert "\n" not in str(complaint), complaint


def _notebooks() -> list[bytes]:
    made = []
    for number, loop in enumerate(LOOPS[::8]):
        lines = ["%matplotlib inline\n", *loop.decode().splitlines(keepends=True)]
        source = lines if number % 2 else "".join(lines)
        cells = [{"cell_type": "markdown", "source": "# A"}, {"cell_type": "code", "metadata": {}, "source": source}]
        made.append(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}, indent=number % 3 or None).encode())
    return made


_TABLES = [
    b'[tool.gradcheck-accum]\nselect = ["GA1"]\nexclude = ["a/*.py", "!b"]\nextend-exclude = ["**/c"]\n',
    b'[tool.gradcheck-accum.per-file-ignores]\n"tests/*" = ["GA301"]\n',
    b'[tool.gradcheck-accum]\nbaseline = "b.json"\n[tool.gradcheck-accum.verify]\ntimeout = 3.5\nrtol = 1e-3\n'
    b'atol = 0\nmemory-budget = "50%"\nmax-windows = 7\nreference = "both"\ndtype = "float64"\nselect = []\n',
]

TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "lint": (lint, lambda: LOOPS[::5]),
    "notebook": (notebook, _notebooks),
    "settings": (settings, lambda: [*_TABLES, (ROOT / "pyproject.toml").read_bytes()]),
}


def _spliced(seeds: list[bytes]) -> Callable[[bytes, int, int], bytes]:
    """A mutator that moves whole lines and words, between inputs too; every other time that of libFuzzer."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.4:
            return bytes(atheris.Mutate(data, max_size))
        by_line = rng.random() < 0.5

        def pieces(text: bytes) -> list[bytes]:
            return text.splitlines(keepends=True) if by_line else _PIECE.findall(text)

        own, others = pieces(data), pieces(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(own) + 1)
            start = rng.randrange(len(others) + 1)
            taken = others[start : start + rng.randint(1, 6)]
            match rng.randrange(4):
                case 0:
                    del own[at : at + rng.randint(1, 3)]
                case 1:
                    own[at:at] = taken
                case 2:
                    own[at : at + len(taken)] = taken
                case 3:
                    own[at:at] = own[at : at + rng.randint(1, 6)] * rng.randint(1, 3)
        return b"".join(own)[:max_size]

    return mutate


def main() -> None:
    """Fuzz one target for some time; what libFuzzer prints says how often it ran."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run, seeds = TARGETS[options.target]
    options.finds.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        os.environ["FUZZ_PROJECT"] = folder
        for number, seed in enumerate(seeds()):
            (corpus / str(number)).write_bytes(seed)
        arguments = [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={options.seconds}",
            f"-max_len={_LONGEST}",
            f"-seed={options.seed or 1}",
            f"-artifact_prefix={options.finds}/{options.target}-",
            "-timeout=300",
            "-report_slow_units=300",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ]
        atheris.Setup(arguments, run, custom_mutator=_spliced(seeds()))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
